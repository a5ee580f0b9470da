"""What a pool claims, held against what is really alive in its swarm of agents."""

from typing import TYPE_CHECKING

from coddl.core.pool.turns import TURNS_MAX

if TYPE_CHECKING:
    from tests.core.pool.swarm import Swarm


def check(swarm: "Swarm") -> None:
    """Hold the pool's claims against what lives."""
    pool = swarm.pool
    check_shared(swarm)
    if not swarm.owed and not swarm.control.awaited:  # all who could be told leave in time
        due = {n.name for n in pool.nodes.values() if swarm.now_s >= (n.empty_by_s or 1e99)}
        told = [job for job in pool.live_jobs() if not job.stop and not pool.is_deaf(job)]
        assert all(due.isdisjoint(pool.nodes_of(job.granted)) for job in told)
    for agent in swarm.agents.values():
        for slot in {*agent.workers, *agent.resting}:
            alive, owners = agent.jobs_on(slot), pool.slots[slot].owners
            assert alive <= owners.keys(), f"slot {slot}: {alive} live, {owners} own it"
    check_parked(swarm)
    for state in pool.jobs.values():
        assert state.is_over == (state.id not in pool.active)
        if state.granted:
            assert state.has_run, f"{state.id} {state.phase} holds {state.granted}"
        if state.is_over or state.is_waiting:
            assert state.lead is None


def check_shared(swarm: "Swarm") -> None:
    """Look that jobs share slots by turns only, and no more than may."""
    pool = swarm.pool
    for slot, state in pool.slots.items():
        owners = [pool.jobs[job] for job in state.owners]
        given = [job for job in owners if slot in job.granted and slot in job.target]
        hosts = [job.id for job in given if not job.is_guest and not job.stop]
        assert len(hosts) <= 1, f"slot {slot} was given twice: {hosts}"
        meant = [job for job in pool.live_jobs() if slot in job.target]
        assert sum(not job.is_guest for job in meant) <= 1, f"slot {slot} was promised twice"
        assert len(meant) <= TURNS_MAX
    for job in pool.jobs.values():
        assert all(job.id in pool.slots[slot].owners for slot in job.granted), f"{job.id}"
        if len(job.granted) > 1:
            assert all([*pool.slots[slot].owners] == [job.id] for slot in job.granted), f"{job.id}"
        assert not job.is_guest or (len(job.target) == 1 and job.spec.is_elastic), f"{job.id}"
        if job.is_guest and job.granted == job.target and not job.stop:
            users = [each for each in pool.live_jobs() if job.granted[0] in each.granted]
            assert job.sharers == len(users), f"{job.id}: {job.sharers}, not {len(users)}"


def check_parked(swarm: "Swarm") -> None:
    """Hold what the pool takes for parked against what can be resumed, and what orders say."""
    pool = swarm.pool
    for job in pool.jobs.values():
        homes = set(pool.nodes_of(job.parked))
        listed = {node.name for node in pool.nodes.values() if job.id in node.parked}
        assert homes == listed, f"job {job.id}: parked on {homes}, listed by {listed}"
        if homes:
            assert not job.is_over, f"{job.id} {job.phase}"
            assert not job.has_run, f"{job.id} {job.phase}"
            assert all(pool.nodes[name].may_park for name in homes)
    for agent in swarm.agents.values():
        node, orders = pool.nodes.get(agent.name), agent.orders
        is_current = node is not None and orders is not None and orders.version == node.version
        if is_current and node is not None and orders is not None:
            assert orders.parked == tuple(sorted(node.parked)), "it was not told"
            newest = pool.orders(node.name)
            assert (orders.seats, orders.turns) == (newest.seats, newest.turns), "it was not told"

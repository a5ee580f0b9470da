"""What a pool claims, held against what is really alive in its swarm of agents."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.core.pool.swarm import Swarm


def check(swarm: "Swarm") -> None:
    """Hold the pool's claims against what lives."""
    pool = swarm.pool
    given = [slot for job in pool.live_jobs() for slot in job.granted]
    assert len(given) == len(set(given)), f"a slot was given twice: {given}"
    meant = [slot for job in pool.live_jobs() for slot in job.target]
    assert len(meant) == len(set(meant)), f"a slot was promised twice: {meant}"
    if not swarm.owed and not swarm.control.awaited:  # all who could be told leave in time
        due = {n.name for n in pool.nodes.values() if swarm.now_s >= (n.empty_by_s or 1e99)}
        told = [job for job in pool.live_jobs() if not job.stop and not pool.is_deaf(job)]
        assert all(due.isdisjoint(pool.nodes_of(job.granted)) for job in told)
    for agent in swarm.agents.values():
        for slot, job in agent.workers.items():
            owner = pool.slots[slot].owner
            assert owner == job, f"slot {slot}: job {job} lives there and {owner} owns it"
    check_parked(swarm)
    for state in pool.jobs.values():
        assert state.is_over == (state.id not in pool.active)
        if state.granted:
            assert state.has_run, f"{state.id} {state.phase} holds {state.granted}"
        if state.is_over or state.is_waiting:
            assert state.lead is None


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

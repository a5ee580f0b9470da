"""Whole pools in virtual time, with crashes, partitions and restarts of the server."""

import pytest

from coddl.core.pool.state import Pool
from tests.core.pool.swarm import Swarm

SEEDS = range(60)
PATIENCE = 4000  # ticks


@pytest.mark.parametrize("seed", SEEDS)
def test_every_accepted_job_ends_and_no_device_has_two_owners(seed: int) -> None:
    swarm = Swarm(seed)
    for _ in range(300):
        if swarm.random.random() < 0.06 and len(swarm.done) < 12:
            swarm.submit()
        swarm.tick()
    swarm.faults = False
    for agent in swarm.agents.values():
        agent.is_cut_off = False
        if not agent.is_up:
            agent.boot, agent.is_up = agent.boot + 1, True
    ticks = 0
    while swarm.pool.active and ticks < PATIENCE:
        swarm.tick()
        ticks += 1
    left = [(job.id, job.phase, job.granted, job.target) for job in swarm.pool.live_jobs()]
    assert not left, f"after {PATIENCE} quiet ticks these are not over: {left}"
    assert {job.phase for job in swarm.pool.jobs.values()} <= {"succeeded"}
    for _ in range(50):
        swarm.tick()
    owned = [slot.slot for slot in swarm.pool.slots.values() if slot.owner is not None]
    assert not owned, "a device was never given back"


@pytest.mark.parametrize("seed", range(5))
def test_the_journal_alone_gives_the_same_pool(seed: int) -> None:
    swarm = Swarm(seed)
    for _ in range(200):
        if swarm.random.random() < 0.1 and len(swarm.done) < 8:
            swarm.submit()
        swarm.tick()
    again = Pool(policy="afs-p:tie=keep")
    for at_s, record in swarm.journal:
        again.apply(record, at_s)
    assert {j.id: (j.phase, j.granted, j.target, j.attempt) for j in again.jobs.values()} == {
        j.id: (j.phase, j.granted, j.target, j.attempt) for j in swarm.pool.jobs.values()
    }
    for name in swarm.pool.nodes:
        assert again.orders(name) == swarm.pool.orders(name)

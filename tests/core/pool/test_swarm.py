"""Whole pools in virtual time, with crashes, partitions and restarts of the server."""

from dataclasses import replace

import msgspec
import pytest

from coddl.core.allocation import Allocation
from coddl.core.policies.max_min import MaxMin
from coddl.core.pool import records as r
from coddl.core.pool.state import Pool
from coddl.core.registry import BUILT_IN, Registry
from coddl.core.snapshot import Snapshot
from tests.core.pool.swarm import Swarm

SEEDS = range(16)
PATIENCE = 4000  # ticks
QUIET = 150
PLUGGED = "mine.py:moody"


class Turning(MaxMin):
    """A policy that knows nothing of turns but how long they last."""

    turn_s = 5.0


def trouble(swarm: Swarm) -> None:
    """Let a pool have a hard time."""
    for _ in range(300):
        if swarm.random.random() < 0.06 and len(swarm.done) < 12:
            swarm.submit()
        swarm.tick()
    swarm.settle_down()


def live(swarm: Swarm) -> None:
    """Let a pool have a hard time, and then a quiet one in which all jobs end."""
    trouble(swarm)
    ticks = 0
    while swarm.pool.active and ticks < PATIENCE:
        swarm.tick()
        ticks += 1
    left = [(j.id, j.phase, j.granted, j.target, j.waiting) for j in swarm.pool.live_jobs()]
    assert not left, f"after {PATIENCE} quiet ticks these are not over: {left}"
    for _ in range(50):
        swarm.tick()
    owned = [slot.slot for slot in swarm.pool.slots.values() if slot.owners]
    assert not owned, "a device was never given back"
    assert not any(agent.parked for agent in swarm.agents.values()), "nobody will resume them"


@pytest.mark.parametrize("seed", SEEDS)
def test_every_accepted_job_ends_and_no_device_has_two_owners(seed: int) -> None:
    swarm = Swarm(seed)
    live(swarm)
    assert {job.phase for job in swarm.pool.jobs.values()} <= {"succeeded"}


@pytest.mark.parametrize("seed", SEEDS)
def test_so_it_is_when_users_interfere_and_commits_fail(seed: int) -> None:
    swarm = Swarm(seed, users=True, full=0.03)
    live(swarm)
    failed = {job.id for job in swarm.pool.jobs.values() if job.phase == "failed"}
    assert {job.phase for job in swarm.pool.jobs.values()} <= {"succeeded", "cancelled", "failed"}
    limits = [e for _, e in swarm.journal if isinstance(e, r.SliceDidNotFit)]
    assert failed <= {each.job for each in limits if each.evidence == "tried"}
    wanted = {e.job for _, e in swarm.journal if isinstance(e, r.JobCancelled)}
    assert {j.id for j in swarm.pool.jobs.values() if j.phase == "cancelled"} <= wanted


def test_workers_are_parked_and_resumed_and_some_are_given_up() -> None:
    told: list[r.Record] = []
    for seed in SEEDS:
        swarm = Swarm(seed, users=True, full=0.03)
        trouble(swarm)
        told += [record for _, record in swarm.journal]
    assert any(isinstance(each, r.RunEnded) and each.parked for each in told)
    assert any(isinstance(each, r.RunChanged) and each.kind == "resumed" for each in told)
    assert any(isinstance(each, r.ParkingEnded) for each in told)


@pytest.mark.parametrize("seed", SEEDS)
def test_so_it_is_when_a_plug_in_fails_every_other_time(seed: int) -> None:
    def moody(snapshot: Snapshot) -> Allocation:
        if swarm.faults and swarm.random.random() < 0.5:
            raise ValueError("not now")
        return MaxMin()(snapshot)

    registry = Registry({PLUGGED: moody})
    swarm = Swarm(seed, PLUGGED, users=True, full=0.03, registry=registry)
    live(swarm)
    told = [record for _, record in swarm.journal if isinstance(record, r.DecisionFailed)]
    assert told
    assert {job.phase for job in swarm.pool.jobs.values()} <= {"succeeded", "cancelled", "failed"}


TURNING = {
    "gandiva": ("gandiva:quantum_s=5,asks=minimum", BUILT_IN),
    "gandiva with requests": ("gandiva:quantum_s=5", BUILT_IN),
    "a plug-in": (PLUGGED, Registry({PLUGGED: Turning()})),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("policy", "registry"), TURNING.values(), ids=TURNING.keys())
def test_so_it_is_when_jobs_take_turns(seed: int, policy: str, registry: Registry) -> None:
    swarm = Swarm(seed, policy, users=True, full=0.03, crowded=True, registry=registry)
    live(swarm)
    told = [record for _, record in swarm.journal]
    assert not any(isinstance(each, r.DecisionFailed) for each in told)
    assert {job.phase for job in swarm.pool.jobs.values()} <= {"succeeded", "cancelled", "failed"}


def test_jobs_take_turns_and_go_on_without_a_start_when_their_host_leaves() -> None:
    guests, hosts = 0, 0
    for seed in SEEDS:
        swarm = Swarm(seed, "gandiva:quantum_s=5,asks=minimum", users=True, crowded=True)
        trouble(swarm)
        pool = Pool(policy=swarm.policy)
        for at_s, record in swarm.journal:
            before = {job.id: replace(job) for job in pool.live_jobs() if job.is_guest}
            pool.apply(record, at_s)
            for number, job in before.items():
                now = pool.jobs[number]
                same = (now.granted, now.attempt, now.stop) == (job.granted, job.attempt, "")
                hosts += isinstance(record, r.Decided) and same and not now.is_guest
            guests += len(before)
    assert guests
    assert hosts


@pytest.mark.parametrize("seed", SEEDS)
def test_a_pool_that_is_left_alone_comes_to_rest(seed: int) -> None:
    swarm = Swarm(seed, users=True, full=0.03)
    swarm.length = 1e9
    trouble(swarm)
    ticks = 0  # what hangs is given up, by turns the later
    while any(job.phase == "starting" for job in swarm.pool.live_jobs()) and ticks < PATIENCE:
        swarm.tick()
        ticks += 1
    for _ in range(QUIET):
        swarm.tick()
    for job in swarm.pool.live_jobs():
        told = f"{job.id} {job.phase} has {job.granted}, shall have {job.target}: {job.story}"
        assert set(job.granted) == set(job.target), told
        assert job.phase in ("running", "pending", "preempted"), told
        assert job.phase != "running" or set(job.serves) == set(job.granted), told
        assert (job.waiting is None) == bool(job.granted), told
    held = {slot for job in swarm.pool.live_jobs() for slot in job.granted}
    assert {s.slot for s in swarm.pool.slots.values() if s.owners} == held


@pytest.mark.parametrize("seed", range(10))
def test_a_picture_and_the_tail_are_the_same_as_all_records(seed: int) -> None:
    swarm = Swarm(seed, users=True)
    trouble(swarm)
    cut = swarm.random.randint(0, len(swarm.journal))
    whole, pictured = Pool(), Pool()
    for number, (at_s, record) in enumerate(swarm.journal):
        if number == cut:
            pictured = msgspec.json.decode(msgspec.json.encode(pictured), type=Pool)
            pictured.forget_soft()
        whole.apply(record, at_s)
        pictured.apply(record, at_s)
    whole.forget_soft()
    pictured.forget_soft()
    assert pictured == whole


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

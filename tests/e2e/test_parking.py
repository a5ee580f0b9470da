"""Jobs whose workers are parked: they go on where they were, whatever is killed meanwhile."""

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from coddl.core.pool import records as r
from tests.e2e.conftest import Alone
from tests.e2e.deciding import folded
from tests.e2e.observer import is_parked
from tests.e2e.pool import Pool
from tests.e2e.training import Training

pytestmark = pytest.mark.slow

STEPS = 200
BATCH = ("--global-batch", "4")  # few passes: jobs end soon once they may
SLOW_S = 0.06  # per pass: no job ends before it is told to
SLOWER_S = 0.15  # nor while a server starts, again and again
LEASE_S = 60.0  # agents go on without the server
NODE = "n1"
TURNS = "gandiva:quantum_s=1"  # jobs of two slots: it is the server that has them take turns


def one_node(folder: Path, slots: int, policy: str = "") -> Pool:
    """Give a pool with one node, whose slots are numbered from 0."""
    pool = Pool(folder, lease_s=LEASE_S, nodes=[NODE], slots=slots)
    pool.server_words += ["--policy", policy] if policy else []
    return pool


def strict_job(
    pool: Pool, name: str, gpus: int = 1, pace_s: float = SLOW_S, more: str = ""
) -> Training:
    args = " ".join(("--strict", *BATCH, more))
    return Training(pool, name, steps=STEPS, pace_s=pace_s, args=args, gpus=gpus)


def ask(pool: Pool, training: Training, what: str) -> None:
    """Ask for something as a user, and don't wait for it."""
    pool.ask(lambda client: client.post(f"/jobs/{training.job}:{what}"))


def suspend(pool: Pool, training: Training) -> r.RunEnded:
    """Suspend a job that has made steps; give the end of its run."""
    training.go_on()
    pool.wait_job(training.job, "steps", lambda view: view["state"] == "RUNNING")
    ask(pool, training, "suspend")
    pool.wait_job(training.job, "rest", lambda view: view["state"] == "SUSPENDED")
    ended = pool.told(r.RunEnded, training.job)[-1]
    assert ended.outcome == "retired"
    assert len(training.diary()) == ended.step
    assert len(parked(pool, training)) == len(ended.parked) > 0
    return ended


def resume(pool: Pool, training: Training) -> r.RunChanged:
    """Resume a job; give what its new run has told first of its workers."""
    attempt = training.view["attempt"] + 1
    ask(pool, training, "resume")
    found = pool.wait(f"attempt {attempt}", lambda: first_change(pool, training, attempt))
    training.go_on()
    return found


def first_change(pool: Pool, training: Training, attempt: int) -> r.RunChanged | None:
    told = pool.told(r.RunChanged, training.job)
    return next((each for each in told if each.attempt == attempt), None)


def pids_of(pool: Pool, training: Training) -> list[int]:
    """Name the processes of a job that are alive."""
    return sorted(each.pid for each in pool.observer.sitters(training.job))


def parked(pool: Pool, training: Training) -> list[int]:
    """Name the processes of a job, all of which must be parked."""
    pids = pids_of(pool, training)
    assert all(map(is_parked, pids)), "it has given up its slots, and uses them"
    return pids


def starts(pool: Pool, training: Training) -> int:
    """Count the processes that a job has ever had."""
    return sum(each.job == training.job for each in pool.observer.seen())


def check_ends(pool: Pool, trainings: Sequence[Training], alone: Alone) -> None:
    """Let jobs run to their ends: with the bits of a lone run, and with each step made once."""
    for training in trainings:
        training.pace(0.0)
    for training in trainings:
        training.finish()
        assert training.hash == alone(STEPS, *BATCH)
        assert training.diary() == list(range(STEPS)), "no step was lost, and none made twice"
    folded(pool.records())


def test_a_suspended_job_goes_on_where_it_was(tmp_path: Path, alone: Alone) -> None:
    with one_node(tmp_path, 2) as pool:
        check_that_the_same_processes_go_on(pool, alone)
        check_that_all_may_be_killed(pool, alone)
        check_that_one_of_them_may_be_killed(pool, alone)
        check_that_they_end_when_their_node_is_drained(pool, alone)
        check_that_they_end_when_their_job_is_cancelled(pool)


def check_that_the_same_processes_go_on(pool: Pool, alone: Alone) -> None:
    strict = strict_job(pool, "same", gpus=2)
    strict.go_on()
    pids = pids_of(pool, strict)
    assert len(pids) == 2
    for attempt in (1, 2):  # what was kept is used again
        pool.cli("suspend", "same")
        assert parked(pool, strict) == pids
        ended = pool.told(r.RunEnded, strict.job)[-1]
        assert (ended.outcome, ended.attempt, ended.parked) == ("retired", attempt, (0, 1))
        assert ended.parked_bytes > 0
        if attempt == 1:
            assert f"parked on {NODE}" in pool.cli("ls")
            assert f"its workers are parked on node {NODE}" in pool.cli("explain", "same")

        changed = resume(pool, strict)
        assert (changed.kind, changed.slots) == ("resumed", (0, 1))
        assert (changed.attempt, changed.step) == (attempt + 1, ended.step)
        assert pids_of(pool, strict) == pids
        assert not any(map(is_parked, pids))
        assert strict.view["parked"] is None
    check_ends(pool, [strict], alone)
    assert starts(pool, strict) == 2, "no process was started anew"


def check_that_all_may_be_killed(pool: Pool, alone: Alone) -> None:
    """A job that has no parked workers any more goes on from disk."""
    strict = strict_job(pool, "killed", gpus=2)
    ended, since = suspend(pool, strict), pool.last_seq()
    kill(parked(pool, strict))
    pool.wait_record(since, "the news of it", lambda each: isinstance(each, r.ParkingEnded))
    assert strict.view["parked"] is None
    changed = resume(pool, strict)
    assert (changed.kind, changed.step) == ("started", ended.step)

    ended = suspend(pool, strict)
    kill(parked(pool, strict))
    assert resume(pool, strict).step == ended.step, "though its agent may not have seen it"
    check_ends(pool, [strict], alone)
    assert starts(pool, strict) == 6


def check_that_one_of_them_may_be_killed(pool: Pool, alone: Alone) -> None:
    """A job goes on with the worker that is left, which has all of its state."""
    strict = strict_job(pool, "halved", gpus=2)
    for which in (0, 1):
        ended = suspend(pool, strict)
        kill([parked(pool, strict)[which]])
        assert resume(pool, strict).step == ended.step
        pool.wait("two workers", lambda: len(pids_of(pool, strict)) == 2)
    check_ends(pool, [strict], alone)


def kill(pids: Sequence[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def check_that_they_end_when_their_node_is_drained(pool: Pool, alone: Alone) -> None:
    strict = strict_job(pool, "drained")
    ended = suspend(pool, strict)
    pool.cli("drain", NODE)
    pool.wait("the end of parked workers", lambda: not pids_of(pool, strict))
    assert strict.view["parked"] is None
    assert "parked on" not in pool.cli("ls")
    pool.cli("drain", NODE, "--undo")
    changed = resume(pool, strict)
    assert (changed.kind, changed.step) == ("started", ended.step)
    check_ends(pool, [strict], alone)


def check_that_they_end_when_their_job_is_cancelled(pool: Pool) -> None:
    strict = strict_job(pool, "cancelled")
    suspend(pool, strict)
    ask(pool, strict, "cancel")
    pool.wait_end(strict.job, "CANCELLED")
    pool.wait("the end of parked workers", lambda: not pids_of(pool, strict))


@pytest.mark.parametrize("names", ["abcd", pytest.param("abcdefghij", marks=pytest.mark.matrix)])
def test_parked_jobs_outlive_the_death_of_their_agent(
    tmp_path: Path, alone: Alone, names: str
) -> None:
    with one_node(tmp_path, 2) as pool:
        jobs = [strict_job(pool, name) for name in names]
        ends = [suspend(pool, job) for job in jobs]  # which gives its slot to the next
        assert all(parked(pool, job) for job in jobs)
        assert pool.get("/nodes")["items"][0]["parked"] == len(jobs)

        pool.kill(NODE)
        assert not pool.observer.sitters()
        pool.start_agent(NODE)
        pool.wait("the news of it", lambda: not any(job.view["parked"] for job in jobs))
        for job in jobs:
            ask(pool, job, "resume")
        check_ends(pool, jobs, alone)
        for job, ended in zip(jobs, ends, strict=True):
            changed = first_change(pool, job, attempt=2)
            assert changed is not None
            assert (changed.kind, changed.step) == ("started", ended.step)


def wait_turns(pool: Pool, jobs: Sequence[Training]) -> None:
    """Wait until each job has gone on with its parked workers once more."""
    since = pool.last_seq()
    for job in jobs:
        pool.wait_record(since, f"a turn of job {job.job}", is_turn_of(job))


def is_turn_of(job: Training) -> Callable[[r.Record], bool]:
    """Give what tells that a job has been resumed."""
    return lambda each: (
        isinstance(each, r.RunChanged) and each.job == job.job and each.kind == "resumed"
    )


@pytest.mark.matrix
def test_jobs_take_turns_on_two_slots_with_the_processes_they_have(
    tmp_path: Path, alone: Alone
) -> None:
    with one_node(tmp_path, 2, TURNS) as pool:
        jobs = [strict_job(pool, name, gpus=2) for name in ("a", "b", "c")]
        wait_turns(pool, jobs)
        check_ends(pool, jobs, alone)
        for job in jobs:
            kinds = [each.kind for each in pool.told(r.RunChanged, job.job)]
            assert set(kinds[kinds.index("resumed") :]) == {"resumed"}, "none was started anew"


# Between one turn and the next.
MOMENTS: dict[str, Callable[[r.Record], bool]] = {
    "a job is told to leave": lambda each: isinstance(each, r.Aimed) and not each.slots,
    "another gets its slot": lambda each: isinstance(each, r.Aimed) and bool(each.slots),
    "its state is on disk": lambda each: isinstance(each, r.RunEnded) and bool(each.parked),
}


def test_turns_go_on_after_the_death_of_the_server(tmp_path: Path, alone: Alone) -> None:
    with one_node(tmp_path, 2, TURNS) as pool:
        jobs = [strict_job(pool, name, gpus=2, pace_s=SLOWER_S) for name in ("a", "b")]
        wait_turns(pool, jobs)
        for name, moment in MOMENTS.items():
            pool.wait_record(pool.last_seq(), name, moment)
            pool.kill("server")
            pool.start_server()
            wait_turns(pool, jobs)
        check_ends(pool, jobs, alone)

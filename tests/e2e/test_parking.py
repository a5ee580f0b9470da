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

STEPS = 100
SLOW_S = 0.01  # per pass: no job ends before it is told to
LEASE_S = 60.0  # agents go on without the server
NODE = "n1"
TURNS = "gandiva:quantum_s=3"


def one_node(folder: Path, slots: int, policy: str = "") -> Pool:
    """Give a pool with one node; its slots are numbered from 0."""
    pool = Pool(folder, lease_s=LEASE_S, nodes=[NODE], slots=slots)
    pool.server_words += ["--policy", policy] if policy else []
    return pool


def strict_job(pool: Pool, name: str, gpus: int = 1) -> Training:
    return Training(pool, name, steps=STEPS, pace_s=SLOW_S, args="--strict", gpus=gpus)


def parked(pool: Pool, training: Training) -> list[int]:
    """Name the processes of a job, all of which must be parked."""
    pids = sorted(each.pid for each in pool.observer.sitters(training.job))
    assert all(is_parked(pid) for pid in pids), "it gave up its slots, and uses them"
    return pids


def suspend(pool: Pool, training: Training) -> r.RunEnded:
    """Suspend a job as a user, once it has made steps; give the end of its run."""
    training.go_on()
    pool.wait_job(training.job, "steps", lambda view: view["state"] == "RUNNING")
    pool.ask(lambda client: client.post(f"/jobs/{training.job}:suspend"))
    pool.wait_job(training.job, "rest", lambda view: view["state"] == "SUSPENDED")
    assert parked(pool, training)
    ended = pool.told(r.RunEnded, training.job)[-1]
    assert ended.outcome == "retired"
    assert len(training.diary()) == ended.step
    return ended


def resume(pool: Pool, training: Training) -> r.RunChanged:
    """Resume a job as a user; give the first that its new run has told of its workers."""
    attempt = training.view["attempt"] + 1
    pool.ask(lambda client: client.post(f"/jobs/{training.job}:resume"))

    def first() -> r.RunChanged | None:
        told = [each for each in pool.told(r.RunChanged, training.job) if each.attempt == attempt]
        return told[0] if told else None

    found = pool.wait(f"attempt {attempt} of job {training.job}", first)
    training.go_on()
    return found


def resumed(pool: Pool, training: Training) -> int:
    """Count how often a job has gone on with its parked workers."""
    return sum(each.kind == "resumed" for each in pool.told(r.RunChanged, training.job))


def check_ends(pool: Pool, trainings: Sequence[Training], alone: Alone) -> None:
    """Let jobs run to their ends: with the bits of a lone run, and with each step made once."""
    for training in trainings:
        training.pace(0.0)
    for training in trainings:
        training.finish()
        assert training.hash == alone(STEPS)
        assert training.diary() == list(range(STEPS)), "no step was lost, and none made twice"
    folded(pool.records())


def test_a_suspended_job_is_resumed_by_the_same_processes(tmp_path: Path, alone: Alone) -> None:
    with one_node(tmp_path, 2) as pool:
        strict = strict_job(pool, "strict", gpus=2)
        strict.go_on()
        pids = sorted(each.pid for each in pool.observer.sitters(strict.job))
        assert len(pids) == 2

        for attempt in (1, 2):  # what was kept is used again
            pool.cli("suspend", "strict")
            assert parked(pool, strict) == pids
            ended = pool.told(r.RunEnded, strict.job)[-1]
            assert (ended.outcome, ended.attempt, ended.parked) == ("retired", attempt, (0, 1))
            assert ended.parked_bytes > 0
            assert strict.view["parked"]["node"] == NODE
            assert "parked on n1" in pool.cli("ls")
            assert "its workers are parked on node n1" in pool.cli("explain", "strict")
            made = strict.diary()

            changed = resume(pool, strict)
            assert (changed.kind, changed.slots) == ("resumed", (0, 1))
            assert (changed.attempt, changed.step) == (attempt + 1, len(made))
            assert sorted(each.pid for each in pool.observer.sitters(strict.job)) == pids
            assert not any(map(is_parked, pids))
            assert strict.view["parked"] is None

        check_ends(pool, [strict], alone)
        assert sorted(each.pid for each in pool.observer.seen()) == pids, "no process was started anew"


def kill_all(pids: Sequence[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def kill_first(pids: Sequence[int]) -> None:
    os.kill(pids[0], signal.SIGKILL)


def kill_last(pids: Sequence[int]) -> None:
    os.kill(pids[-1], signal.SIGKILL)


@pytest.mark.parametrize("strike", [kill_all, kill_first, kill_last])
def test_a_job_whose_parked_workers_are_killed_loses_no_step(
    strike: Callable[[Sequence[int]], None], tmp_path: Path, alone: Alone
) -> None:
    with one_node(tmp_path, 2) as pool:
        strict = strict_job(pool, "strict", gpus=2)
        ended = suspend(pool, strict)
        since = pool.last_seq()
        strike(parked(pool, strict))
        if strike is kill_all:
            is_told = lambda each: isinstance(each, r.ParkingEnded)  # noqa: E731
            pool.wait_record(since, "the news of it", is_told)
            assert strict.view["parked"] is None
        assert resume(pool, strict).step == ended.step

        ended = suspend(pool, strict)
        strike(parked(pool, strict))
        assert resume(pool, strict).step == ended.step, "though its agent may not have seen it"
        check_ends(pool, [strict], alone)


def test_parked_jobs_outlive_the_death_of_their_agent(tmp_path: Path, alone: Alone) -> None:
    with one_node(tmp_path, 2) as pool:
        jobs = [strict_job(pool, name) for name in ("a", "b", "c", "d")]
        ends = [suspend(pool, job) for job in jobs]  # which gives its slot to the next
        assert all(len(parked(pool, job)) == 1 for job in jobs)
        assert pool.get("/nodes")["items"][0]["parked"] == 4

        pool.kill(NODE)
        assert not pool.observer.sitters()
        pool.start_agent(NODE)
        pool.wait("no parked jobs", lambda: not any(job.view["parked"] for job in jobs))
        for job in jobs:
            pool.ask(lambda client, job=job: client.post(f"/jobs/{job.job}:resume"))
        check_ends(pool, jobs, alone)
        for job, ended in zip(jobs, ends, strict=True):
            changed = next(each for each in pool.told(r.RunChanged, job.job) if each.attempt == 2)
            assert changed.step == ended.step, "it is the state on disk"
            assert not resumed(pool, job)


def test_jobs_that_take_turns_are_resumed_out_of_parked_workers(
    tmp_path: Path, alone: Alone
) -> None:
    with one_node(tmp_path, 1, TURNS) as pool:
        jobs = [strict_job(pool, name) for name in ("a", "b", "c")]
        for job in jobs:
            pool.wait(f"a turn of job {job.job}", lambda job=job: resumed(pool, job))
        check_ends(pool, jobs, alone)
        pids = [each.pid for each in pool.observer.seen()]
        assert len(pids) == len(jobs), "no process was started anew"


def is_told_to_leave(record: r.Record) -> bool:
    return isinstance(record, r.Aimed) and not record.slots


def is_parked_run(record: r.Record) -> bool:
    return isinstance(record, r.RunEnded) and bool(record.parked)


def is_start(record: r.Record) -> bool:
    return isinstance(record, r.Aimed) and record.attempt > 1 and bool(record.slots)


def test_turns_go_on_after_the_death_of_the_server(tmp_path: Path, alone: Alone) -> None:
    with one_node(tmp_path, 1, TURNS) as pool:
        jobs = [strict_job(pool, name) for name in ("a", "b")]
        for moment in (is_told_to_leave, is_parked_run, is_start):
            since = pool.last_seq()
            pool.wait_record(since, moment.__name__, moment)
            pool.kill("server")
            pool.start_server()
            before = {job: resumed(pool, job) for job in jobs}
            for job, count in before.items():
                more = lambda job=job, count=count: resumed(pool, job) > count  # noqa: E731
                pool.wait(f"turns of job {job.job}", more)
        check_ends(pool, jobs, alone)
        assert len(pool.observer.seen()) == len(jobs), "no process was started anew"


def test_parked_workers_end_when_their_node_is_drained(tmp_path: Path, alone: Alone) -> None:
    with one_node(tmp_path, 1) as pool:
        strict = strict_job(pool, "strict")
        ended = suspend(pool, strict)
        pool.cli("drain", NODE)
        pool.wait("the end of parked workers", lambda: not pool.observer.sitters())
        assert strict.view["parked"] is None
        assert "parked on n1" not in pool.cli("ls")

        pool.cli("drain", NODE, "--undo")
        changed = resume(pool, strict)
        assert (changed.kind, changed.step) == ("started", ended.step)
        check_ends(pool, [strict], alone)

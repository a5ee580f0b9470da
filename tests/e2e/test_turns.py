"""Jobs that take turns on one slot, as their agent decides: whatever is killed meanwhile."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from coddl.core.pool import records as r
from tests.e2e.conftest import Alone
from tests.e2e.observer import is_parked
from tests.e2e.pool import Pool
from tests.e2e.test_parking import (
    NODE,
    ask,
    check_ends,
    kill,
    one_node,
    pids_of,
    starts,
    strict_job,
)
from tests.e2e.training import Training

pytestmark = pytest.mark.slow

TURNS = "gandiva:quantum_s=1"


def has_turn(pool: Pool, training: Training) -> bool:
    """Tell whether a job is at work, and not waiting for its turn."""
    return any(not is_parked(pid) for pid in pids_of(pool, training))


def wait_turns(pool: Pool, jobs: Sequence[Training]) -> None:
    """Wait until each job has made some steps more, and has waited in between."""
    for job in jobs:
        job.go_on()
        wait_until_it_waits(pool, job)
    for job in jobs:
        job.go_on()


def wait_until_it_waits(pool: Pool, job: Training) -> None:
    pool.wait(f"job {job.job} to end its turn", lambda: not has_turn(pool, job))


def all_share(jobs: Sequence[Training]) -> bool:
    """Tell whether all of them are on the node's only slot."""
    return all(job.view["slots"] == [0] and job.view["state"] == "RUNNING" for job in jobs)


def sharing_jobs(pool: Pool, *names: str) -> list[Training]:
    """Hand in jobs for the node's only slot, which they share."""
    jobs = [strict_job(pool, name) for name in names]
    pool.wait("all of them to share a slot", lambda: all_share(jobs))
    return jobs


def test_jobs_take_turns_without_decisions_of_the_server(tmp_path: Path, alone: Alone) -> None:
    with one_node(tmp_path, 1, TURNS) as pool:  # where they stay between turns
        jobs = sharing_jobs(pool, "a", "b")
        wait_turns(pool, jobs)
        check_what_is_told(pool, jobs)
        since = pool.last_seq()
        wait_turns(pool, jobs)
        news = [each.record for each in pool.records(since)]
        assert not any(isinstance(each, r.Aimed | r.RunChanged) for each in news)

        pool.kill("server")
        wait_turns(pool, jobs)
        pool.start_server()
        check_ends(pool, jobs, alone)
        assert [starts(pool, job) for job in jobs] == [1, 1], "they have waited where they were"
        assert [job.view["attempt"] for job in jobs] == [1, 1]


def check_what_is_told(pool: Pool, jobs: Sequence[Training]) -> None:
    """`ls`, `explain` and REST tell who has the turn, and what each has had."""

    def shares() -> list[float] | None:
        turns = [job.view["turns"] for job in jobs]
        found = [each["share"] for each in turns if each and each["share"] is not None]
        return found if len(found) == len(jobs) and all(found) else None

    assert 0.5 < sum(pool.wait("the share of each", shares)) <= 1.5  # each since it has come
    views = [job.view["turns"] for job in jobs]
    assert sorted(views[0]["jobs"]) == [job.job for job in jobs[1:]]
    assert sum(bool(each["has_turn"]) for each in views) <= 1
    assert "takes turns" in pool.cli("explain", "a")
    assert "%" in pool.cli("ls")


def test_who_takes_turns_may_be_killed_suspended_and_cancelled(
    tmp_path: Path, alone: Alone
) -> None:
    pool = one_node(tmp_path, 1, TURNS)
    pool.env["CODDL_GPU_MEMORY"] = "0"  # they move out
    with pool:
        jobs = sharing_jobs(pool, "a", "b", "c")
        wait_turns(pool, jobs)
        first, second, third = jobs

        def kill_waiting() -> bool:
            pids = [pid for pid in pids_of(pool, second) if is_parked(pid)]
            kill(pids)
            return bool(pids)

        pool.wait("a worker that waits, to kill it", kill_waiting)
        wait_turns(pool, jobs)
        assert second.view["attempt"] == 1
        assert starts(pool, second) == 2

        wait_until_it_waits(pool, first)
        ask(pool, first, "suspend")
        pool.wait_job(first.job, "rest", lambda view: view["state"] == "SUSPENDED")
        assert first.view["parked"]["node"] == NODE
        wait_turns(pool, [second, third])
        ask(pool, third, "cancel")
        pool.wait_end(third.job, "CANCELLED")
        second.go_on()
        ask(pool, first, "resume")
        pool.wait("both to share a slot", lambda: all_share([first, second]))
        wait_turns(pool, [first, second])
        assert starts(pool, first) == 1

        pool.kill(NODE)
        pool.start_agent(NODE)
        for job in (first, second):
            job.pace(0.0)
            job.finish()
            assert job.hash == alone(200, "--global-batch", "4")


def test_a_job_that_lacks_memory_beside_others_gets_it(tmp_path: Path, alone: Alone) -> None:
    with one_node(tmp_path, 1, TURNS) as pool:  # where they stay between turns
        short = pool.folder / "short"
        first, second = strict_job(pool, "a", more=f"--short {short}"), strict_job(pool, "b")
        pool.wait("both to share a slot", lambda: all_share([first, second]))
        wait_turns(pool, [first, second])
        wait_until_it_waits(pool, first)
        short.touch()
        pool.wait("a worker that runs out of memory", lambda: not short.exists())
        wait_turns(pool, [first, second])
        assert "out of GPU memory beside jobs that wait" in pool.cli("logs", "a")
        assert not pool.told(r.SliceDidNotFit)
        for job in (first, second):
            job.finish()
            assert job.hash == alone(200, "--global-batch", "4")
            assert (job.view["attempt"], job.view["restarts"]) == (1, 0)
        assert (starts(pool, first), starts(pool, second)) == (2, 1)

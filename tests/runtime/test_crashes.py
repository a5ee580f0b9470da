"""kill -9 in the default mode: no pass is repeated, at most one slice of one update is missing."""

import signal
from pathlib import Path

import pytest

from tests.runtime.elastic import Elastic, alone, line_of

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

ARGS = ("--exact", "--epochs", "10")
PACED = (*ARGS, "--pace-s", "0.03")
BATCH = 64

# Workers 0 and 1 train; after some steps 2 joins, or 1 leaves. Who dies, and where.
GROWING = [
    "2:after-arrived",
    "2:after-ready",
    "0:before-ready",
    "2:after-commit",
    "0:before-commit",
    "0:after-commit",
    "0:after-write",
    "2:before-restore",
    "0:before-adopt",
    "2:after-swapped",
]
# With loader processes, which read ahead in the last pass before the change.
READING_AHEAD = ["2:before-ahead", "2:after-ahead", "0:after-ahead", "1:after-ahead"]
SHRINKING = ["1:before-commit", "1:before-swapped", "0:after-commit"]
# Inside the exchange, after it, between it and the update, after the update: what is missing then.
TRAINING = {
    "0:before-exchange": True,
    "1:before-exchange": True,
    "1:after-exchange": False,
    "0:after-apply": False,
    "1:before-apply": False,
}


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, list[float]]:
    return told(alone("net.py", *ARGS))


def told(printed: str) -> dict[str, list[float]]:
    """Give the counters and the weights that a run has printed."""
    return {
        word: [float(each) for each in line_of(printed, word).split()[1:]]
        for word in ("counts", "weights")
    }


def check(job: Elastic, printed: str, undisturbed: dict[str, list[float]]) -> list[int]:
    """Compare a run with one that nobody disturbed; give how many samples it has lost.

    The main worker's random streams die with it: then later epochs have another order.
    """
    outcome = told(printed)
    assert outcome["counts"] == undisturbed["counts"], "passes, rate or EMA differ"
    lost = [event["samples"] for event in job.events if event["is"] == "lost"]
    far = [abs(a - b) for a, b in zip(outcome["weights"], undisturbed["weights"], strict=True)]
    has_main = not any(e["is"] == "exited" and not e["expected"] for e in job.events)
    assert max(far) < (2e-2 if has_main else 0.3), job.story()
    return lost


def wait_struck(job: Elastic, fault: str) -> None:
    """Wait until the worker that was to be killed was, and not by the supervisor."""
    struck = {"is": "exited", "worker": int(fault.partition(":")[0]), "signal": "SIGKILL"}
    job.wait(lambda event: struck.items() <= event.items())


@pytest.mark.parametrize("fault", GROWING)
def test_a_death_while_growing(
    tmp_path: Path, fault: str, undisturbed: dict[str, list[float]]
) -> None:
    with Elastic(tmp_path, "net.py", *PACED, workers=2, env={"FAULT": fault}) as job:
        job.wait_step(5)
        job.ask("resize", workers=3, wait=False)
        wait_struck(job, fault)
        job.settle(3)  # it was to grow all the same
        assert len(check(job, job.finish(), undisturbed)) <= 1


@pytest.mark.parametrize("fault", READING_AHEAD)
def test_a_death_while_data_is_read_ahead(
    tmp_path: Path, fault: str, undisturbed: dict[str, list[float]]
) -> None:
    args = (*PACED, "--loader-workers", "2")
    with Elastic(tmp_path, "net.py", *args, workers=2, env={"FAULT": fault}) as job:
        job.wait_step(5)
        job.ask("resize", workers=3, wait=False)
        wait_struck(job, fault)
        job.settle(3)
        assert len(check(job, job.finish(), undisturbed)) <= 1


@pytest.mark.parametrize("fault", SHRINKING)
def test_a_death_while_shrinking(
    tmp_path: Path, fault: str, undisturbed: dict[str, list[float]]
) -> None:
    with Elastic(tmp_path, "net.py", *PACED, workers=2, env={"FAULT": fault}) as job:
        job.wait_step(5)
        job.ask("resize", workers=1, wait=False)
        wait_struck(job, fault)
        assert len(check(job, job.finish(), undisturbed)) <= 1


@pytest.mark.parametrize(("fault", "loses"), TRAINING.items())
def test_a_death_in_a_pass(
    tmp_path: Path, fault: str, loses: bool, undisturbed: dict[str, list[float]]
) -> None:
    env = {"FAULT": fault, "FIRST_JOINER": "3"}
    with Elastic(tmp_path, "net.py", *PACED, workers=3, env=env) as job:
        lost = check(job, job.finish(), undisturbed)
        wait_struck(job, fault)
    assert len(lost) == loses
    assert all(BATCH // 3 <= samples <= BATCH // 3 + 1 for samples in lost)


@pytest.mark.parametrize("worker", [0, 1])
def test_a_worker_that_missed_an_update_takes_it_from_one_that_made_it(
    tmp_path: Path, worker: int, undisturbed: dict[str, list[float]]
) -> None:
    fault = {"FAULT": f"{worker}:fails-alone"}
    with Elastic(tmp_path, "net.py", *ARGS, workers=2, env=fault) as job:
        assert check(job, job.finish(), undisturbed) == []
        assert job.wait_kind("regrouped")["to"] == 2


def test_a_worker_that_hangs_is_dropped(
    tmp_path: Path, undisturbed: dict[str, list[float]]
) -> None:
    with Elastic(tmp_path, "net.py", *PACED, workers=2, watchdog_s=5.0) as job:
        job.wait_step(5)
        job.kill(1, with_=signal.SIGSTOP)
        job.wait_kind("regrouped")
        assert len(check(job, job.finish(), undisturbed)) <= 1


def test_everybody_dead_goes_on_from_the_newest_checkpoint(
    tmp_path: Path, undisturbed: dict[str, list[float]]
) -> None:
    with Elastic(tmp_path, "net.py", *PACED, workers=2, checkpoint_every_s=0.3) as job:
        job.wait_kind("checkpoint")
        job.kill(*job.pids())
        origin = job.wait(lambda event: event["is"] == "origin" and event["step"] > 0)
        assert origin["where"] == "memory"
        check(job, job.finish(), undisturbed)

"""kill -9 at every point of the protocol; the training ends with the bits of an undisturbed one."""

import signal
from pathlib import Path

import pytest

from tests.runtime.elastic import ROOT, SCRIPTS, Elastic, alone, line_of

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

ARGS = ("--strict", "--epochs", "6", "--pace-s", "0.03")

# Workers 0 and 1 train; after some steps 2 joins, or 1 leaves. Who dies, and where.
GROWING = [
    "2:before-arrived",
    "2:after-arrived",
    "2:before-ready",
    "2:after-ready",
    "0:before-ready",
    "1:after-ready",
    "2:after-commit",
    "0:before-commit",
    "0:after-commit",
    "0:before-write",
    "0:after-write",
    "2:before-load",
    "2:before-restore",
    "2:after-load",
    "0:before-adopt",
    "1:before-swapped",
    "2:after-swapped",
]
SHRINKING = ["1:before-commit", "1:before-swapped", "0:after-commit", "1:after-swapped"]
TRAINING = ["0:before-exchange", "1:after-exchange", "0:after-apply", "1:before-apply"]


@pytest.fixture(scope="module")
def undisturbed() -> str:
    return line_of(alone("net.py", *ARGS[:-2]), "hash")


def wait_struck(job: Elastic, fault: str) -> None:
    """Wait until the worker that was to be killed was, and not by the supervisor."""
    struck = {"is": "exited", "worker": int(fault.partition(":")[0]), "signal": "SIGKILL"}
    job.wait(lambda event: struck.items() <= event.items())


@pytest.mark.parametrize("fault", GROWING)
def test_a_death_while_growing_changes_no_bit(tmp_path: Path, fault: str, undisturbed: str) -> None:
    with Elastic(tmp_path, "net.py", *ARGS, workers=2, env={"FAULT": fault}) as job:
        job.wait_step(5)
        job.ask("resize", workers=3, wait=False)
        wait_struck(job, fault)
        job.settle(3)  # it was to grow all the same
        assert line_of(job.finish(), "hash") == undisturbed, job.story()


@pytest.mark.parametrize("fault", SHRINKING)
def test_a_death_while_shrinking_changes_no_bit(
    tmp_path: Path, fault: str, undisturbed: str
) -> None:
    with Elastic(tmp_path, "net.py", *ARGS, workers=2, env={"FAULT": fault}) as job:
        job.wait_step(5)
        job.ask("resize", workers=1, wait=False)
        wait_struck(job, fault)
        assert line_of(job.finish(), "hash") == undisturbed, job.story()


@pytest.mark.parametrize("fault", TRAINING)
def test_a_death_between_two_steps_changes_no_bit(
    tmp_path: Path, fault: str, undisturbed: str
) -> None:
    env = {"FAULT": fault, "FIRST_JOINER": "3"}
    with Elastic(tmp_path, "net.py", *ARGS, workers=3, env=env) as job:
        assert line_of(job.finish(), "hash") == undisturbed, job.story()
        wait_struck(job, fault)


@pytest.mark.parametrize("worker", [0, 1])
def test_a_worker_that_missed_a_step_takes_it_from_one_that_made_it(
    tmp_path: Path, worker: int, undisturbed: str
) -> None:
    fault = {"FAULT": f"{worker}:fails-alone"}
    with Elastic(tmp_path, "net.py", *ARGS, workers=2, env=fault) as job:
        assert line_of(job.finish(), "hash") == undisturbed, job.story()
        assert job.wait_kind("regrouped")["to"] == 2


@pytest.mark.parametrize("fault", ["0:before-write", "1:before-swapped"])
def test_a_death_while_being_suspended_loses_no_step(
    tmp_path: Path, fault: str, undisturbed: str
) -> None:
    env = {"FAULT": fault, "FIRST_JOINER": "3"}
    with Elastic(tmp_path, "net.py", *ARGS, workers=3, env=env) as job:
        job.wait_step(10)
        job.ask("suspend")
        assert job.wait_kind("suspended")["step"] >= 10
        wait_struck(job, fault)
        job.ask("resume", workers=2)
        origins = [event["step"] for event in job.events if event["is"] == "origin"]
        assert origins[-1] >= 10, job.story()
        assert line_of(job.finish(), "hash") == undisturbed, job.story()


BROKEN = ["import coddl\nthis is no Python\n", "raise SystemExit(3)\n"]


@pytest.mark.parametrize("text", BROKEN)
def test_a_script_that_was_broken_meanwhile_harms_only_new_workers(
    tmp_path: Path, text: str, undisturbed: str
) -> None:
    script = tmp_path / "net.py"
    script.write_text((SCRIPTS / "net.py").read_text())
    env = {"PYTHONPATH": f"{SCRIPTS}:{ROOT}"}
    with Elastic(tmp_path, str(script), *ARGS, workers=2, env=env) as job:
        job.wait_step(5)
        script.write_text(text)
        job.ask("resize", workers=3, wait=False)
        job.wait_kind("problem")
        assert line_of(job.finish(), "hash") == undisturbed, job.story()


def test_a_script_that_prepares_another_job_meanwhile_is_not_let_in(
    tmp_path: Path, undisturbed: str
) -> None:
    script = tmp_path / "net.py"
    script.write_text((SCRIPTS / "net.py").read_text())
    env = {"PYTHONPATH": f"{SCRIPTS}:{ROOT}"}
    with Elastic(tmp_path, str(script), *ARGS, workers=2, env=env) as job:
        job.wait_step(5)
        script.write_text(
            script.read_text()
            .replace("nn.Conv2d(3, 8,", "nn.Conv2d(3, 16,")
            .replace("BatchNorm2d(8)", "BatchNorm2d(16)")
            .replace("Linear(512", "Linear(1024")
        )
        job.ask("resize", workers=3, wait=False)
        assert "does not match the others" in job.wait_kind("problem")["what"]
        assert line_of(job.finish(), "hash") == undisturbed, job.story()


def test_a_worker_that_dies_while_regrouping_is_dropped_too(
    tmp_path: Path, undisturbed: str
) -> None:
    fault = {"FAULT": "1:after-regroup", "FIRST_JOINER": "3"}
    with Elastic(tmp_path, "net.py", *ARGS, workers=3, env=fault) as job:
        job.wait_step(5)
        job.kill(2)
        assert line_of(job.finish(), "hash") == undisturbed, job.story()


def test_a_worker_that_hangs_is_dropped(tmp_path: Path, undisturbed: str) -> None:
    with Elastic(tmp_path, "net.py", *ARGS, workers=2, watchdog_s=5.0) as job:
        job.wait_step(5)
        job.kill(1, with_=signal.SIGSTOP)
        job.wait_kind("regrouped")
        assert line_of(job.finish(), "hash") == undisturbed, job.story()


def test_everybody_dead_goes_on_from_the_newest_checkpoint(
    tmp_path: Path, undisturbed: str
) -> None:
    with Elastic(tmp_path, "net.py", *ARGS, workers=2, checkpoint_every_s=0.3) as job:
        job.wait_kind("checkpoint")
        job.kill(*job.pids())
        origin = job.wait(lambda event: event["is"] == "origin" and event["step"] > 0)
        assert origin["where"] == "memory"
        assert line_of(job.finish(), "hash") == undisturbed, job.story()

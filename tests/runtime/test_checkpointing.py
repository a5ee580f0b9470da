"""What becomes of a job whose state can't be written to disk."""

import pytest

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor.job_status import UNSAVED
from tests.runtime.harness import Start, fake_torch, sockets, start, unwritable, wait_until

__all__ = ["fake_torch", "sockets", "start"]  # fixtures


def test_a_checkpoint_that_fails_is_told_and_training_goes_on(start: Start) -> None:
    job = start(checkpoint_every_s=0.1)
    job.wait_for("checkpoint")
    folder = job.job.folder
    with unwritable(folder):
        assert str(folder) in job.wait_for("unsaved")["what"]
        assert str(folder) in job.ask("status")["unsaved"]["what"]
        step = job.ask("status")["step"]
        job.wait_for_step(step + 10)
    assert job.wait_for("checkpoint")["step"] > step
    wait_until(lambda: job.ask("status")["unsaved"] is None, "a checkpoint")


def test_a_job_that_can_not_be_saved_is_not_suspended_and_trains_on(start: Start) -> None:
    job = start()
    job.wait_for("started")
    job.wait_for_step(5)
    pids = job.pids()
    with unwritable(job.job.folder):
        with pytest.raises(TrainingError, match="keeps training") as refused:
            job.ask("suspend")
        assert str(job.job.folder) in refused.value.because
        job.wait_for_step(job.ask("status")["step"] + 10)
        wait_until(lambda: job.ask("status")["state"] == "RUNNING", "training")
        assert (job.pids(), job.ask("status")["size"]) == (pids, 1)
    job.ask("suspend")
    assert job.told("suspended")[0]["durable"]
    assert job.ask("status")["unsaved"] is None


def test_what_can_not_be_saved_at_the_end_stays_in_memory(start: Start) -> None:
    job = start()
    job.wait_for_step(5)
    with unwritable(job.job.folder):
        job.interrupt()
        assert job.end() == UNSAVED
    (ended,) = job.told("ended")
    assert ended["state"] == "FAILED"
    assert ended["kept_step"] >= 5
    assert ended["saved_step"] is None
    again = start()
    origin = again.wait_for("origin")
    assert (origin["where"], origin["step"]) == ("memory", ended["kept_step"])

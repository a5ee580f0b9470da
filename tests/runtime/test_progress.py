"""A job that makes no step says for how long, and so does one that evaluates."""

import pytest

from tests.runtime.harness import Start, fake_torch, sockets, start

__all__ = ["fake_torch", "sockets", "start"]  # fixtures


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coddl.runtime.supervisor.progress.LOOK_EVERY_S", 0.05)
    monkeypatch.setattr("coddl.runtime.supervisor.progress.STALLED_S", 0.5)
    monkeypatch.setattr("coddl.runtime.supervisor.job_status.STILL_S", 0.2)


def test_a_job_that_hangs_has_no_speed_and_says_for_how_long(start: Start) -> None:
    job = start({"do_at_step": {"0:20": "hang"}})
    job.wait_for("stalled")
    still = job.wait_for("still")
    assert (still["step"], still["state"], still["samples_per_s"]) == (20, "RUNNING", 0.0)
    assert still["still_s"] >= 0.5
    assert job.ask("status")["still_s"] > still["still_s"]
    assert len(job.told("stalled")) == 1


def test_the_watchdog_ends_a_stall(start: Start) -> None:
    job = start({"do_at_step": {"0:20": "hang"}}, watchdog_s=1.0, checkpoint_every_s=0.05)
    job.wait_for("still")
    job.wait_for("restarted")
    job.wait_for_step(25)
    assert job.told("still")


def test_evaluation_is_no_stall_but_its_time_is_shown(start: Start) -> None:
    job = start({"do_at_step": {"0:20": "rest"}})
    job.wait_for("still")
    while job.wait_for("still")["still_s"] < 0.7:
        pass
    assert not job.told("stalled")

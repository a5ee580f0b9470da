"""Changes of a job's group, with stub workers: which workers stay, and since when each was due."""

import os
import signal
import time
from pathlib import Path

import pytest

from coddl.runtime.supervisor.job import Job
from coddl.runtime.supervisor.local_job import local_slots
from tests.runtime.harness import Start, children, fake_torch, sockets, start, wait_until
from tests.runtime.test_supervisor import parent

__all__ = ["fake_torch", "sockets", "start"]  # fixtures

JOB = Job(name="", script=Path(), argv=(), cwd=Path(), env={}, folder=Path())

# GPUs, slots of the workers there are (the oldest first), how many are wanted: their slots
CHOICES: dict[str, tuple[int, list[int], int, list[int]]] = {
    "a first start": (0, [], 3, [0, 1, 2]),
    "growing fills gaps": (0, [3, 1], 4, [3, 1, 0, 2]),
    "shrinking keeps the oldest": (0, [1, 2, 0], 2, [1, 2]),
    "suspending": (0, [0, 1], 0, []),
    "one per GPU: the oldest stays": (2, [1, 0], 1, [1]),
    "two per GPU: one stays on each": (2, [1, 3, 0, 2], 2, [1, 0]),
    "two per GPU: three stay": (2, [1, 3, 0, 2], 3, [1, 0, 3]),
    "a GPU that is free comes first": (3, [0, 3], 3, [0, 1, 2]),
}


@pytest.mark.parametrize(
    ("gpus", "taken", "workers", "slots"), CHOICES.values(), ids=CHOICES.keys()
)
def test_the_oldest_workers_keep_their_slots(
    gpus: int, taken: list[int], workers: int, slots: list[int]
) -> None:
    chosen = local_slots(JOB, workers, gpus, taken)
    assert [slot.number for slot in chosen] == slots
    assert [slot.gpu for slot in chosen] == [f"{slot % gpus}" if gpus else None for slot in slots]


def test_a_shrink_keeps_the_oldest_worker_wherever_it_sits(start: Start) -> None:
    job = start({"do_at_step": {"0:5": "kill"}}, workers=2)
    assert job.wait_for("resized")["members"] == [1, 2]  # worker 2 has the slot of worker 0
    change = job.ask("resize", workers=1)["change"]
    assert (change["members"], change["slots"]) == ([1], [1])
    change = job.ask("resize", workers=3)["change"]
    assert (change["members"], change["slots"]) == ([1, 4, 3], [1, 2, 0])


def test_a_change_names_the_processes(start: Start) -> None:
    job = start()
    first = job.wait_for("started")["pids"]
    both = job.ask("resize", workers=2)["change"]["pids"]  # JSON by now
    assert list(both.values()) == job.pids()
    assert both["0"] == first[0]


def test_a_change_tells_since_when_it_was_due(start: Start) -> None:
    began_s = time.monotonic()
    job = start({"do_at_step": {"1:60": "kill"}}, resizes=((5, 2),))
    first = job.wait_for("started")
    assert first["since"] == "start"
    assert first["serving_s"] < time.monotonic() - began_s
    assert job.wait_for("resized")["since"] == "schedule"
    assert job.wait_for("regrouped")["since"] == "failure"
    assert job.wait_for("resized")["since"] == "failure"  # another worker in its place
    assert job.ask("resize", workers=3)["change"]["since"] == "command"
    job.ask("suspend")
    assert job.wait_for("suspended")["since"] == "command"
    assert job.ask("resume")["change"]["since"] == "command"


def test_a_group_that_breaks_while_all_live_is_due_since_then(start: Start) -> None:
    job = start(workers=2)
    job.wait_for("started")
    workers = job.pids()
    (store,) = set(children(parent(workers[0]))) - set(workers)
    broke_s = time.monotonic()
    os.kill(store, signal.SIGKILL)
    change = job.wait_for("regrouped")
    assert change["since"] == "failure"
    assert change["serving_s"] <= time.monotonic() - broke_s


def test_a_command_during_the_start_is_what_it_is_due_to(start: Start, tmp_path: Path) -> None:
    job = start({"before": f"wait:{tmp_path / 'go'}"})
    job.wait_for("starting")
    job.ask("resize", workers=2, wait=False)
    (tmp_path / "go").touch()
    change = job.wait_for("started")
    assert (change["to"], change["since"]) == (2, "command")


def test_resizes_that_the_training_did_not_live_to_see_are_told(start: Start) -> None:
    job = start({"steps": 100, "joiner": "hang"}, resizes=((5, 2), (50, 3), (500, 4)))
    assert job.end() == 0
    missed = [(e["at_step"], e["workers"], e["step"]) for e in job.told("not-resized")]
    assert missed == [(5, 2, 100), (50, 3, 100), (500, 4, 100)]
    assert job.kinds()[-1] == "ended"


def test_resizes_of_a_job_that_goes_on_later_are_not_missed(start: Start) -> None:
    job = start(resizes=((10**8, 2),))
    job.wait_for_step(5)
    job.interrupt()
    assert job.end() == 130
    assert not job.told("not-resized")


def test_resizes_wait_for_each_other_and_all_are_made(start: Start, tmp_path: Path) -> None:
    job = start({"joiner": f"wait:{tmp_path / 'go'}"}, resizes=((5, 3), (10, 1)))
    job.wait_for_step(30)
    assert not job.told("resized")
    (tmp_path / "go").touch()
    wait_until(lambda: len(job.told("resized")) == 2, "both changes")
    assert [(e["from"], e["to"]) for e in job.told("resized")] == [(1, 3), (3, 1)]

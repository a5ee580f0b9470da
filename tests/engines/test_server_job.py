"""The server of a pool as a job of Slurm: how it hands over, and how it ends."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from coddl.core.errors import UserError
from coddl.engines.engine import EngineUnavailable
from coddl.engines.pool import PoolOptions
from coddl.engines.slurm import server_job
from coddl.engines.slurm.commands import SlurmCommands, SlurmJob
from coddl.engines.slurm.options import SlurmOptions
from coddl.engines.slurm.server_job import end_in_job, server_jobs, start_in_job


class FakeSlurm(SlurmCommands):
    """A queue with jobs of servers; what befalls it is a function of how often it was asked."""

    def __init__(self) -> None:
        super().__init__({})
        self.live: dict[int, str] = {}
        self.done: list[tuple[object, ...]] = []
        self.on_look: Callable[[int], None] = lambda _count: None
        self.refuses = ""
        self._looks = 0

    def jobs(self, name: str) -> list[SlurmJob]:
        assert name.startswith("coddl-server-")
        self._looks += 1
        self.on_look(self._looks)
        return [SlurmJob(number, state) for number, state in self.live.items()]

    def submit(self, words: list[str]) -> int:  # type: ignore[override]
        if self.refuses:
            raise EngineUnavailable("Slurm did not take a job", self.refuses, "sbatch")
        self.done.append(("submit", *words))
        self.live[7] = "RUNNING"
        return 7

    def signal(self, job: int, name: str) -> None:
        self.done.append(("signal", job, name))
        del self.live[job]

    def cancel(self, job: int, *, only_pending: bool = False) -> None:
        del only_pending
        self.done.append(("cancel", job))
        del self.live[job]


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    slurm = FakeSlurm()
    monkeypatch.setattr(server_job, "SlurmCommands", lambda: slurm)
    monkeypatch.setattr(server_job, "LOOK_EVERY_S", 0.0)
    return slurm


def started(folder: Path, time: str = "8:00:00") -> list[str]:
    told: list[str] = []
    slurm = SlurmOptions(partition="gpu", time=time, server_args=("--partition=cpu",))
    options = PoolOptions(folder=folder, engine="slurm", slurm=slurm)
    start_in_job(options, ["coddl", "up"], lambda: True, told.append)
    return told


def test_it_has_its_own_partition_and_time_to_hand_over(tmp_path: Path, slurm: FakeSlurm) -> None:
    assert started(tmp_path) == []
    words = slurm.done[0]
    assert {"--signal=B:USR1@300", "--requeue", "--time=8:00:00"} <= set(words)
    assert words.index("--partition=cpu") > words.index("--partition=gpu"), "the last one holds"
    assert words[-2:] == ("coddl", "up")


def test_a_short_limit_is_handed_over_later_and_said(tmp_path: Path, slurm: FakeSlurm) -> None:
    (note,) = started(tmp_path, "3:00")
    assert "ends after 3 min" in note
    assert "--signal=B:USR1@45" in slurm.done[0]


def test_a_job_that_slurm_refuses_leaves_nothing(tmp_path: Path, slurm: FakeSlurm) -> None:
    slurm.refuses = "Invalid partition name specified"
    with pytest.raises(UserError, match="did not take the server's job\\n  because Invalid"):
        started(tmp_path)
    assert not server_jobs(tmp_path)


def test_it_is_told_to_end_and_so_is_one_that_was_handed_in_just_then(
    tmp_path: Path, slurm: FakeSlurm
) -> None:
    started(tmp_path)

    def look(count: int) -> None:
        if count == 2:  # the first has ended; its successor, handed in before, is there
            slurm.live[8] = "RUNNING"
            assert not (tmp_path / server_job.FILE).exists(), "no other can be handed in"

    slurm.on_look = look
    slurm.done.clear()
    assert end_in_job(tmp_path, lambda _text: None)
    assert slurm.done == [("signal", 7, "USR2"), ("signal", 8, "USR2")]
    assert not end_in_job(tmp_path, lambda _text: None), "there is none any more"


def test_a_successor_that_waits_is_withdrawn(tmp_path: Path, slurm: FakeSlurm) -> None:
    started(tmp_path)
    slurm.live = {7: "RUNNING", 8: "PENDING"}
    slurm.done.clear()
    end_in_job(tmp_path, lambda _text: None)
    assert slurm.done == [("signal", 7, "USR2"), ("cancel", 8)]


def test_what_a_successor_is_handed_in_with_is_what_the_first_was(
    tmp_path: Path, slurm: FakeSlurm
) -> None:
    started(tmp_path)
    words = json.loads((tmp_path / server_job.FILE).read_text())["sbatch"]
    assert ("submit", *words) == slurm.done[0]

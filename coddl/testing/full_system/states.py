"""The states of trainings: what workers hold in memory, and what is saved of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor.checkpoint_store import (
    FoundCheckpoint,
    SavedCheckpoint,
    expired,
    name_of,
)
from coddl.runtime.supervisor.jobdir import check_newest

KEPT: Final = 2  # checkpoints of a job


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """A state of a training; the one it was made from tells whose updates are in it."""

    step: int
    before: "State | None" = None

    def comes_from(self, other: "State") -> bool:
        """Tell whether it is another state, or was made from it."""
        state: State | None = self
        while state is not None and state.step > other.step:
            state = state.before
        return state is other


class JobStates:
    """What is saved of one job, and which attempt may write there."""

    def __init__(self) -> None:
        self.attempt = 0
        self.kept: dict[Path, State] = {}
        self.all: dict[Path, State] = {}  # that were kept: a lead may have found an older one

    @property
    def newest(self) -> Path | None:
        """Give the newest checkpoint."""
        return max(self.kept, key=lambda path: self.kept[path].step, default=None)


class SavedStates:
    """What is saved of all jobs."""

    def __init__(self) -> None:
        self.is_full = False  # what they are saved to
        self._jobs: dict[int, JobStates] = {}

    def of(self, job: int) -> JobStates:
        """Give what is saved of a job."""
        return self._jobs.setdefault(job, JobStates())

    def lead(self, job: int, attempt: int) -> "SimulatedCheckpoints":
        """Open a job's checkpoints for its lead; raises if a newer attempt has them."""
        states = self.of(job)
        check_newest(f"/jobs/{job}", states.attempt, attempt)
        if self.is_full:
            error = OSError("the disk is full")
            raise TrainingError(f"/jobs/{job} can't be written", f"{error}", "room") from error
        states.attempt = attempt
        return SimulatedCheckpoints(self, job, attempt, {})


class SimulatedCheckpoints:
    """The checkpoints of one job, as one process sees them; `Checkpoints` in memory."""

    def __init__(
        self, saved: SavedStates, job: int, attempt: int, images: Mapping[Path, State]
    ) -> None:
        """`images` are those of the node."""
        self._saved, self._states = saved, saved.of(job)
        self._job, self._attempt = job, attempt
        self._images = images

    def save(self, image: Path) -> SavedCheckpoint | None:
        """Make an image durable; None if it is gone."""
        check_newest(f"/jobs/{self._job}", self._states.attempt, self._attempt)
        if (state := self._images.get(image)) is None:
            return None
        if self._saved.is_full:
            what = f"checkpoints can't be kept in /jobs/{self._job}"
            raise TrainingError(what, "the disk is full", "free disk space")
        kept = self._states.kept
        path = Path("/jobs", str(self._job), name_of(state.step))
        kept[path] = self._states.all[path] = state
        newest_first = sorted(kept, key=lambda each: kept[each].step, reverse=True)
        for old in expired(newest_first, path, set[Path](), KEPT):
            del kept[old]
        return SavedCheckpoint(str(path), state.step, 1, 0.0)

    def newest_step(self) -> int:
        """Tell the step of the newest checkpoint; -1 without one."""
        path = self._states.newest
        return -1 if path is None else self._states.kept[path].step

    def newest(self) -> FoundCheckpoint | None:
        """Find the newest checkpoint."""
        path = self._states.newest
        return None if path is None else FoundCheckpoint(path, self.newest_step(), ())

    def local(self, checkpoint: Path) -> Path:
        """Give the path itself: all nodes share the folder."""
        return checkpoint

"""Checkpointing of one job: finds its newest state, and plans when the next image is saved."""

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coddl.runtime.errors import TrainingError
from coddl.runtime.imagefile import UnreadableImage, step_of
from coddl.runtime.supervisor.checkpoint_store import Checkpoints
from coddl.runtime.supervisor.checkpoint_writer import CheckpointWriter, saved_word
from coddl.runtime.supervisor.loop import SupervisorLoop
from coddl.runtime.wire import Message


@dataclass(frozen=True, slots=True)
class InitialState:
    """The state that a group without state starts from."""

    where: Literal["memory", "checkpoint", "scratch"]
    path: Path | None
    step: int
    skipped: tuple[str, ...] = ()  # checkpoints that could not be used, and why


class Checkpointing:
    """Knows the newest state of a job. Images are written to disk by the worker host that has them.

    `stash` holds the images in memory of a job that runs here, which its `writer` saves; a job
    of a pool has none.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        stash: Path | None,
        tell: Callable[[Message], None],
        writer: CheckpointWriter | None = None,
    ) -> None:
        self._tell = tell
        self._stash = stash
        self._writer = writer
        self._checkpoints = checkpoints
        self._origin: InitialState | None = None
        self.saved_step: int | None = None
        self.unsaved: TrainingError | None = None  # why the newest image is not on disk
        self.kept_step: int | None = None  # of an image that was left in memory for the next run

    def look_ahead(self) -> None:
        """Find the newest state before it is needed; what is found counts once."""
        self._origin = self.origin()

    def first_image(self) -> Path | None:
        """Give the image from which a group without state begins, and tell; None: from scratch."""
        origin, self._origin = self._origin or self.origin(), None
        path = None if origin.path is None else str(origin.path)
        self._tell(
            {"is": "origin", "where": origin.where, "step": origin.step}
            | {"path": path, "skipped": list(origin.skipped)}
        )
        return origin.path

    def origin(self) -> InitialState:
        """Find the newest state there is. Memory may be older: of a run on another machine.

        Raises if there are checkpoints, and none of them is whole.
        """
        image = self._newest_image()
        if image is not None and image[0] >= self._checkpoints.newest_step():
            step, path = image
            return InitialState("memory", path, step)
        found = self._checkpoints.newest()
        if found is None:
            return InitialState("scratch", None, 0)
        self.saved_step = found.step
        return InitialState("checkpoint", found.path, found.step, tuple(found.skipped))

    def close(self, *, lose: bool) -> None:
        """Free the memory; unless it may be lost, the newest image is made durable first."""
        if self._writer is not None:
            self._writer.close(wait=True)
        newest = None if lose else self._newest_image()
        if newest is not None and newest[0] > (self.saved_step or 0):
            try:
                self.tell_outcome(saved_word(self._checkpoints.save(newest[1])))
            except TrainingError as error:
                self.tell_outcome({"is": "unsaved", **error.parts()})
                self.kept_step = newest[0]
                return  # what can't be saved is left where it is
        if self._stash is not None:
            shutil.rmtree(self._stash, ignore_errors=True)

    def tell_outcome(self, word: Message) -> None:
        """Tell what became of an image: `saved` or `unsaved`."""
        if word["is"] == "unsaved":
            self.unsaved = TrainingError(word["what"], word["because"], word["try"])
            self._tell(word)
        elif word["step"] is not None:  # or a newer image was taking its place
            self.saved_step, self.unsaved = word["step"], None
            self._origin = None  # what was found before is older
            self._tell({**word, "is": "checkpoint"})

    def _newest_image(self) -> tuple[int, Path] | None:
        found: list[tuple[int, Path]] = []
        for path in self._stash.glob("*.img") if self._stash is not None else ():
            with contextlib.suppress(UnreadableImage):
                found.append((step_of(path), path))
        return max(found, default=None)


class CaptureTimer:
    """Asks for an image every `every_s` seconds while the job trains."""

    def __init__(
        self,
        loop: SupervisorLoop,
        every_s: float,
        ask: Callable[[], None],
        is_saving: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._is_saving = is_saving
        self._every_s = every_s
        self._ask = ask
        self._is_planned = False
        self.is_awaited = False  # an image was asked for and has not come

    def plan(self) -> None:
        """Have one taken in time; again and again does no harm."""
        if not self._is_planned:
            self._is_planned = True
            self._loop.alarm("checkpoint", self._loop.now_s() + self._every_s, self._on_time)

    def take(self) -> None:
        """Have one taken at the next step's end."""
        self.is_awaited = True
        self._ask()

    def _on_time(self) -> None:
        self._is_planned = False  # the next step plans the next one
        if not self._is_saving():
            self.take()

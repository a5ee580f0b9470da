"""Where a job's state is kept while nobody trains: images in memory, checkpoints on disk."""

import contextlib
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coddl.runtime.errors import TrainingError
from coddl.runtime.imagefile import Unreadable, step_of
from coddl.runtime.supervisor.checkpoints import Checkpoints, Saved
from coddl.runtime.supervisor.loop import Loop
from coddl.runtime.wire import Message


@dataclass(frozen=True, slots=True)
class Origin:
    """From where a group without state begins."""

    where: Literal["memory", "checkpoint", "scratch"]
    path: Path | None
    step: int
    skipped: tuple[str, ...] = ()  # checkpoints that could not be used, and why


class Saving:
    """Knows the newest state of a job, and makes images durable in a thread of its own."""

    def __init__(
        self, loop: Loop, stash: Path, checkpoints: Checkpoints, tell: Callable[[Message], None]
    ) -> None:
        self._loop = loop
        self._tell = tell
        self.stash = stash
        self._checkpoints = checkpoints
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._under_way = 0
        self.saved_step: int | None = None

    @property
    def is_busy(self) -> bool:
        return self._under_way > 0

    def origin(self) -> Origin:
        """Find the newest state there is. Memory may be older: of a run on another machine.

        Raises if there are checkpoints, and none of them is whole.
        """
        image = self._newest_image()
        if image is not None and image[0] >= self._checkpoints.newest_step():
            step, path = image
            return Origin("memory", path, step)
        found = self._checkpoints.newest()
        if found is None:
            return Origin("scratch", None, 0)
        self.saved_step = found.step
        return Origin("checkpoint", found.path, found.step, tuple(found.skipped))

    def save(self, image: Path, done: Callable[[], None]) -> None:
        """Make an image durable, and tell; then `done` is called in the loop."""
        self._under_way += 1
        future = self._thread.submit(self._checkpoints.save, image)
        future.add_done_callback(lambda f: self._loop.post(lambda: self._finish(f, done)))

    def close(self, *, lose: bool) -> None:
        """Free the memory; unless it may be lost, the newest image is made durable first."""
        self._thread.shutdown(wait=True)
        newest = None if lose else self._newest_image()
        if newest is not None and newest[0] > (self.saved_step or 0):
            try:
                self._tell_saved(self._checkpoints.save(newest[1]))
            except TrainingError as error:
                self._tell({"is": "problem", **error.parts()})
                return  # what can't be saved is left where it is
        shutil.rmtree(self.stash, ignore_errors=True)

    def _finish(self, future: "Future[Saved | None]", done: Callable[[], None]) -> None:
        self._under_way -= 1
        try:
            self._tell_saved(future.result())
        except TrainingError as error:  # training goes on: the next one may succeed
            self._tell({"is": "problem", **error.parts()})
        done()

    def _tell_saved(self, saved: Saved | None) -> None:
        if saved is not None:  # or a newer image was taking its place
            self.saved_step = saved.step
            about = {"path": str(saved.path), "bytes": saved.bytes_, "seconds": saved.seconds}
            self._tell({"is": "checkpoint", "step": saved.step, **about})

    def _newest_image(self) -> tuple[int, Path] | None:
        found: list[tuple[int, Path]] = []
        for path in self.stash.glob("*.img"):
            with contextlib.suppress(Unreadable):
                found.append((step_of(path), path))
        return max(found, default=None)


class Captures:
    """Asks for an image now and then while the job trains, and has it saved when it comes."""

    def __init__(self, loop: Loop, saving: Saving, every_s: float, ask: Callable[[], None]) -> None:
        self._loop = loop
        self._saving = saving
        self._every_s = every_s
        self._ask = ask
        self._is_planned = False
        self.is_awaited = False  # an image was asked for and has not come

    def plan(self) -> None:
        """Have one taken in time; again and again does no harm."""
        if not self._is_planned:
            self._is_planned = True
            self._loop.alarm("checkpoint", time.monotonic() + self._every_s, self._on_time)

    def take(self) -> None:
        """Have one taken at the next step's end."""
        self.is_awaited = True
        self._ask()

    def _on_time(self) -> None:
        self._is_planned = False  # the next step plans the next one
        if not self._saving.is_busy:
            self.take()

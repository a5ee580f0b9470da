"""Writes the images of one node to disk, and brings checkpoints here, in a thread of its own."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from coddl.runtime.errors import TrainingError
from coddl.runtime.imagefile import UnreadableImage
from coddl.runtime.supervisor.checkpoint_store import Checkpoints, SavedCheckpoint
from coddl.runtime.supervisor.loop import Loop
from coddl.runtime.wire import Message


def saved_word(saved: SavedCheckpoint | None) -> Message:
    """Say what became of a save; no step: a newer image was taking its place."""
    if saved is None:
        return {"is": "saved", "step": None}
    about = {"path": saved.path, "bytes": saved.bytes_, "seconds": saved.seconds}
    return {"is": "saved", "step": saved.step, **about}


class CheckpointWriter:
    """Copies images to the job's folder, one at a time."""

    def __init__(self, loop: Loop, checkpoints: Callable[[], Checkpoints]) -> None:
        self._loop = loop
        self._checkpoints = checkpoints  # made in the thread: the disk may be slow
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._under_way = 0

    @property
    def is_busy(self) -> bool:
        return self._under_way > 0

    def save(self, image: Path, on_word: Callable[[Message], None]) -> None:
        """Make an image durable; `saved` or `unsaved` is said in the loop."""
        self._under_way += 1
        future = self._thread.submit(lambda: self._checkpoints().save(image))
        future.add_done_callback(lambda f: self._loop.post(lambda: self._finish(f, on_word)))

    def fetch(self, checkpoint: Path, on_end: Callable[[Path | Exception], None]) -> None:
        """Bring a checkpoint to this node; its path there, or what failed, is said in the loop."""
        future = self._thread.submit(lambda: self._checkpoints().local(checkpoint))
        future.add_done_callback(lambda f: self._loop.post(lambda: on_end(_outcome(f))))

    def close(self, *, wait: bool) -> None:
        """Take no more; what is under way is finished."""
        self._thread.shutdown(wait=wait)

    def _finish(
        self, future: "Future[SavedCheckpoint | None]", on_word: Callable[[Message], None]
    ) -> None:
        self._under_way -= 1
        try:
            word = saved_word(future.result())
        except TrainingError as error:  # training goes on: the next one may succeed
            word = {"is": "unsaved", **error.parts()}
        on_word(word)


def _outcome(future: "Future[Path]") -> Path | Exception:
    error = future.exception()
    if isinstance(error, OSError | UnreadableImage):
        return error
    return future.result()

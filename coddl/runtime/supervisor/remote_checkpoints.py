"""Checkpoints of a job at a URI, for nodes that share no file system. No torch.

    step-000000120.ckpt   a checkpoint, as in a folder
    attempt-000003        says that an attempt has begun; the newest one may write

There are no locks at a URI. An attempt that was replaced learns it from the names before and after
it writes; one that is replaced in between leaves a whole checkpoint of the same training, at a step
that it has made, which does no harm.

What is read is copied to a folder of the node first: workers map it into memory.
"""

import contextlib
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from coddl.runtime import imagefile
from coddl.runtime.errors import TrainingError
from coddl.runtime.imagefile import UnreadableImage
from coddl.runtime.supervisor import jobdir
from coddl.runtime.supervisor.checkpoint_store import (
    Checkpoints,
    CheckpointStore,
    FoundCheckpoint,
    SavedCheckpoint,
    expired,
    name_of,
    none_readable,
    passed_over,
    sealed,
    sealed_bytes,
    step_in,
    verify,
)
from coddl.runtime.supervisor.slots import JobEnvironment, RemoteFiles

ATTEMPT: Final = "attempt-"
KEPT: Final = 2  # checkpoints


class RemoteCheckpoints:
    """The checkpoints of one job at a URI; `folder` is where this node keeps copies."""

    def __init__(self, files: RemoteFiles, folder: Path, attempt: int) -> None:
        self._files = files
        self._folder = folder
        self._attempt = attempt
        self._broken: set[str] = set()

    def lead(self) -> None:
        """Make the place this attempt's own; raise if a newer one has it."""
        try:
            self._check_attempt(names := self._files.names())
            self._files.write(mark := f"{ATTEMPT}{self._attempt:06}", ())
            for older in names:
                if older.startswith(ATTEMPT) and older < mark:
                    self._files.remove(older)
        except OSError as error:
            raise self._refused(error) from error

    def save(self, image: Path) -> SavedCheckpoint | None:
        """Write a complete image; None if it is gone or a newer one is taking its place.

        Afterwards only the newest checkpoints are left, and none of those found broken.
        """
        started_s = time.monotonic()
        try:
            self._check_attempt(self._files.names())
            with imagefile.held(image) as (fd, header):
                step = int(imagefile.manifest_of(fd, header)["meta"]["step"])
                name = name_of(step)
                self._files.write(name, sealed(fd, header))
            names = self._files.names()
            self._check_attempt(names)
            self._prune(name, names)
        except UnreadableImage:
            return None
        except OSError as error:
            raise self._refused(error) from error
        self._drop_copies()  # all workers that needed them have state by now
        seconds = time.monotonic() - started_s
        return SavedCheckpoint(f"{self._files.uri}/{name}", step, sealed_bytes(header), seconds)

    def newest_step(self) -> int:
        """Tell the step of the newest checkpoint by its name; -1 without one."""
        return max((step for step, _ in self._listed()), default=-1)

    def newest(self) -> FoundCheckpoint | None:
        """Bring the newest whole checkpoint to this node; None if there is none at all."""
        wrong: dict[str, str] = {}
        self._drop_copies()  # of another attempt, perhaps
        for step, name in self._listed():
            try:
                path = self.local(Path(name))
            except UnreadableImage as error:
                wrong[name] = f"{name} {error}"
            except OSError as error:
                raise self._refused(error) from error
            else:
                self._broken = set(wrong)
                return FoundCheckpoint(path, step, passed_over(wrong.values(), step))
        if wrong:
            raise none_readable(self._files.uri, wrong.values())
        return None

    def local(self, checkpoint: Path) -> Path:
        """Give this node's copy of a checkpoint, which a lead may have found on another node."""
        path = self._folder / checkpoint.name
        if path.exists():
            return path
        self._folder.mkdir(parents=True, exist_ok=True)
        half = path.with_suffix(f".{secrets.token_hex(4)}.tmp")
        try:
            self._files.read(checkpoint.name, half)
            verify(half)
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)
        return path

    def _listed(self) -> list[tuple[int, str]]:
        """List the checkpoints there are, the newest first."""
        try:
            names = self._files.names()
        except OSError as error:
            raise self._refused(error) from error
        return _by_step(names)

    def _check_attempt(self, names: Iterable[str]) -> None:
        numbers = (name.removeprefix(ATTEMPT) for name in names if name.startswith(ATTEMPT))
        newest = max((int(number) for number in numbers if number.isdecimal()), default=0)
        jobdir.check_newest(self._files.uri, newest, self._attempt)

    def _prune(self, saved: str, names: Iterable[str]) -> None:
        """Remove all but the newest. A broken one must not push a whole one out."""
        self._broken.discard(saved)
        others = [name for _, name in _by_step(names)]
        for name in expired(others, saved, self._broken, KEPT):
            with contextlib.suppress(OSError):
                self._files.remove(name)
        self._broken.clear()

    def _drop_copies(self) -> None:
        for path in self._folder.glob(jobdir.CHECKPOINTS):
            with contextlib.suppress(OSError):
                path.unlink()

    def _refused(self, error: OSError) -> TrainingError:
        return TrainingError(
            f"checkpoints can't be kept at {self._files.uri}",
            f"{error.strerror or error}",
            "check that the address answers and that the agent's credentials may write there",
        )


def _by_step(names: Iterable[str]) -> list[tuple[int, str]]:
    steps = ((step_in(name), name) for name in names)
    return sorted(((step, name) for step, name in steps if step is not None), reverse=True)


def checkpoints_of_lead(
    folder: Path, remote: RemoteFiles | None, script: Path, attempt: int
) -> Checkpoints:
    """Open a job's checkpoints for its lead; raise if a newer attempt has them."""
    if remote is not None:
        at_uri = RemoteCheckpoints(remote, folder, attempt)
        at_uri.lead()
        return at_uri
    in_folder = CheckpointStore(folder)
    jobdir.lead(folder, script, attempt)
    return in_folder


def checkpoints_of_host(environment: JobEnvironment, attempt: int) -> Checkpoints:
    """Open a job's checkpoints for a node with workers, which may be another than the lead's."""
    if environment.remote is not None:
        return RemoteCheckpoints(environment.remote, environment.folder, attempt)
    return CheckpointStore(environment.folder, attempt=attempt)

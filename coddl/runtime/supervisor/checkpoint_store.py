"""Checkpoint files: images copied from memory to disk, atomically, with checksums. No torch.

A checkpoint is the image's bytes and a footer with their CRC-32. (`remote_checkpoints`: the same at
a URI.)
"""

import os
import re
import secrets
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Set
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

from coddl.runtime import imagefile
from coddl.runtime.errors import TrainingError
from coddl.runtime.imagefile import HEADER_BYTES, ImageHeader, UnreadableImage
from coddl.runtime.supervisor.jobdir import check_attempt, fenced, sync

T = TypeVar("T")
CHUNK_BYTES = 4 << 20
ABANDONED_S: Final = 3600.0  # a save that wrote nothing for so long was killed
_FOOTER = struct.Struct("<4sI")
_FOOTER_MAGIC = b"CRC:"
_TEMPORARY = ".tmp"
_NAME = re.compile(r"step-(\d{9,})\.ckpt")


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint that will survive a crash from now on."""

    path: str  # or its URI
    step: int
    bytes_: int
    seconds: float


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """The newest checkpoint that is whole; `skipped` says what is wrong with each newer one."""

    path: Path
    step: int
    skipped: tuple[str, ...]


class Checkpoints(Protocol):
    """The checkpoints of one job, in a folder or at a URI."""

    def save(self, image: Path) -> SavedCheckpoint | None:
        """Make a complete image durable; None if it is gone or a newer one is taking its place."""
        ...

    def newest_step(self) -> int:
        """Tell the step of the newest checkpoint by its name, whole or not; -1 without one."""
        ...

    def newest(self) -> FoundCheckpoint | None:
        """Find the newest whole checkpoint; None if there is none at all."""
        ...

    def local(self, checkpoint: Path) -> Path:
        """Give where a checkpoint that a lead has found lies on this node, after bringing it here.

        Raises OSError if it can't be brought now, UnreadableImage if it is not whole.
        """
        ...


class CheckpointStore:
    """The checkpoints of one job in one folder. One process writes there, one save at a time.

    With an `attempt`, it may be any process of several: those of an older attempt are refused.
    """

    def __init__(self, folder: Path, keep: int = 2, attempt: int | None = None) -> None:
        assert keep >= 1, keep
        self._folder = folder
        self._attempt = attempt
        self._keep = keep
        self._broken: set[Path] = set()
        if attempt is None:  # else its lead has made the folder, or another has removed it
            self.check()

    def check(self) -> None:
        """Make the folder and write a file into it, or say why checkpoints can't be kept there."""
        probe = self._folder / f".probe{_TEMPORARY}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                probe.write_bytes(_FOOTER_MAGIC)
            finally:
                probe.unlink(missing_ok=True)
        except OSError as error:
            raise self._refused(error) from error

    def save(self, image: Path) -> SavedCheckpoint | None:
        """Copy a complete image to disk; None if it is gone or a newer one is taking its place.

        Afterwards only the newest checkpoints are left, and none of those found broken.
        """
        started_s = time.monotonic()
        self._check_attempt()
        self._sweep()
        try:
            with imagefile.held(image) as (fd, header):
                step = int(imagefile.manifest_of(fd, header)["meta"]["step"])
                path = self._folder / name_of(step)
                self._keep_copy(fd, header, path)
        except UnreadableImage:
            return None
        self._prune(path)
        return SavedCheckpoint(str(path), step, sealed_bytes(header), time.monotonic() - started_s)

    def newest_step(self) -> int:
        """Tell the step of the newest checkpoint by its name, whole or not; -1 without one."""
        return max((step for step, _ in self._listed()), default=-1)

    def newest(self) -> FoundCheckpoint | None:
        """Find the newest whole checkpoint; None if there is none at all. Reads all its bytes."""
        wrong: dict[Path, str] = {}
        for step, path in self._listed():
            try:
                verify(path)
            except UnreadableImage as error:
                wrong[path] = f"{path.name} {error}"
            else:
                self._broken = set(wrong)
                return FoundCheckpoint(path, step, passed_over(wrong.values(), step))
        if wrong:
            raise none_readable(str(self._folder), wrong.values())
        return None

    def local(self, checkpoint: Path) -> Path:
        """Give the path itself: all nodes of the job share the folder."""
        return checkpoint

    def _keep_copy(self, fd: int, header: ImageHeader, path: Path) -> None:
        """Put a copy of a held image at the path, all of it or nothing."""
        # An attempt that was replaced may be copying the same step: not into the same file.
        temporary = path.with_suffix(f".{self._attempt}.{secrets.token_hex(4)}{_TEMPORARY}")
        try:
            _copy(fd, header, temporary)
            with self._fenced():  # copying may have taken long
                temporary.replace(path)
                sync(self._folder)
        except OSError as error:
            raise self._refused(error) from error
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _check_attempt(self) -> None:
        if self._attempt is not None:
            check_attempt(self._folder, self._attempt)

    def _fenced(self) -> AbstractContextManager[None]:
        return nullcontext() if self._attempt is None else fenced(self._folder, self._attempt)

    def _listed(self) -> list[tuple[int, Path]]:
        """List the checkpoints there are, whole or not, the newest first."""
        steps = ((step_in(path.name), path) for path in self._folder.glob("step-*"))
        return sorted(((step, path) for step, path in steps if step is not None), reverse=True)

    def _sweep(self) -> None:
        """Remove what a save that was killed has left."""
        ours, young_s = f".{self._attempt}.", time.time() - ABANDONED_S
        for path in self._folder.glob(f"step-*{_TEMPORARY}"):
            with suppress(OSError):
                # Another node of this attempt may be in the middle of a save.
                is_shared = self._attempt is not None and ours in path.name
                if not (is_shared and path.stat().st_mtime > young_s):
                    path.unlink()

    def _prune(self, saved: Path) -> None:
        """Remove all but the newest. A broken one must not push a whole one out."""
        self._broken.discard(saved)
        others = [path for _, path in self._listed()]
        for path in expired(others, saved, self._broken, self._keep):
            with suppress(OSError):
                path.unlink()
        self._broken.clear()

    def _refused(self, error: OSError) -> TrainingError:
        return TrainingError(
            f"checkpoints can't be kept in {self._folder}",
            f"the system refused to write there: {error.strerror}",
            "free disk space or fix the permissions there, or use another folder",
        )


def name_of(step: int) -> str:
    """Give the name of the checkpoint of a step."""
    return f"step-{step:09}.ckpt"


def step_in(name: str) -> int | None:
    """Read the step off a name; None if it is not that of a checkpoint."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[1])


def sealed(fd: int, header: ImageHeader) -> Iterator[bytes | memoryview]:
    """Give the bytes of a held image, and the footer; each piece is valid until the next."""
    crc = 0
    for chunk in _chunks(fd, header.bytes_):
        crc = zlib.crc32(chunk, crc)
        yield chunk
    # A lock binds only processes that ask for it, so look at what a careless writer would change.
    if ImageHeader.parsed(os.pread(fd, HEADER_BYTES, 0)) != header:
        raise UnreadableImage("was overwritten meanwhile")
    yield _FOOTER.pack(_FOOTER_MAGIC, crc)


def sealed_bytes(header: ImageHeader) -> int:
    """Tell how long the checkpoint of an image is."""
    return header.bytes_ + _FOOTER.size


def _copy(fd: int, header: ImageHeader, to: Path) -> None:
    """Copy a held image and add the footer; on return it is on disk."""
    with to.open("wb") as file:
        for piece in sealed(fd, header):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def verify(path: Path) -> None:
    """Check header, length and checksum; raise `Unreadable` with what is wrong."""
    with imagefile.held(path) as (fd, header):
        length, want = os.fstat(fd).st_size, sealed_bytes(header)
        if length < want:
            raise UnreadableImage(f"is cut short: {length} of {want} bytes")
        magic, crc = _FOOTER.unpack(os.pread(fd, _FOOTER.size, header.bytes_))
        actual = 0
        for chunk in _chunks(fd, header.bytes_):
            actual = zlib.crc32(chunk, actual)
        if magic != _FOOTER_MAGIC or crc != actual or length > want:
            raise UnreadableImage("is damaged: its checksum does not match")


def expired(newest_first: Iterable[T], saved: T, broken: Set[T], keep: int) -> list[T]:
    """Name the checkpoints to remove after one was saved; broken ones do not count as kept."""
    others = [each for each in newest_first if each != saved and each not in broken]
    return [*others[keep - 1 :], *broken]


def passed_over(wrong: Iterable[str], step: int) -> tuple[str, ...]:
    """Say which checkpoints could not be used, and which one was."""
    return tuple(f"{why}; falling back to step {step}" for why in wrong)


def none_readable(where: str, wrong: Iterable[str]) -> TrainingError:
    """Say that there are checkpoints, and none of them is whole."""
    return TrainingError(
        f"no checkpoint in {where} can be read",
        "; ".join(wrong),
        "restore a copy of one, or move them away to start from the beginning",
    )


def _chunks(fd: int, bytes_: int) -> Iterator[memoryview]:
    """Read the first bytes of a file in pieces; each is valid until the next."""
    buffer = memoryview(bytearray(min(CHUNK_BYTES, bytes_)))
    at = 0
    while at < bytes_:
        try:
            read = os.preadv(fd, [buffer[: bytes_ - at]], at)
        except OSError as error:
            raise UnreadableImage(f"can't be read: {error.strerror}") from None
        if not read:
            raise UnreadableImage(f"is cut short: {at} of {bytes_} bytes")
        yield buffer[:read]
        at += read

"""The image's format: a header, a manifest, the tensors' bytes. Without torch.

    0       header, 64 bytes: magic, version, complete, stamp, sizes
    64      manifest, JSON: `meta` (the caller's own), `tree`, `tensors`
    ...     payload, at a multiple of 4096: the tensors, each at a multiple of 64

A writer clears `complete` before it touches anything else and sets it last; it holds an exclusive
lock meanwhile, a reader a shared one. So a torn image is never read, whichever process dies when.
"""

import errno
import fcntl
import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

MAGIC = b"CODDLIMG"
VERSION = 1
PAGE_BYTES = 4096
TENSOR_ALIGN_BYTES = 64

_LAYOUT = struct.Struct("<8sIIQQQQ16x")  # magic, version, complete, stamp, then the three sizes
HEADER_BYTES = _LAYOUT.size
COMPLETE_AT = slice(12, 16)
COMPLETE, INCOMPLETE = b"\x01\0\0\0", bytes(4)

# What network file systems without locks answer.
NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})

Meta = dict[str, Any]  # Any: what JSON can hold; step, epoch and whatever else the writer says


class UnreadableImage(Exception):
    """The file holds no image that can be read now: gone, torn, being written, or none at all."""


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """What the first 64 bytes say. A greater stamp is a newer image."""

    stamp: int
    complete: bool
    manifest_bytes: int
    payload_offset: int
    payload_bytes: int

    @classmethod
    def of(cls, manifest_bytes: int, payload_bytes: int) -> Self:
        """Lay out an image that is not written yet."""
        return cls(
            0,
            False,
            manifest_bytes,
            aligned(HEADER_BYTES + manifest_bytes, PAGE_BYTES),
            payload_bytes,
        )

    @classmethod
    def parsed(cls, data: bytes) -> Self:
        """Read a header, or raise `Unreadable`."""
        if len(data) < HEADER_BYTES:
            raise UnreadableImage(f"is cut short: {len(data)} of at least {HEADER_BYTES} bytes")
        magic, version, complete, *sizes = _LAYOUT.unpack(data)
        if magic != MAGIC:
            raise UnreadableImage("is no image: its first bytes are wrong")
        if version != VERSION:
            raise UnreadableImage(
                f"has format {version}, and this version of coddl reads {VERSION}"
            )
        stamp, manifest_bytes, payload_offset, payload_bytes = sizes
        header = cls(stamp, complete == 1, manifest_bytes, payload_offset, payload_bytes)
        if header != replace(
            cls.of(manifest_bytes, payload_bytes), stamp=stamp, complete=complete == 1
        ):
            raise UnreadableImage("has a damaged header: its sizes contradict each other")
        return header

    @property
    def bytes_(self) -> int:
        """How much of the file the image takes; the file may be longer."""
        return self.payload_offset + self.payload_bytes

    def packed(self) -> bytes:
        return _LAYOUT.pack(
            MAGIC,
            VERSION,
            self.complete,
            self.stamp,
            self.manifest_bytes,
            self.payload_offset,
            self.payload_bytes,
        )


def aligned(bytes_: int, to: int) -> int:
    """Round up to a multiple."""
    return -(-bytes_ // to) * to


def read_header(path: Path) -> ImageHeader:
    """Read the header of an image or a checkpoint, complete or not. Takes no lock."""
    try:
        with path.open("rb", buffering=0) as file:
            return ImageHeader.parsed(file.read(HEADER_BYTES))
    except OSError as error:
        raise UnreadableImage(f"can't be opened: {error.strerror}") from None


def is_complete(path: Path) -> bool:
    """Tell whether an image lies there that was written to its end."""
    try:
        return read_header(path).complete
    except UnreadableImage:
        return False


@contextmanager
def held(path: Path) -> Iterator[tuple[int, ImageHeader]]:
    """Hold a complete image: while the descriptor is held no writer touches it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UnreadableImage(f"can't be opened: {error.strerror}") from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UnreadableImage("is being written") from None
        except OSError as error:
            # Only images in memory are written in place; a checkpoint can be read without a lock.
            if error.errno not in NO_LOCKS:
                raise UnreadableImage(f"can't be locked: {error.strerror}") from None
        header = ImageHeader.parsed(os.pread(fd, HEADER_BYTES, 0))
        if not header.complete:
            raise UnreadableImage("is incomplete: its writer did not finish")
        if (length := os.fstat(fd).st_size) < header.bytes_:
            raise UnreadableImage(f"is cut short: {length} of {header.bytes_} bytes")
        yield fd, header
    finally:
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)  # closing is not enough: a mapping keeps the lock alive
        os.close(fd)


def manifest_of(fd: int, header: ImageHeader) -> dict[str, Any]:
    """Read the manifest of a held image."""
    try:
        manifest: dict[str, Any] = json.loads(os.pread(fd, header.manifest_bytes, HEADER_BYTES))
        manifest["meta"], manifest["tree"], manifest["tensors"]
    except (ValueError, KeyError, TypeError):
        raise UnreadableImage("has a damaged manifest") from None
    return manifest


def meta_of(path: Path) -> Meta:
    """Read what the writer said about an image or a checkpoint."""
    with held(path) as (fd, header):
        meta: Meta = manifest_of(fd, header)["meta"]
        return meta


def step_of(path: Path) -> int:
    """Tell after which step the image was taken."""
    return int(meta_of(path)["step"])


def images(folder: Path) -> list[tuple[Path, ImageHeader]]:
    """List the images in a folder, torn ones too; the newest is last."""
    found = []
    for path in folder.glob("slot-*.img"):
        try:
            found.append((path, read_header(path)))
        except UnreadableImage:
            continue  # a slot that was never written
    return sorted(found, key=lambda entry: entry[1].stamp)


def newest_image(folder: Path) -> Path | None:
    """Give the newest complete image of a folder."""
    return next((path for path, header in reversed(images(folder)) if header.complete), None)

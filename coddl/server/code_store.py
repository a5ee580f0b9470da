"""Stores submitted code as archives, named by their hash. They are never unpacked here."""

import asyncio
import contextlib
import hashlib
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Final

from coddl.api.spec import HASH
from coddl.core.pool.errors import NotFound
from coddl.server.errors import JournalFull, TooLarge, WrongHash
from coddl.server.retention import SIZE_AGE_S, Collected, collect, removed

ARCHIVE_BYTES_MAX: Final = 256 << 20
SUFFIX: Final = ".tar.gz"


class CodeStore:
    """A folder of archives; one is there whole, or not at all."""

    def __init__(self, folder: Path, *, bytes_max: int = ARCHIVE_BYTES_MAX) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        self._lock = threading.Lock()  # an archive is not removed while it is asked for
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left in folder.glob("*.part"):  # by a server that was killed
            left.unlink(missing_ok=True)

    def has(self, name: str) -> bool:
        """Return whether an archive is there."""
        return bool(HASH.fullmatch(name)) and self._path(name).is_file()

    def claim(self, name: str) -> bool:
        """Return whether an archive is there for a job that is about to be submitted.

        It counts as new then, so that it is not removed before the job is known.
        """
        with self._lock:
            if is_there := self.has(name):
                os.utime(self._path(name))
        return is_there

    def collect(
        self, used: Collection[str], age_s: float, most_bytes: int, *, now_s: float
    ) -> Collected:
        """Remove archives that no job uses and that are too old, or too many."""

        def is_needed(name: str) -> bool:
            return not name.endswith(SUFFIX) or name.removesuffix(SUFFIX) in used

        def remove(path: Path) -> bool:
            with self._lock:
                is_old = now_s - path.stat().st_mtime > min(age_s, SIZE_AGE_S)
                return is_old and removed(path)

        return collect(self._folder, is_needed, age_s, most_bytes, now_s=now_s, remove=remove)

    def find(self, name: str) -> Path:
        """Return an archive's file; raises NotFound."""
        if not self.has(name):
            raise NotFound(
                f'code "{name[:64]}" cannot be found', "it was not uploaded", "coddl submit"
            )
        return self._path(name)

    async def keep(self, name: str, chunks: AsyncIterator[bytes]) -> None:
        """Take in an archive; raises TooLarge or WrongHash, and keeps nothing then."""
        if not HASH.fullmatch(name):
            raise WrongHash(
                f'code "{name[:64]}" cannot be kept',
                "its name is not a SHA-256 hash",
                "64 hex digits",
            )
        try:
            await self._write(name, chunks)
        except OSError as error:
            raise JournalFull(
                f'code "{name}" cannot be kept',
                f"{self._folder}: {error.strerror or error}",
                "free space on the server's disk, then try again",
            ) from None

    async def _write(self, name: str, chunks: AsyncIterator[bytes]) -> None:
        handle, part = tempfile.mkstemp(suffix=".part", dir=self._folder)
        try:
            with os.fdopen(handle, "wb") as file:
                digest, size = hashlib.sha256(), 0
                async for chunk in chunks:
                    size += len(chunk)
                    if size > self._bytes_max:
                        raise self._too_large()
                    digest.update(chunk)
                    file.write(chunk)
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())  # may take seconds
            if digest.hexdigest() != name:
                raise WrongHash(
                    f'code "{name}" cannot be kept',
                    f"the SHA-256 of its {size} bytes is {digest.hexdigest()}",
                    "upload it again",
                )
            os.replace(part, self._path(name))
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)

    def _too_large(self) -> TooLarge:
        return TooLarge(
            "the directory cannot be submitted",
            f"its archive has more than {self._bytes_max >> 20} MB",
            "keep data out of it: jobs can read data from where it is",
        )

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{SUFFIX}"

"""Stores submitted code as archives, named by their hash. They are never unpacked here."""

import asyncio
import contextlib
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from coddl.api.spec import HASH
from coddl.core.pool.errors import NotFound
from coddl.server.errors import JournalFull, TooLarge, WrongHash

ARCHIVE_BYTES_MAX: Final = 256 << 20


class CodeStore:
    """A folder of archives; one is there whole, or not at all."""

    def __init__(self, folder: Path, *, bytes_max: int = ARCHIVE_BYTES_MAX) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left in folder.glob("*.part"):  # by a server that was killed
            left.unlink(missing_ok=True)

    def has(self, name: str) -> bool:
        """Tell whether an archive is there."""
        return bool(HASH.fullmatch(name)) and self._path(name).is_file()

    def find(self, name: str) -> Path:
        """Give an archive's file; raises NotFound."""
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
        return self._folder / f"{name}.tar.gz"

"""Where a job runs: its folder with the code that was submitted, the same for all of its nodes.

    JOBS/<job>/folder/        what was submitted, and whatever the job writes beside it
    JOBS/<job>/checkpoints/   its state
    JOBS/<job>/attempt-<n>    says that an attempt has begun
    STATE/agents/<node>/code/ archives, as they were fetched; those used last are kept

The code of a job is unpacked once, by the agent that needs it first. When the job is over, what
is still as it was unpacked is removed; what the job has written there stays.
"""

import contextlib
import fcntl
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from coddl.api.code import BYTES_MAX, digest_of
from coddl.core.errors import UserError
from coddl.core.pool.spec import Launch
from coddl.runtime.supervisor.seats import Home

ARCHIVES_MAX: Final = 16
ARCHIVES_BYTES_MAX: Final = 1 << 30
FILES_MAX: Final = 200_000
TIMEOUT_S: Final = 30.0
CACHES: Final = "__pycache__"

Fetch = Callable[[str, IO[bytes]], None]  # writes the archive of a hash; raises OSError


class BadCode(UserError):
    """An archive can't be what it says it is."""


class Homes:
    """Makes and removes the folders of jobs. For any thread, one job in one thread at a time."""

    def __init__(
        self, jobs: Path, archives: Path, fetch: Fetch, archives_max: int = ARCHIVES_MAX
    ) -> None:
        self._archives_max = archives_max
        self._jobs = jobs
        self._archives = archives
        self._fetch = fetch

    def checkpoints(self, job: int) -> Path:
        """Name the folder of a job's state."""
        return self._jobs / str(job) / "checkpoints"

    def prepare(self, job: int, launch: Launch) -> Path:
        """Have the job's code in place; give the folder it starts in.

        Raises BadCode if the code can't be used, OSError if it can't be had now.
        """
        folder = self._folder(job)
        folder.mkdir(parents=True, exist_ok=True)
        if launch.code:
            with self._alone(job):
                unpacked = self._unpacked(job)
                if not unpacked.exists():
                    with self._archive(launch.code) as archive:
                        unpack(archive, folder)
                    unpacked.write_text(launch.code)
        return folder / launch.folder

    def tidy(self, job: int, launch: Launch, attempt: int, *, forget: bool) -> None:
        """Remove what a job that is over needs no more; `forget`: its state too.

        Nothing, if another node has begun a newer attempt: then that one's end counts.
        """
        base = self._jobs / str(job)
        if not base.exists():
            return
        with contextlib.suppress(OSError), self._alone(job):
            if max(attempts := _attempts(base), default=0) > attempt:
                return
            if launch.code and (path := self._archives / launch.code).exists():
                with path.open("rb") as archive:
                    _remove_unchanged(archive, self._folder(job))
            self._unpacked(job).unlink(missing_ok=True)
            if forget:
                shutil.rmtree(self.checkpoints(job), ignore_errors=True)
            with contextlib.suppress(OSError):
                self._folder(job).rmdir()
            for each in attempts:
                _mark(base, each).unlink(missing_ok=True)
            self._lock(job).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            base.rmdir()

    def _folder(self, job: int) -> Path:
        return self._jobs / str(job) / "folder"

    def _unpacked(self, job: int) -> Path:
        """Name the file that says which code lies in the folder."""
        return self._jobs / str(job) / "unpacked"

    def _lock(self, job: int) -> Path:
        return self._jobs / str(job) / "unpacking"

    @contextlib.contextmanager
    def _alone(self, job: int) -> Iterator[None]:
        """Keep the other agents of the job from its folder."""
        lock = os.open(self._lock(job), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    @contextlib.contextmanager
    def _archive(self, code: str) -> Iterator[IO[bytes]]:
        """Open an archive, fetching it if need be; its content is what its name says."""
        if not code.isalnum():  # it is to be the name of a file
            raise BadCode(f"code {code} can't be fetched", "that is no hash", "submit the job anew")
        self._archives.mkdir(parents=True, exist_ok=True)
        path = self._archives / code
        if not path.exists():
            self._get(code, path)
        os.utime(path)
        self._make_room(path)
        with path.open("rb") as file:
            yield file

    def _get(self, code: str, path: Path) -> None:
        temporary = path.with_name(f".{code}.{os.getpid()}.{id(path):x}.tmp")
        try:
            with temporary.open("w+b") as file:
                self._fetch(code, file)
                file.seek(0)
                if (found := digest_of(file)) != code:
                    raise BadCode(
                        "the submitted code can't be used",
                        f"it was to have the hash {code[:12]}… and has {found[:12]}…",
                        "submit the job anew",
                    )
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def _make_room(self, kept: Path) -> None:
        """Remove the archives that were used longest ago, if there are many."""
        found = []
        for path in self._archives.iterdir():
            with contextlib.suppress(FileNotFoundError):  # others fetch, and tidy up, too
                if path != kept:
                    found.append((path.stat(), path))
        found.sort(key=lambda each: each[0].st_mtime, reverse=True)
        bytes_ = kept.stat().st_size
        for index, (status, path) in enumerate(found, start=1):
            bytes_ += status.st_size
            if index >= self._archives_max or bytes_ > ARCHIVES_BYTES_MAX:
                path.unlink(missing_ok=True)


def note_attempt(home: Home, attempt: int) -> None:
    """Write down, for all nodes, that an attempt has begun."""
    base = home.folder.parent
    with contextlib.suppress(OSError):  # then the job will fail at better words
        base.mkdir(parents=True, exist_ok=True)
        _mark(base, attempt).touch()


def _mark(base: Path, attempt: int) -> Path:
    return base / f"attempt-{attempt}"


def _attempts(base: Path) -> list[int]:
    return [int(path.name.partition("-")[2]) for path in base.glob("attempt-*")]


def unpack(archive: IO[bytes], folder: Path) -> None:
    """Unpack an archive; nothing of it may lie, or point, outside of the folder."""
    try:
        with tarfile.open(fileobj=archive, mode="r:gz") as tar:
            tar.extractall(folder, members=_bounded(tar), filter="data")
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise BadCode("the submitted code can't be used", f"{error}", "submit a folder") from None


def _bounded(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    bytes_ = 0
    for count, member in enumerate(tar, start=1):
        bytes_ += member.size
        if bytes_ > BYTES_MAX or count > FILES_MAX:
            raise ValueError(f"it unpacks to more than {BYTES_MAX >> 20} MB or {FILES_MAX} files")
        yield member


def _remove_unchanged(archive: IO[bytes], folder: Path) -> None:
    """Remove the files that are as the archive has them, and folders that are empty then."""
    folders: list[Path] = []
    with tarfile.open(fileobj=archive, mode="r:gz") as tar:
        for member in tar:
            path = folder / member.name
            if member.isdir():
                folders.append(path)
            elif _is_unchanged(path, member):
                path.unlink(missing_ok=True)
    for cache in folder.rglob(CACHES):
        shutil.rmtree(cache, ignore_errors=True)
    for path in reversed(folders):
        with contextlib.suppress(OSError):
            path.rmdir()


def _is_unchanged(path: Path, member: tarfile.TarInfo) -> bool:
    with contextlib.suppress(OSError):
        found = path.lstat()
        return member.issym() or (found.st_mtime == member.mtime and found.st_size == member.size)
    return False


def fetch_from(server: str, token: str) -> Fetch:
    """Fetch archives from the pool's server."""

    def fetch(code: str, to: IO[bytes]) -> None:
        import httpx

        url = f"{server.rstrip('/')}/api/v1/code/{code}"
        headers = {"Authorization": f"Bearer {token}"}
        try:
            with httpx.stream(
                "GET", url, headers=headers, timeout=TIMEOUT_S, trust_env=False
            ) as answer:
                answer.raise_for_status()
                got = 0
                for piece in answer.iter_raw():
                    got += len(piece)
                    if got > BYTES_MAX:
                        raise OSError(f"{url} has more than {BYTES_MAX >> 20} MB")
                    to.write(piece)
        except httpx.HTTPError as error:
            raise OSError(f"{url}: {error}") from None

    return fetch

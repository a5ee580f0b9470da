"""The directories of jobs: submitted code and checkpoints, the same for all nodes of a job.

    JOBS/<job>/owner.json     whose folder this is: the pool, the job and the hash of its code
    JOBS/<job>/folder/        what was submitted, and whatever the job writes beside it
    JOBS/<job>/checkpoints/   its state
    JOBS/<job>/attempt-<n>    says that an attempt has begun
    STATE/agents/<node>/code/ archives, as they were fetched; those used last are kept

The code of a job is unpacked once, by the agent that needs it first. When the job is over, what
is still as it was unpacked is removed; what the job has written there stays.

Numbers of jobs begin anew with each journal, so a folder's number does not tell whose it is. One
that another job has left is neither used nor removed.
"""

import contextlib
import fcntl
import os
import shutil
import ssl
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Final

import msgspec

from coddl.agent.archives import extract, extracted_at
from coddl.agent.object_store import ObjectFiles, ObjectStore
from coddl.api.code import BYTES_MAX, digest_of
from coddl.api.jobsfolder import write_safely
from coddl.core.errors import UserError
from coddl.core.pool.spec import JobSpec
from coddl.runtime.supervisor.slots import JobEnvironment

ARCHIVES_MAX: Final = 16
ARCHIVES_BYTES_MAX: Final = 1 << 30
FILES_MAX: Final = 200_000
TIMEOUT_S: Final = 30.0
CACHES: Final = "__pycache__"
OWNER: Final = "owner.json"
LOCK: Final = "unpacking"
UNPACKED: Final = "unpacked"  # says which code lies in the folder

Fetch = Callable[[str, IO[bytes]], None]  # writes the archive of a hash; raises OSError


class BadCode(UserError):
    """An archive can't be what it says it is."""


class ForeignFolder(UserError):
    """A job's folder holds what another job has left."""


@dataclass(frozen=True, slots=True)
class DirectoryOwner:
    """The job that a directory belongs to."""

    pool: str
    job: str  # its unique id; empty: of a version that gave none
    code: str

    def __str__(self) -> str:
        code = f"code {self.code[:12]}" if self.code else "no code"
        return f"job {self.job or '(no id)'} of pool {self.pool} with {code}"


class JobDirectories:
    """Makes and removes the folders of jobs. For any thread, one job in one thread at a time."""

    def __init__(
        self, jobs: Path, archives: Path, fetch: Fetch, archives_max: int = ARCHIVES_MAX
    ) -> None:
        self.pool = ""  # whose jobs these are; known once the server has said so
        self.store: ObjectStore | None = None  # that the pool keeps checkpoints at; the same
        self._archives_max = archives_max
        self._jobs = jobs
        self._archives = archives
        self._fetch = fetch

    def checkpoints(self, job: int) -> Path:
        """Name the folder of a job's state; with a store, of copies of it."""
        return self._base(job) / "checkpoints"

    def remote(self, job: int, spec: JobSpec) -> ObjectFiles | None:
        """Give the place of a job's state that all nodes reach; None: they share the folder."""
        if self.store is None:
            return None
        return self.store.files(self.pool, f"{job}-{spec.uid}" if spec.uid else f"{job}")

    def prepare(self, job: int, spec: JobSpec) -> Path:
        """Have the job's code in place; give the folder it starts in.

        Raises BadCode if the code can't be used, ForeignFolder if the folder is another job's,
        OSError if the code can't be had now.
        """
        base, folder, code = self._base(job), self._folder(job), spec.launch.code
        owner = self._owner(spec)
        _check_owner(base, owner)  # before anything is written there
        base.mkdir(parents=True, exist_ok=True)
        with self._alone(job):
            _check_owner(base, owner)
            if not (base / OWNER).exists():
                write_safely(base / OWNER, msgspec.json.encode(asdict(owner)).decode())
            folder.mkdir(exist_ok=True)
            if code and not (unpacked := base / UNPACKED).exists():
                with self._archive(code) as archive:
                    unpack(archive, folder)
                unpacked.write_text(code)
        return folder / spec.launch.folder

    def tidy(self, job: int, spec: JobSpec, attempt: int, *, forget: bool) -> None:
        """Remove what a job that is over needs no more; `forget`: its state too.

        Nothing, if another node has begun a newer attempt: then that one's end counts.
        """
        base, remote = self._base(job), self.remote(job, spec)
        if forget and remote is not None:
            with contextlib.suppress(OSError):
                remote.remove_all()
        if not base.exists():
            return
        with contextlib.suppress(OSError, ForeignFolder):
            _check_owner(base, self._owner(spec))
            with self._alone(job):
                if max(_attempts(base), default=0) <= attempt:
                    self._remove(job, spec.launch.code, forget=forget)

    def _remove(self, job: int, code: str, *, forget: bool) -> None:
        base, folder = self._base(job), self._folder(job)
        if code and folder.exists():
            # Another agent may have unpacked it. Without the archive the code stays: nobody knows
            # which of the files are the job's own.
            with contextlib.suppress(OSError, BadCode), self._archive(code) as archive:
                _remove_unchanged(archive, folder)
        (base / UNPACKED).unlink(missing_ok=True)
        if forget:
            shutil.rmtree(self.checkpoints(job), ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.rmdir()
        for each in _attempts(base):
            _mark(base, each).unlink(missing_ok=True)
        if not _kept(base):
            (base / OWNER).unlink(missing_ok=True)
        (base / LOCK).unlink(missing_ok=True)
        base.rmdir()

    def _base(self, job: int) -> Path:
        return self._jobs / str(job)

    def _folder(self, job: int) -> Path:
        return self._base(job) / "folder"

    def _owner(self, spec: JobSpec) -> DirectoryOwner:
        return DirectoryOwner(self.pool, spec.uid, spec.launch.code)

    @contextlib.contextmanager
    def _alone(self, job: int) -> Iterator[None]:
        """Keep the other agents of the job from its folder."""
        lock = os.open(self._base(job) / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    @contextlib.contextmanager
    def _archive(self, code: str) -> Iterator[IO[bytes]]:
        """Open an archive, fetching it if need be; its content is what its name says."""
        if not code.isalnum():  # it is to be the name of a file
            raise BadCode(
                f"code {code} can't be fetched", "its name is not a hash", "submit the job again"
            )
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
                        f"its hash is {found[:12]}…, not {code[:12]}…",
                        "submit the job again",
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


def _check_owner(base: Path, owner: DirectoryOwner) -> None:
    """Raise ForeignFolder if a job's folder is another's; one that is not there yet is its own."""
    try:
        text = (base / OWNER).read_bytes()
    except FileNotFoundError:
        if not (left := _kept(base)):
            return
        if not owner.job and _unpacked_code(base) in ("", owner.code):
            return  # a version that left no mark has made it
        raise _foreign(base, f"it contains {left[0]} of an unknown owner") from None
    try:
        found = msgspec.json.decode(text, type=DirectoryOwner)
    except msgspec.DecodeError as error:
        raise _foreign(base, f"its {OWNER} can't be read: {error}") from None
    if found != owner:
        raise _foreign(base, f"it belongs to {found}, not to {owner}")


def _foreign(base: Path, because: str) -> ForeignFolder:
    try_ = f"move {base} away and submit the job again"
    return ForeignFolder(f"the job's folder {base} can't be used", because, try_)


def _kept(base: Path) -> list[str]:
    """Name what lies in a job's folder beside our own marks."""
    try:
        names = os.listdir(base)
    except FileNotFoundError:
        return []
    return sorted(name for name in names if name not in (OWNER, LOCK) and name[0] != ".")


def _unpacked_code(base: Path) -> str:
    try:
        return (base / UNPACKED).read_text()
    except FileNotFoundError:
        return ""


def note_attempt(environment: JobEnvironment, attempt: int) -> None:
    """Write down, for all nodes, that an attempt has begun."""
    base = environment.folder.parent
    with contextlib.suppress(OSError):  # then the job will fail at better words
        base.mkdir(parents=True, exist_ok=True)
        _mark(base, attempt).touch()


def newest_attempt(environment: JobEnvironment) -> int:
    """Tell the newest attempt that has begun on this node, or on those that share its folder."""
    return max(_attempts(environment.folder.parent), default=0)


def _mark(base: Path, attempt: int) -> Path:
    return base / f"attempt-{attempt}"


def _attempts(base: Path) -> list[int]:
    return [int(path.name.partition("-")[2]) for path in base.glob("attempt-*")]


def unpack(archive: IO[bytes], folder: Path) -> None:
    """Unpack an archive; nothing of it may lie, or point, outside of the folder."""
    try:
        with tarfile.open(fileobj=archive, mode="r:gz") as tar:
            extract(tar, folder, _bounded(tar))
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise BadCode(
            "the submitted code can't be used", f"{error}", "submit a directory"
        ) from None


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
            if (path := _unpacked_at(member, folder)) is None:
                continue
            if member.isdir():
                folders.append(path)
            elif _is_unchanged(path, member):
                path.unlink(missing_ok=True)
    for cache in folder.rglob(CACHES):
        shutil.rmtree(cache, ignore_errors=True)
    for path in reversed(folders):
        with contextlib.suppress(OSError):
            path.rmdir()


def _unpacked_at(member: tarfile.TarInfo, folder: Path) -> Path | None:
    """Tell where `unpack` has put a member; None if it is not within the folder (any more)."""
    try:
        path = extracted_at(member, folder)
    except tarfile.TarError:
        return None
    # The job may have put a link in the place of a folder.
    return path if path.parent.resolve().is_relative_to(folder.resolve()) else None


def _is_unchanged(path: Path, member: tarfile.TarInfo) -> bool:
    with contextlib.suppress(OSError):
        if member.issym():
            return os.readlink(path) == member.linkname
        found = path.lstat()
        is_same = found.st_mtime == member.mtime and found.st_size == member.size
        return stat.S_ISREG(found.st_mode) and is_same
    return False


def fetch_from(server: str, token: str, tls: ssl.SSLContext | None = None) -> Fetch:
    """Fetch archives from the pool's server."""

    def fetch(code: str, to: IO[bytes]) -> None:
        import httpx

        url = f"{server.rstrip('/')}/api/v1/code/{code}"
        headers = {"Authorization": f"Bearer {token}"}
        try:
            with httpx.stream(
                *("GET", url),
                headers=headers,
                timeout=TIMEOUT_S,
                trust_env=False,
                verify=tls or True,
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

"""The folder with what jobs keep, one folder per job: whose it is, and which nodes share it.

    JOBS/.coddl/id             random, made with the folder: nodes with the same one share it
    JOBS/.coddl/pool           the pool whose jobs lie there
    JOBS/.coddl/nodes/<node>   the boot of the agent of a node, written before it says hello

An id may have been copied, with a disk or a folder. So of two nodes that share a folder, the one
that came later must have read the other's boot there.

A folder of a version that left no marks counts as the pool's own if the pool has had jobs; it is
marked then.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from coddl.core.errors import UserError

MARKS: Final = ".coddl"
NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
WRITTEN_WITHIN_S: Final = 5.0  # by the node that was first to make the folder


@dataclass(frozen=True, slots=True)
class JobsFolder:
    """What lies in a jobs folder."""

    path: str
    id: str  # empty: the folder does not exist yet
    pool: str  # empty: no pool has marked it
    jobs: int  # that have folders there
    nodes: Mapping[str, str] = field(default_factory=dict)  # boots of agents, as they left them


def look(path: Path) -> JobsFolder:
    """Read what lies in a jobs folder; changes nothing."""
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        names = []
    jobs = sum(name.isdecimal() for name in names)
    marks = path / MARKS
    nodes = {each.name: _read(each) for each in marks.glob("nodes/[!.]*")}
    return JobsFolder(str(path), _read(marks / "id"), _read(marks / "pool"), jobs, nodes)


def make(path: Path, node: str, boot: str) -> JobsFolder:
    """Make a jobs folder if there is none, note that a node uses it, and return what it holds.

    Raises UserError if it can't be used.
    """
    try:
        (path / MARKS / "nodes").mkdir(parents=True, exist_ok=True)
        _check_locks(path / MARKS / "lock")
        with contextlib.suppress(FileExistsError), (path / MARKS / "id").open("x") as file:
            file.write(secrets.token_hex(8))
            file.flush()
            os.fsync(file.fileno())
        write_safely(path / MARKS / "nodes" / node, boot)
        until_s = time.monotonic() + WRITTEN_WITHIN_S
        while not (found := look(path)).id and time.monotonic() < until_s:
            time.sleep(0.05)
    except OSError as error:
        raise _unusable(path, f"{error.filename or path}: {error.strerror}") from None
    if not found.id:
        raise _unusable(path, f"{path / MARKS / 'id'} is empty", f"rm {path / MARKS / 'id'}")
    return found


def claim(path: Path, pool: str) -> None:
    """Mark a jobs folder as that of a pool. Raises OSError."""
    write_safely(path / MARKS / "pool", pool)


def write_safely(path: Path, text: str) -> None:
    """Write a small file, all of it or nothing; on return it is on disk. Raises OSError."""
    half = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with half.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def check(found: JobsFolder, pool: str, *, has_had_jobs: bool) -> None:
    """Raise UserError if what lies in a jobs folder is not this pool's.

    A lost journal, or another pool's folder: job 1 must not find what another job 1 has left.
    """
    if not found.jobs or found.pool == pool:
        return
    jobs = "1 job" if found.jobs == 1 else f"{found.jobs} jobs"
    if found.pool:
        because = f"it contains {jobs} of pool {found.pool}, and this is pool {pool}"
    elif not has_had_jobs:
        because = f"it contains {jobs}, and the journal of this pool has none"
    else:
        return
    raise _unusable(
        Path(found.path),
        because,
        f"restore their journal if it was lost; or move {found.path} away; "
        "or another --jobs-dir or --state-dir",
    )


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace").strip()
    except FileNotFoundError:
        return ""


def _check_locks(path: Path) -> None:
    """Raise if files there can't be locked: nodes would unpack into the same folder at once."""
    lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise _unusable(
            path.parent.parent,
            f"its file system can't lock files: {error.strerror}",
            "mount it with locks (NFS: with rpc.statd; Lustre: -o flock), or another --jobs-dir",
        ) from None
    finally:
        os.close(lock)


def _unusable(path: Path, because: str, try_: str = "another --jobs-dir") -> UserError:
    return UserError(f"the jobs folder {path} can't be used", because, try_)

"""Whether a process of this machine still runs."""

import contextlib
import fcntl
from pathlib import Path


def lives(pid: int) -> bool:
    """Return whether a process of this machine runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_locked(path: Path) -> bool:
    """Return whether some process holds the lock of a file."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False

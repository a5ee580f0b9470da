"""A GPU is one agent's alone: a locked file for each, in a folder that a machine's users share.

The kernel drops a lock when the last process that holds it ends: the agent, or its fence, which
outlives it until nothing of its jobs is left. Agents in containers of their own don't see each
other's files; so the server, too, refuses a GPU that another node has.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from coddl.core.errors import UserError

FOLDERS: Final = (Path("/run/lock"), Path("/tmp"))
WAIT_S: Final = 10.0  # for the fence of an agent that has just died
LOOK_EVERY_S: Final = 0.05


def lock_gpus(
    uuids: Iterable[str], folder: Path | None = None, wait_s: float = WAIT_S
) -> list[int]:
    """Lock GPUs for as long as this process lives; give the descriptors.

    Raises UserError if one is another agent's.
    """
    uuids = list(dict.fromkeys(uuids))
    if not uuids:
        return []
    folder = folder or next((each for each in FOLDERS if os.access(each, os.W_OK)), FOLDERS[-1])
    return [_locked(folder / f"coddl-{uuid}.lock", uuid, wait_s) for uuid in uuids]


def _locked(path: Path, uuid: str, wait_s: float) -> int:
    try:
        lock = _opened(path)
    except OSError as error:
        because = f"{path}: {error.strerror}"
        raise UserError(
            f"{uuid} can't be locked", because, f"check the permissions of {path}"
        ) from None
    until_s = time.monotonic() + wait_s
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        if time.monotonic() >= until_s:
            pid = os.pread(lock, 32, 0).decode(errors="replace").strip()
            os.close(lock)
            raise UserError(
                f"{uuid} can't be used",
                f"another agent on this machine uses it (process {pid or 'unknown'})",
                "stop that agent, or set CUDA_VISIBLE_DEVICES to other GPUs",
            )
        time.sleep(LOOK_EVERY_S)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _opened(path: Path) -> int:
    """Open a file that may be another user's; in such a folder O_CREAT is refused for those."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags)
        with contextlib.suppress(FileExistsError):  # another agent made it first
            lock = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(lock, 0o666)  # whatever our umask is
            return lock

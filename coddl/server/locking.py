"""One server per state folder: a lock that the kernel drops when its holder ends, however."""

import fcntl
import os
from pathlib import Path

from coddl.server.errors import PoolTaken


class ServerLock:
    """Held from when it is made until `release`; the file says whose it is."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(self._file, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._file)
            raise PoolTaken(
                "the server cannot start",
                f"another server uses {path.parent}: process {pid}",
                f"coddl down, kill {pid}, or another --state-dir",
            ) from None
        os.ftruncate(self._file, 0)
        os.write(self._file, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Release the folder. The file stays: removing it would race."""
        os.close(self._file)

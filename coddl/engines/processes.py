"""Processes that a pool of this machine keeps running, and what they print."""

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coddl.core.errors import UserError

PROGRAM: Final = (sys.executable, "-P", "-m", "coddl")  # -P: nothing is imported from a folder
PR_SET_PDEATHSIG: Final = 1
BACKOFF_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # before a process is started again
STEADY_S: Final = 60.0  # having run for so long, a process starts again at once
LEAVE_S: Final = 615.0  # agents give their jobs 600 to bring their state to disk
CLOSE_S: Final = 20.0
LOG_BYTES_MAX: Final = 10 << 20
LOGS_KEPT: Final = 2
TAIL_BYTES: Final = 8192
# Variables that point commands to a pool, maybe another one; our processes get options instead.
OF_COMMANDS: Final = ("CODDL_SERVER", "CODDL_TOKEN", "CODDL_TOKEN_FILE", "CODDL_TLS_CA")
ERROR: Final = re.compile(r"^error: (.+)\n  because (.+)\n  try     (.+)$", re.MULTILINE)


@dataclass(slots=True)
class Child:
    """A process that is kept running."""

    name: str
    words: list[str]
    log: Path
    is_tied: bool = True  # it gets a signal to end when this process ends, however that happens
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    starts: int = 0
    failures: int = 0
    due_s: float = 0.0  # when to start it (again)
    begin: int = 0  # where in the log its present run begins

    def start(self, now_s: float) -> int:
        """Start it and give its number."""
        env = {name: value for name, value in os.environ.items() if name not in OF_COMMANDS}
        with self.log.open("ab") as log:
            self.begin = log.tell()
            self.process = subprocess.Popen(
                self.words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.log.parent,
                env=env,
                start_new_session=True,  # Ctrl-C is for the process that keeps it running
                preexec_fn=_tie() if self.is_tied else None,
            )
        self.started_s, self.starts = now_s, self.starts + 1
        return self.process.pid

    def ended(self, now_s: float) -> int | None:
        """Return the exit code of a process that has just ended, and plan its next start."""
        if self.process is None or (code := self.process.poll()) is None:
            return None
        self.process = None
        self.failures = 0 if now_s - self.started_s > STEADY_S else self.failures + 1
        wait_s = BACKOFF_S[min(self.failures, len(BACKOFF_S)) - 1] if self.failures else 0.0
        self.due_s = now_s + wait_s
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if self.process is not None:
            self.process.send_signal(number)

    def end(self, within_s: float = LEAVE_S + CLOSE_S) -> None:
        """End the process and wait for it; kill it if it does not end."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(within_s)
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def words_of_end(self) -> UserError:
        """Return what it said before it ended."""
        said = ""
        with contextlib.suppress(FileNotFoundError), self.log.open("rb") as file:
            file.seek(max(self.begin, self.log.stat().st_size - TAIL_BYTES))
            said = file.read().decode("utf-8", errors="replace")
        if found := ERROR.findall(said):
            return UserError(*found[-1])
        because = " ".join(said.split()[-30:]) or "it printed nothing"
        return UserError(f"the {self.name} failed to start", because, f"see {self.log}")


def _tie() -> Callable[[], None]:
    """Return what a child runs first: it has the kernel signal the child when its parent ends."""
    parent, libc = os.getpid(), ctypes.CDLL(None)

    def tie() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # we ended before the tie held
            os._exit(1)

    return tie


def rotate(log: Path, bytes_max: int = LOG_BYTES_MAX) -> None:
    """Set a long file aside; a process that appends to it goes on in a new one."""
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size <= bytes_max:
            return
        for number in range(LOGS_KEPT, 1, -1):
            with contextlib.suppress(FileNotFoundError):
                log.with_suffix(f".log.{number - 1}").replace(log.with_suffix(f".log.{number}"))
        shutil.copyfile(log, log.with_suffix(".log.1"))
        os.truncate(log, 0)

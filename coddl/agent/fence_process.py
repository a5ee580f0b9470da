"""Starts the fence, tells it until when jobs may run, and restarts it if it dies."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

END_S: Final = 5.0  # that it may take to end with us

log = structlog.get_logger()


class FenceProcess:
    """A process that ends this node's jobs at a deadline, whatever becomes of the agent."""

    def __init__(self, folder: Path, locks: Sequence[int] = ()) -> None:
        """`folder` is the agent's own.

        `locks` are descriptors that the fence holds too: while something of a job is left, no other
        agent may have its GPU.
        """
        self._folder = folder
        self._locks = locks
        self._at_s: float | None = None
        self._process = self._started()

    def set(self, at_s: float) -> None:
        """Let jobs run until then, by the clock of leases."""
        self._at_s = at_s
        self._tell()

    def look(self) -> None:
        """Start it again if it has died."""
        if (code := self._process.poll()) is None:
            return
        log.warning("fence_restarted", code=code)
        self._process.__exit__(None, None, None)
        self._process = self._started()
        if self._at_s is not None:
            self._tell()

    def close(self) -> None:
        """End it; before that it ends what is left of jobs."""
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            process.kill()

    def _started(self) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "coddl.agent.fence", str(os.getpid()), str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            bufsize=0,
            pass_fds=self._locks,
            start_new_session=True,  # what stops the agent's group must not stop it
        )
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        return process

    def _tell(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `look` will see that it is gone
            if self._process.stdin.write(f"{self._at_s}\n".encode()) is None:
                self._process.kill()  # it has not read for thousands of beats

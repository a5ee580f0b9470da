"""The supervisor's side of the zygote: starts it, asks it to fork, hears who has exited."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coddl.runtime.supervisor.loop import PIECE_BYTES, Channel, LogPipe, Loop
from coddl.runtime.wire import Message, encoded

LAST_WORDS: Final = 40  # lines of the zygote's stderr that are kept


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What the workers of a job run in."""

    python: str
    cwd: Path
    env: Mapping[str, str]


class Pipes:
    """What the supervisor keeps of a fork: its control socket and its output."""

    def __init__(self) -> None:
        self.control, self._control = socket.socketpair()
        self.stdout, self._stdout = os.pipe()
        self.stderr, self._stderr = os.pipe()

    def theirs(self) -> tuple[int, int, int]:
        """Give the ends that the fork gets: stdout, stderr, control."""
        return self._stdout, self._stderr, self._control.fileno()

    def close_theirs(self) -> None:
        os.close(self._stdout)
        os.close(self._stderr)
        self._control.close()


class WarmPool:
    """One zygote and the store among its children; `on_message` hears warm, forked, exited, lost.

    The kernel kills the zygote when the *thread* that called `start` ends.
    """

    def __init__(
        self, loop: Loop, interpreter: Interpreter, on_message: Callable[[Message], None]
    ) -> None:
        self._loop = loop
        self._interpreter = interpreter
        self._on_message = on_message
        self._requests: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: LogPipe | None = None
        self._store: Channel | None = None
        self.last_words: list[str] = []

    def start(self) -> None:
        """Start the zygote; `warm` or `lost` follows."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        job = self._interpreter
        self._process = subprocess.Popen(
            [job.python, "-P", "-m", "coddl.runtime.supervisor.zygote", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=job.cwd,
            env=dict(job.env),
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # a Ctrl-C in the terminal is the supervisor's to handle
        )
        theirs.close()
        assert self._process.stderr is not None
        self.last_words.clear()
        self._stderr = LogPipe(self._loop, os.dup(self._process.stderr.fileno()), self._keep)
        self._process.stderr.close()
        self._requests = ours
        self._loop.watch(ours, self._read)

    def fork(self, worker: int, argv: Sequence[str], env: Mapping[str, str]) -> Pipes:
        """Fork a worker that runs the script."""
        pipes = Pipes()
        cwd = str(self._interpreter.cwd)
        request = {"do": "fork", "worker": worker, "argv": argv, "cwd": cwd, "env": env}
        self._ask(request, pipes.theirs())
        pipes.close_theirs()
        return pipes

    def rendezvous(self, port: int) -> None:
        """Host a store; `rendezvous` with its port or an error follows, `storeless` if it dies."""
        if self._store is not None:
            self._store.close()
        ours, theirs = socket.socketpair()
        self._store = Channel(
            self._loop, ours, self._on_message, lambda: self._on_message({"is": "storeless"})
        )
        self._ask({"do": "rendezvous", "port": port}, (theirs.fileno(),))
        theirs.close()

    def kill(self, worker: int, signal_: signal.Signals = signal.SIGKILL) -> None:
        """Send a worker a signal, if it still lives."""
        self._ask({"do": "kill", "worker": worker, "signal": int(signal_)})

    def close(self) -> None:
        """End the zygote, and with it whatever it has forked."""
        if self._store is not None:
            self._store.close()
        if self._requests is not None:
            self._loop.forget(self._requests)
            self._requests.close()  # the zygote kills its children's groups at this, and leaves
            self._requests = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=2)
            self._process.kill()
            self._process.wait()
        if self._stderr is not None:
            self._stderr.finish()

    def _ask(self, request: Message, descriptors: Sequence[int] = ()) -> None:
        while self._requests is not None:
            try:
                packet, flags = [encoded(request)], socket.MSG_DONTWAIT
                socket.send_fds(self._requests, packet, list(descriptors), flags)
                return
            except BlockingIOError:
                self._make_way(self._requests)
            except (BrokenPipeError, ConnectionResetError):
                return  # `lost` will be told

    def _make_way(self, requests: socket.socket) -> None:
        """Wait until the zygote reads; what it says may be what keeps it from that."""
        readable, *_ = select.select([requests], [requests], [])
        if readable and (packet := requests.recv(PIECE_BYTES)):
            self._loop.post(lambda: self._on_message(json.loads(packet)))

    def _read(self) -> None:
        assert self._requests is not None
        try:
            packet = self._requests.recv(PIECE_BYTES)
        except ConnectionResetError:
            packet = b""
        if packet:
            self._on_message(json.loads(packet))
            return
        self.close()
        assert self._process is not None
        self._on_message({"is": "lost", "code": self._process.returncode})

    def _keep(self, line: str) -> None:
        self.last_words = [*self.last_words, line][-LAST_WORDS:]

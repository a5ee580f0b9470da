"""The supervisor's side of a fork server: starts it, asks it to fork, reads which forks exited."""

import contextlib
import errno
import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from coddl.runtime.supervisor.loop import PIECE_BYTES, Channel, LogPipe, Loop
from coddl.runtime.wire import Message, encoded

END_S: Final = 6.0  # longer than a fork server takes to end what it has forked, however busy it is
COLD_END_S: Final = 2.0  # for one that imports: it has no children, and does not look up
LAST_WORDS: Final = 40  # lines of the fork server's stderr that are kept
FORK_FAILED: Final = -signal.SIGKILL  # not the script's fault: told as if the system had killed it


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What the workers of a job run in."""

    python: str
    cwd: Path
    env: Mapping[str, str]


class ForkedServer(Protocol):
    """A fork server that was forked from a warm interpreter, as the interpreter's owner sees it."""

    def release(self) -> None:
        """Note that the fork server has ended."""
        ...

    def last_words(self) -> tuple[int, list[str]]:
        """Give the exit code of the warm interpreter and its last lines of output."""
        ...


class ForkServerFactory(Protocol):
    """Makes fork servers of jobs by forking a warm interpreter."""

    def fork_for_job(
        self, interpreter: Interpreter, requests: socket.socket, stderr: int
    ) -> ForkedServer:
        """Fork it; `warm`, or its end, arrives at the other end of `requests`."""
        ...


class WorkerPipes:
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


class ForkServerClient:
    """One fork server and its rendezvous store; `on_message` gets warm, forked, exited, lost.

    The fork server is a process of its own or, with a `factory`, a fork of a warm interpreter. The
    kernel kills it when the *thread* ends that called `start` (or that started the interpreter).
    """

    def __init__(
        self,
        loop: Loop,
        interpreter: Interpreter,
        on_message: Callable[[Message], None],
        factory: ForkServerFactory | None = None,
    ) -> None:
        self._loop = loop
        self._interpreter = interpreter
        self._on_message = on_message
        self._factory = factory
        self._forked_server: ForkedServer | None = None
        self.is_warm = False  # or was, until it ended
        self._requests: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: LogPipe | None = None
        self._store: Channel | None = None
        self._pending_forks: dict[int, tuple[Message, WorkerPipes]] = {}  # until it is warm
        self.last_words: list[str] = []

    def start(self) -> None:
        """Start the fork server; `warm` or `lost` follows."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stderr, their_stderr = os.pipe()
        self.last_words.clear()
        self.is_warm = False
        self._stderr = LogPipe(self._loop, stderr, self._keep)
        self._requests = ours
        self._loop.watch(ours, self._read)
        try:
            if self._factory is not None:
                self._forked_server = self._factory.fork_for_job(
                    self._interpreter, theirs, their_stderr
                )
            else:
                self._process = self._spawned(theirs.fileno(), their_stderr)
        finally:
            theirs.close()
            os.close(their_stderr)

    def _spawned(self, requests: int, stderr: int) -> "subprocess.Popen[bytes]":
        job = self._interpreter
        return subprocess.Popen(
            [job.python, "-P", "-m", "coddl.runtime.supervisor.fork_server", str(requests)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            cwd=job.cwd,
            env=dict(job.env),
            pass_fds=[requests],
            start_new_session=True,  # a Ctrl-C in the terminal is the supervisor's to handle
        )

    def fork(
        self,
        worker: int,
        argv: Sequence[str],
        env: Mapping[str, str],
        cpus: Sequence[int] = (),
    ) -> WorkerPipes:
        """Fork a worker that runs the script, on these cores if there are any named."""
        pipes = WorkerPipes()
        request = {"do": "fork", "worker": worker, "argv": argv, "env": env, "cpus": cpus}
        request["cwd"] = str(self._interpreter.cwd)
        if self.is_warm:
            self._fork(request, pipes)
        else:  # what a fork server that imports is sent can't be taken back
            self._pending_forks[worker] = request, pipes
        return pipes

    def _fork(self, request: Message, pipes: WorkerPipes) -> None:
        asked = self._ask(request, pipes.theirs())
        pipes.close_theirs()
        if not asked:
            self._say_exited(request["worker"], FORK_FAILED, "its arguments are too long")

    def _say_exited(self, worker: int, code: int, because: str) -> None:
        ended = {"is": "exited", "worker": worker, "code": code, "because": because}
        self._loop.post(lambda: self._on_message(ended))

    def fork_for_job(self, interpreter: Interpreter, requests: int, stderr: int) -> None:
        """Fork the fork server of a job, which takes its requests over that descriptor."""
        about = {"env": dict(interpreter.env), "cwd": str(interpreter.cwd)}
        self._ask({"do": "zygote", **about}, (stderr, requests))

    def rendezvous(self, host: str, port: int) -> None:
        """Host a store; `rendezvous` with its port or an error follows, `storeless` if it dies."""
        if self._store is not None:
            self._store.close()
        ours, theirs = socket.socketpair()
        self._store = Channel(
            self._loop, ours, self._on_message, lambda: self._on_message({"is": "storeless"})
        )
        self._ask({"do": "rendezvous", "host": host, "port": port}, (theirs.fileno(),))
        theirs.close()

    def kill(self, worker: int, signal_: int = signal.SIGKILL) -> None:
        """Send a worker a signal, if it still lives; one that is not forked yet never will be."""
        if (pending := self._pending_forks.pop(worker, None)) is not None:
            pending[1].close_theirs()
            self._say_exited(worker, -signal_, "it was ended before it was started")
        else:
            self._ask({"do": "kill", "worker": worker, "signal": int(signal_)})

    @property
    def has_ended(self) -> bool:
        """Tell whether its own process is gone, though that may not have been told yet."""
        return self._process is not None and self._process.poll() is not None

    def close(self) -> int:
        """End the fork server, and with it whatever it has forked; give its exit code, if known."""
        if self._store is not None:
            self._store.close()
        for _, pipes in self._pending_forks.values():
            pipes.close_theirs()
        self._pending_forks.clear()
        if self._requests is not None:
            self._loop.forget(self._requests)
            self._requests.close()  # at this it kills its children's groups, and exits
            self._requests = None
            if self._forked_server is not None:
                self._forked_server.release()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S if self.is_warm else COLD_END_S)
            self._process.kill()
            self._process.wait()
        if self._stderr is not None:
            self._stderr.finish()
        return self._process.returncode if self._process is not None else -signal.SIGKILL

    def _ask(self, request: Message, descriptors: Sequence[int] = ()) -> bool:
        """Send a request; False if it is too large. If the fork server is gone, `lost` follows."""
        while self._requests is not None:
            try:
                packet, flags = [encoded(request)], socket.MSG_DONTWAIT
                socket.send_fds(self._requests, packet, list(descriptors), flags)
                return True
            except BlockingIOError:
                self._make_way(self._requests)
            except (BrokenPipeError, ConnectionResetError):
                return True
            except OSError as error:
                if error.errno != errno.EMSGSIZE:
                    raise
                return False
        return True

    def _make_way(self, requests: socket.socket) -> None:
        """Wait until the fork server reads; what it says may be what keeps it from that."""
        readable, *_ = select.select([requests], [requests], [])
        with contextlib.suppress(ConnectionResetError):
            if readable and (packet := requests.recv(PIECE_BYTES)):
                self._loop.post(lambda: self._hear(json.loads(packet)))

    def _read(self) -> None:
        assert self._requests is not None
        try:
            packet = self._requests.recv(PIECE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return  # it was read to make way
        except ConnectionResetError:
            packet = b""
        if packet:
            self._hear(json.loads(packet))
            return
        code = self.close()
        if self._forked_server is not None:  # the warm interpreter may have ended, too
            code, words = self._forked_server.last_words()
            self.last_words = self.last_words or words
        self._on_message({"is": "lost", "code": code})

    def _hear(self, message: Message) -> None:
        if message["is"] == "warm":
            self.is_warm = True
            pending, self._pending_forks = self._pending_forks, {}
            for request, pipes in pending.values():
                self._fork(request, pipes)
        self._on_message(message)

    def _keep(self, line: str) -> None:
        self.last_words = [*self.last_words, line][-LAST_WORDS:]

"""The part of a job that runs on one node: its fork server, its workers, their images.

A worker host takes requests (`do`) and sends messages (`on_word`); ADR 0007 has the table. Its
lead may be in the same loop (`coddl run`) or on another node (`job_host`, `remote_worker_host`).
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, Self

from coddl.runtime.supervisor import job_errors
from coddl.runtime.supervisor.checkpoint_writer import CheckpointWriter
from coddl.runtime.supervisor.fork_server_client import (
    ForkServerClient,
    ForkServerFactory,
    Interpreter,
)
from coddl.runtime.supervisor.loop import Channel, LogPipe, Loop
from coddl.runtime.supervisor.worker_history import WorkerHistory
from coddl.runtime.wire import Message

LOST: Final = -signal.SIGKILL  # the code of a worker whose end was not reported
LOOK_EVERY_S: Final = 0.01  # at processes whose fork server is gone
UNKNOWN_WAIT_S: Final = 2.0  # for one whose number we never heard
FORK_SERVERS_MAX: Final = 3  # that may be killed in a row before one is warm


class WorkerHost(Protocol):
    """A worker host as its lead sees it, here or on another node."""

    def open(self) -> None:
        """Start it, or connect to it; words tell what came of it."""
        ...

    def do(self, request: Message) -> None:
        """Have something done; words tell what came of it."""
        ...

    def close(self) -> None:
        """End everything there; `is_closed` when that is done."""
        ...

    def leave(self) -> None:
        """Disconnect from it; its workers run on."""
        ...

    @property
    def is_closed(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class WorkerHostConfig:
    """The settings of a worker host."""

    interpreter: Interpreter
    stash: Path  # of the images its workers write
    host: str = "127.0.0.1"  # how workers and the store here are reached
    cpus: Mapping[int, Sequence[int]] = field(default_factory=dict)  # slot -> its cores
    factory: ForkServerFactory | None = None


@dataclass(frozen=True, slots=True)
class ProcessHandle:
    """A process, a child of ours or not: its number may be given to another one."""

    pid: int
    start_ticks: int | None  # None: it was gone before we could look

    @classmethod
    def of(cls, pid: int) -> Self:
        """Take down which process has this number now."""
        found = _found(pid)
        return cls(pid, None if found is None else found[1])

    @property
    def lives(self) -> bool:
        """Tell whether it runs; one that only waits for its parent's attention does not."""
        found = _found(self.pid)
        return found is not None and found == ("alive", self.start_ticks)

    def kill_group(self) -> None:
        """Kill it and whatever it has started, if it leads a group; its own may outlive it."""
        found = _found(self.pid)
        if found is None or found[1] == self.start_ticks:  # else its number is another's now
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


@dataclass(slots=True)
class _HostedWorker:
    """A worker's history, its process and the connections to it."""

    history: WorkerHistory
    channel: Channel
    logs: tuple[LogPipe, LogPipe]
    process: ProcessHandle | None = None  # once it is forked
    last_lines: dict[str, str] = field(default_factory=dict)  # by stream

    def close(self) -> None:
        """Hear the last words of a process that is gone."""
        for log in self.logs:
            log.finish()
        self.channel.drain()
        self.channel.close()


class LocalWorkerHost:
    """Runs a job's workers on this node, and records what a new lead must know of them.

    `on_log` gets what they print: history of the worker, stdout or stderr, a line.
    """

    def __init__(
        self,
        loop: Loop,
        config: WorkerHostConfig,
        writer: CheckpointWriter,
        on_word: Callable[[Message], None],
        on_log: Callable[[WorkerHistory, str, str], None],
    ) -> None:
        self._loop = loop
        self._config = config
        self._writer = writer
        self._say = on_word
        self._log = on_log
        self._fork_server = ForkServerClient(
            loop, config.interpreter, self._on_fork_server, config.factory
        )
        self._workers: dict[int, _HostedWorker] = {}
        self._is_dead = False  # its interpreter can't run workers
        self._killed_fork_servers = 0  # in a row, before they were warm
        self._store: str | None = None  # the one it hosts, as its lead calls it
        self.generation = 0  # the highest that workers here were told
        self.is_closed = False
        self.newest_worker = -1  # the highest number heard of

    def open(self) -> None:
        """Start the fork server; `warm` or `lost` follows."""
        self._fork_server.start()

    @property
    def histories(self) -> list[WorkerHistory]:
        """The histories of all workers here, the oldest first."""
        return [worker.history for worker in self._workers.values()]

    def do(self, request: Message) -> None:
        """Take a request; for what is not here any more nothing is done."""
        match request["do"]:
            case "start":
                history = WorkerHistory(request["worker"], request["slot"], request["gpu"])
                self._start(history, request["argv"], request["env"])
            case "unpark" | "begin turn" as do:
                self._tell([request["worker"]], {"do": do})
            case "tell":
                self._tell(request["to"], request["word"])
            case "kill":
                self.kill(request["worker"], request["signal"])
            case "rendezvous":
                self._store = request["store"]
                self._fork_server.rendezvous(self._config.host, request["port"])
            case "save":
                self._writer.save(Path(request["path"]), self._say)
            case unknown:
                raise AssertionError(unknown)

    def kill(self, number: int, signal_: int = signal.SIGKILL) -> None:
        """Send a worker a signal, if it still lives."""
        self._fork_server.kill(number, signal_)

    def kill_all(self) -> None:
        """Kill every worker; `exited` is said of each when it is gone."""
        for number in self._workers:
            self.kill(number)

    def leave(self) -> None:
        raise AssertionError("what runs here has no other lead")

    def close(self) -> None:
        """End everything that runs."""
        self.is_closed = True
        self._fork_server.close()
        for number, worker in self._workers.items():
            self._loop.silence((self, number))
            if worker.process is not None:
                worker.process.kill_group()
            worker.close()

    def _start(self, history: WorkerHistory, argv: Sequence[str], env: Mapping[str, str]) -> None:
        number, config = history.worker, self._config
        self.newest_worker = max(self.newest_worker, number)
        if self._is_dead:
            self._say({"is": "exited", "worker": number, "code": LOST})
            return
        cpus = config.cpus.get(history.slot, ())
        mine = {"CODDL_STASH": str(config.stash), "CODDL_HOST": config.host}
        mine["CODDL_CPUS"] = str(len(cpus)) if cpus else ""
        try:
            pipes = self._fork_server.fork(number, argv, {**env, **mine}, cpus)
        except OSError as error:  # no descriptor is left
            because = error.strerror or f"{error}"
            self._say({"is": "exited", "worker": number, "code": LOST, "because": because})
            return
        channel = Channel(self._loop, pipes.control, lambda word: self._hear(history, word))
        logs = (
            LogPipe(self._loop, pipes.stdout, lambda line: self._on_line(history, "stdout", line)),
            LogPipe(self._loop, pipes.stderr, lambda line: self._on_line(history, "stderr", line)),
        )
        self._workers[number] = _HostedWorker(history, channel, logs)

    def _tell(self, numbers: Sequence[int], word: Message) -> None:
        for number in numbers:
            if (worker := self._workers.get(number)) is not None:
                worker.history.told(word)
                self.generation = max(self.generation, worker.history.generation)
                self.newest_worker = max(self.newest_worker, worker.history.newest_worker)
                worker.channel.send(word)

    def _on_line(self, history: WorkerHistory, stream: str, line: str) -> None:
        if line.strip() and (worker := self._workers.get(history.worker)) is not None:
            worker.last_lines[stream] = line
        self._log(history, stream, line)

    def _hear(self, history: WorkerHistory, word: Message) -> None:
        history.heard(word)
        self._say({"is": "said", "worker": history.worker, "word": word})

    def _on_fork_server(self, message: Message) -> None:
        match message["is"]:
            case "warm":
                self._killed_fork_servers = 0
                self._say(message)
            case "rendezvous":
                self._say({**message, "store": self._store, "host": self._config.host})
            case "storeless":
                self._say_storeless((self._fork_server.last_words or [""])[-1])
            case "forked":
                if (worker := self._workers.get(message["worker"])) is not None:
                    worker.history.pid = message["pid"]
                    worker.process = ProcessHandle.of(message["pid"])
                    self._say(message)
            case "exited":
                self._part(message["worker"], message["code"], message.get("because"))
            case "lost":
                self._on_fork_server_lost(message["code"])

    def _part(self, number: int, code: int, because: str | None = None) -> None:
        """Let go of a worker that has exited, once its last words are heard."""
        worker = self._workers.get(number)
        if worker is not None:
            worker.close()
            del self._workers[number]
            if code > 0:  # a script that fails says why in its last line
                because = because or job_errors.last_line(worker.last_lines)
            self._say(
                {"is": "exited", "worker": number, "code": code, "because": because}
                | {"has_ended": worker.history.has_ended}
            )

    def _on_fork_server_lost(self, code: int) -> None:
        """Start anew; the kernel ends every worker along with the fork server."""
        if not self._fork_server.is_warm:
            self._killed_fork_servers += 1
            if code >= 0 or self._killed_fork_servers >= FORK_SERVERS_MAX:
                python = self._config.interpreter.python
                error = job_errors.no_workers(python, self._fork_server.last_words, code)
                self._is_dead = True
                self._say({"is": "lost", "code": code, **error.parts()})
        if not self._is_dead:
            self.open()
            if self._store is not None:
                self._say_storeless("its process was killed")
        until_s = time.monotonic() + UNKNOWN_WAIT_S
        for number in list(self._workers):
            self._await_end(number, until_s)

    def _say_storeless(self, because: str) -> None:
        store, self._store = self._store, None
        self._say({"is": "storeless", "store": store, "because": because})

    def _await_end(self, number: int, until_s: float) -> None:
        """Say that a worker has exited once its process is gone; kill it and its own until then."""
        if (worker := self._workers.get(number)) is None:
            return
        if worker.process is not None:
            worker.process.kill_group()
            is_gone = not worker.process.lives
        else:  # forked or not: its socket tells, which no other process has
            worker.channel.drain()
            is_gone = not worker.channel.is_open or time.monotonic() >= until_s
        if is_gone:
            self._part(number, LOST)
        else:
            at_s = time.monotonic() + LOOK_EVERY_S
            self._loop.alarm((self, number), at_s, lambda: self._await_end(number, until_s))


def _found(pid: int) -> tuple[str, int] | None:
    """Tell whether a process is alive or dead, and when it was started; None: there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "dead" if fields[0] in "ZX" else "alive", int(fields[19])

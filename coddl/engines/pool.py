"""A pool on this machine: one process that keeps a server and its agents running.

The supervising process holds `pool.lock` of the state folder; the kernel drops it when that ends,
however it ends, and then ends its children, too. What they print goes to `output/`.
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from coddl.api.client import Client, find
from coddl.api.emulation import Emulation
from coddl.api.local_process import lives
from coddl.api.tls import TlsFiles
from coddl.api.tokens import read_token
from coddl.core.errors import UserError
from coddl.core.node_count import NodeBounds
from coddl.engines.processes import CLOSE_S, LEAVE_S, PROGRAM, STEADY_S, Child, rotate
from coddl.engines.sharing_options import AS_BEFORE, SharingOptions
from coddl.engines.slurm.options import NO_OPTIONS, SlurmOptions

READY_S: Final = 180.0  # the first start compiles for some 15 seconds
TICK_S: Final = 2.0  # between looks at the sizes of files
NAMED_WITHIN_S: Final = 5.0  # a process that has locked a folder has written its number
START_TICK_S: Final = 0.05  # between looks at a server that starts
ASK_S: Final = 2.0  # that the server may take to answer
TELL_S: Final = 5.0  # after which a wait is explained
LOOPBACK: Final = "127.0.0.1"
NOT_RUNNING: Final = "no pool is running"


class UnsavedJobs(UserError):
    """The pool can't stop yet: the progress of some jobs can't be saved."""

    exit_code = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """The settings of a pool on this machine."""

    folder: Path
    port: int = 7433  # 0: any
    agents: int = 1
    slots: int | None = None  # of each agent; None: its GPUs, else its cores
    sharing: SharingOptions = AS_BEFORE
    host: str = LOOPBACK  # on which the server listens
    advertise: str = ""  # how other machines name this one; empty: the server chooses
    tls: TlsFiles | None = None
    engine: str = ""  # what brings nodes; empty: there are the agents of this machine
    bounds: NodeBounds | None = None  # of the engine's nodes
    address: str = ""  # of the engine
    slurm: SlurmOptions = NO_OPTIONS  # how Slurm is asked for nodes
    jobs_dir: str = ""
    checkpoints: str = ""  # the URI where jobs keep them; empty: the jobs folder
    keep: tuple[str, ...] = ()  # of what is over, as `--keep` says
    emulation: Emulation | None = None  # None: the nodes are real

    @property
    def keep_words(self) -> list[str]:
        """Return the options that say what is kept of what is over."""
        return [word for each in self.keep for word in ("--keep", each)]

    @property
    def names(self) -> list[str]:
        """Return the options that say how the server is named and known."""
        words = ["--advertise", self.advertise] if self.advertise else []
        return words + (self.tls.words if self.tls else [])

    @property
    def nodes(self) -> tuple[str, ...]:
        """Name the agents."""
        if self.emulation is not None:
            from coddl.traces.clusters import cluster_from  # needs numpy

            return tuple(node.name for node in cluster_from(self.emulation.cluster).nodes)
        name = re.sub(r"[^A-Za-z0-9._-]+|^[._-]+", "-", socket.gethostname().partition(".")[0])
        name = name.strip("-") or "node"
        return (name,) if self.agents == 1 else tuple(f"{name}-{i + 1}" for i in range(self.agents))


# The process that holds a folder.


def supervisor_of(folder: Path) -> int | None:
    """Name the process that keeps a pool of this folder up; None: there is none."""
    until_s = time.monotonic() + NAMED_WITHIN_S
    while True:
        try:
            with (folder / "pool.lock").open("rb") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    found = lock.read()
                else:
                    return None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unfit(folder, error) from None
        # A process that has just taken the lock may not have written its number yet.
        if found and lives(int(found)):
            return int(found)
        if time.monotonic() > until_s:
            raise UserError(
                f"the pool of {folder} can't be controlled from here",
                "a process on another machine holds its lock",
                "run the command on the machine where the pool was started",
            )
        time.sleep(START_TICK_S)


def _unfit(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"{folder} can't hold a pool",
        f"{error.filename or 'its lock'}: {error.strerror}",
        "another --state-dir",
    )


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder's pool; the lock file of a dead process is no obstacle."""
    with (folder / "pool.lock").open("a+b") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pass
            except OSError as error:  # as of a network file system without locks
                raise _unfit(folder, error) from None
            if (pid := supervisor_of(folder)) is not None:
                raise UserError(
                    f"a pool of {folder} can't be started",
                    f"process {pid} already runs one",
                    "coddl down, or another --state-dir",
                )
            time.sleep(START_TICK_S)  # another process only looked
        lock.truncate(0)
        lock.write(str(os.getpid()).encode())
        lock.flush()
        yield


def make_folder(folder: Path) -> None:
    """Make a state folder that only its owner can enter, with a token in it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "output").mkdir(mode=0o700, exist_ok=True)
        if not (folder / "token").exists():
            half = folder / f"token.{os.getpid()}"
            descriptor = os.open(half, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with open(descriptor, "w") as file:
                file.write(secrets.token_urlsafe(32) + "\n")
            half.rename(folder / "token")
        _check_token(folder / "token")
    except OSError as error:
        raise _unfit(folder, error) from None


def _check_token(path: Path) -> None:
    """Refuse a token that others may know."""
    try:
        read_token(path)
    except UserError as error:
        again = f"rm {path}; coddl up creates a new one"
        raise UserError(error.what, error.because, again) from None


class AnnouncedServer(NamedTuple):
    """A server, as announced in its file in the state folder."""

    url: str  # for agents, and other machines
    pid: int
    ca: str = ""  # a file with the CA of its certificate


def server_of(folder: Path) -> AnnouncedServer | None:
    """Return the server's address."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        about = json.loads((folder / "server.json").read_text("utf-8"))
        url = str(about.get("advertised") or about["url"])
        return AnnouncedServer(url, int(about["pid"]), str(about.get("tls_ca", "")))
    return None


@dataclass(slots=True)
class PoolProcess:
    """Keeps a server and its agents running until it is stopped."""

    options: PoolOptions
    program: tuple[str, ...] = PROGRAM
    tell: Callable[[str], None] = print
    now_s: Callable[[], float] = time.monotonic
    _stops: int = 0  # once: let jobs be saved; twice: at once
    _wake_out: int = -1  # has a byte for each signal that came

    def run(self) -> int:
        """Run until a signal comes. Raises UserError if the pool can't be started."""
        folder = self.options.folder
        make_folder(folder)
        with _held(folder):
            if self.options.emulation is not None:
                self.options.emulation.write(folder)
            self._hear()
            server = self._child("server", *self._server_words())
            agents: list[Child] = []
            try:
                self._keep(server, agents)
            finally:
                self._stop(server, agents)
        return 0

    def _hear(self) -> None:
        """Make signals end a wait, through a pipe: a lock may be held when one arrives."""
        self._wake_out, wake_in = os.pipe()
        os.set_blocking(self._wake_out, False)
        os.set_blocking(wake_in, False)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

    def _on_signal(self, number: int, _frame: object) -> None:
        # `coddl down` may be called again while jobs are saved; only a second Ctrl-C is impatience.
        self._stops = self._stops + 1 if number == signal.SIGINT else max(self._stops, 1)

    def _await_signal(self, within_s: float) -> None:
        if select.select([self._wake_out], [], [], max(0.0, within_s))[0]:
            os.read(self._wake_out, 4096)

    def _child(self, name: str, *words: str) -> Child:
        log = self.options.folder / "output" / f"{name.replace(' ', '-')}.log"
        return Child(name, [*self.program, *words], log)

    def _server_words(self, again_at: str = "") -> list[str]:
        """Return how to start the server; again, where agents look for it, with its own policy."""
        options = self.options
        port = again_at.rpartition(":")[2] if again_at else str(options.port)
        words = ["server", "--state-dir", str(options.folder), "--port", port]
        words += ["--host", options.host] if options.host != LOOPBACK else []
        words += options.names
        words += options.sharing.words_again if again_at else options.sharing.words
        words += ["--checkpoints", options.checkpoints] if options.checkpoints else []
        return words + options.keep_words

    def _agent_words(self, node: str, server: AnnouncedServer) -> list[str]:
        folder = self.options.folder
        words = ["agent", "--server", server.url, "--state-dir", str(folder)]
        words += ["--name", node] if node else []
        words += ["--tls-ca", server.ca] if server.ca else []
        if self.options.slots is not None:
            words += ["--slots", str(self.options.slots)]
        words += ["--jobs-dir", self.options.jobs_dir] if self.options.jobs_dir else []
        return words

    def _companions(self, server: AnnouncedServer) -> list[Child]:
        """Return the processes next to the server: agents, or a connector to an engine."""
        if self.options.engine:
            return [self._child("connector", *self._connector_words(server))]
        if self.options.emulation is not None:  # one process hosts them all
            return [self._child("agents", *self._agent_words("", server))]
        nodes = self.options.nodes
        return [self._child(f"agent {node}", *self._agent_words(node, server)) for node in nodes]

    def _connector_words(self, server: AnnouncedServer) -> list[str]:
        options, bounds = self.options, self.options.bounds
        assert bounds is not None
        words = ["connector", "--state-dir", str(options.folder), "--server", server.url]
        words += ["--tls-ca", server.ca] if server.ca else []
        words += ["--engine", options.engine, "--nodes", f"{bounds.least}..{bounds.most}"]
        words += ["--gpus-per-node", str(bounds.gpus), "--idle", f"{bounds.idle_s:g}s"]
        words += ["--slots", str(options.slots)] if options.slots is not None else []
        words += ["--address", options.address] if options.address else []
        words += options.slurm.words
        words += ["--jobs-dir", options.jobs_dir] if options.jobs_dir else []
        return words

    def _keep(self, server: Child, agents: list[Child]) -> None:
        """Start what does not run and watch over what does."""
        while not self._stops:
            now_s = self.now_s()
            for child in (server, *agents):
                if (code := child.ended(now_s)) is not None:
                    self._on_end(child, code)
                if child.process is None and now_s >= child.due_s:
                    self.tell(f"{child.name} started, process {child.start(now_s)}")
                rotate(child.log)
            if not agents and (about := self._announced(server)):
                server.words = [*self.program, *self._server_words(again_at=about.url)]
                agents += self._companions(about)
                continue
            due_s = [child.due_s - now_s for child in (server, *agents) if child.process is None]
            self._await_signal(min([TICK_S if agents else START_TICK_S, *due_s]))

    def _announced(self, server: Child) -> AnnouncedServer | None:
        """Return the server's address, once it listens."""
        about = server_of(self.options.folder)
        is_ours = about and server.process and about.pid == server.process.pid
        return about if is_ours else None

    def _on_end(self, child: Child, code: int) -> None:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        # A process that fails at its first start has wrong options, and would fail again.
        is_new = child.starts == 1 and self.now_s() - child.started_s < STEADY_S
        if is_new and code > 0 and not self._has_engine():
            raise child.words_of_end()
        wait_s = max(0.0, child.due_s - self.now_s())
        self.tell(f"{child.name} {how}; restarting in {wait_s:.1f} s")

    def _has_engine(self) -> bool:
        """Return whether the engine has answered: one that is lost may end its connector."""
        if not self.options.engine:
            return False
        try:
            with Client(find("", str(self.options.folder), env={}), within_s=ASK_S) as client:
                return bool(client.get("/engine")["is_connected"])
        except UserError:
            return False

    def _stop(self, server: Child, agents: list[Child]) -> None:
        """End the agents, which save their jobs' progress; then the server.

        A second Ctrl-C ends all at once.
        """
        for children, within_s in ((agents, LEAVE_S), ([server], CLOSE_S)):
            stops = max(
                self._stops, 1
            )  # before they are signalled: the next Ctrl-C may follow at once
            for child in children:
                child.signal(signal.SIGTERM)
            until_s = self.now_s() + within_s
            for child in children:
                while child.process is not None and child.process.poll() is None:
                    is_late = self.now_s() > until_s
                    if is_late and self._stops <= stops and unsaved_in(self.options.folder):
                        until_s = self.now_s() + LEAVE_S  # a job can't be saved: it is not killed
                    elif is_late or self._stops > stops:
                        self.tell(f"{child.name} did not stop in time and is killed")
                        child.signal(signal.SIGKILL)
                    self._await_signal(0.1)


# Up and down, from another process.


def up(options: PoolOptions, words: list[str], is_ready: Callable[[], bool]) -> None:
    """Start a pool in the background; return when it is ready, or raise what it said."""
    make_folder(options.folder)
    pool = Child("pool", words, options.folder / "output" / "pool.log", is_tied=False)
    rotate(pool.log)
    pool.start(time.monotonic())
    try:
        await_ready(pool, is_ready)
    except BaseException:
        pool.end()
        raise


def await_ready(pool: Child, is_ready: Callable[[], bool], within_s: float = READY_S) -> None:
    """Wait until a pool that was started is ready, or raise what it said."""
    until_s = time.monotonic() + within_s
    while not is_ready():
        if pool.ended(time.monotonic()) is not None:
            raise pool.words_of_end()
        if time.monotonic() > until_s:
            raise UserError(
                f"the pool was not ready within {within_s:.0f} s",
                f"see the logs in {pool.log.parent}",
                "coddl up --foreground",
            )
        time.sleep(START_TICK_S)


def unsaved_in(folder: Path) -> list[str]:
    """Ask the server of a pool which jobs' state can't be saved."""
    try:
        with Client(find("", str(folder), env={}), within_s=ASK_S) as client:
            return client.problems("unsaved")
    except UserError:
        return []


def _check_saved(folder: Path) -> None:
    """Raise if jobs that must stop can't be saved."""
    if unsaved := unsaved_in(folder):
        raise UnsavedJobs(
            "the pool is not stopped yet, and jobs keep training",
            "; ".join(unsaved),
            "free space there, then the pool stops by itself; or coddl down --cancel-jobs",
        )


def down(folder: Path, tell: Callable[[str], None] = print) -> bool:
    """End the pool of a folder, and wait for that; return whether there was one.

    Raises UnsavedJobs if jobs can't be saved: the pool ends when they are.
    """
    if (pid := supervisor_of(folder)) is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    begin_s, is_told = time.monotonic(), False
    ask_s = begin_s + TELL_S  # what could not be saved before may be by then
    while supervisor_of(folder) == pid:
        now_s = time.monotonic()
        if now_s > ask_s:
            ask_s = now_s + 1.0
            _check_saved(folder)
        if now_s - begin_s > TELL_S and not is_told:
            tell("waiting for jobs to save their state")
            is_told = True
        if now_s - begin_s > LEAVE_S + CLOSE_S + 10.0:
            raise UserError(
                "the pool did not stop",
                f"process {pid} was asked to stop and is still running",
                f"see the logs in {folder / 'output'}",
            )
        time.sleep(START_TICK_S)
    return True

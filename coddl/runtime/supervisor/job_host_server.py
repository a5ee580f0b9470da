"""A node's side of the jobs that run on it: one thread that runs job hosts and serves their leads.

    agent ── JobHostServer (thread, loop, TCP listener)
               ├─ WarmInterpreters  forked once per job
               └─ JobHost per job   its WorkerHost (fork server, workers, images), its lead

A lead says `lead` with the node's token, and its connection is handed over to the host of its job;
ADR 0007 has the messages. Workers outlive the connection: the next lead, with a higher attempt,
finds them.
"""

import contextlib
import hmac
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor import jobdir
from coddl.runtime.supervisor.hosted_workers import process_workers
from coddl.runtime.supervisor.job_host import JobHost, JobHostContext
from coddl.runtime.supervisor.loop import Channel, Loop
from coddl.runtime.supervisor.remote_worker_host import keep_alive
from coddl.runtime.supervisor.slots import HostingAgent, SlotProcess
from coddl.runtime.supervisor.warm_interpreters import WarmInterpreters
from coddl.runtime.wire import Lines, Message

ORPHAN_S: Final = 300.0  # how long workers live without a lead
JOB_WAIT_S: Final = 30.0  # how long a lead waits for its job to be known here
HELLO_WAIT_S: Final = 5.0  # how long a connection may be silent before its hello
HELLO_BYTES_MAX: Final = 4 << 10  # of a connection before its hello
REQUEST_BYTES_MAX: Final = 4 << 20  # of a lead
UNAUTHENTICATED_MAX: Final = 64  # connections without a hello; the oldest are closed
GONE_WAIT_S: Final = 5.0  # how long `close` waits for killed workers


class _LeadConnection:
    """A connection until its lead has a job host: not authenticated, then waiting for its job."""

    def __init__(self) -> None:
        self.channel: Channel
        self.lines = Lines(HELLO_BYTES_MAX)
        self.job = ""
        self.attempt = 0
        self.adopts = False
        self.until_s = 0.0  # a lead that waits: how long it may


class JobHostServer:
    """Runs the job hosts of a node. Listens from the start; serves from `start` to `close`."""

    def __init__(
        self,
        name: str,
        token: str,
        agent: HostingAgent,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        orphan_s: float = ORPHAN_S,
    ) -> None:
        """`name` is this agent's own on this machine: it names its jobs' images in memory, and
        those that an earlier process of that name has left there are removed.

        `host` is an address of this node: leads, workers and stores of other nodes connect to it.
        Raises OSError if it can't be listened on.
        """
        self._token = token
        self._agent = agent
        self._loop = Loop()
        self._warm_interpreters = WarmInterpreters(self._loop, agent.on_warm)
        self._context = JobHostContext(
            self._loop,
            name,
            host,
            agent,
            process_workers(self._loop, name, host, self._warm_interpreters),
            is_free=self._is_free,
            on_change=self._on_change,
            orphan_s=orphan_s,
        )
        self._job_hosts: dict[str, JobHost] = {}
        self._ending: list[JobHost] = []  # whose workers are being killed
        self._attempts: dict[str, int] = {}  # the newest of each job
        self._connections: list[_LeadConnection] = []
        self._reported: tuple[object, ...] = ()  # of the processes here
        self._is_changing = self._is_closing = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family)
        self._listener.setblocking(False)
        self._port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name="job-hosts", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Where leads connect to: host and port."""
        return self._context.host, self._port

    @property
    def is_alive(self) -> bool:
        """Tell whether the thread serves."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Serve in a thread of its own."""
        self._thread.start()

    def warm(self, python: str, env: Mapping[str, str]) -> None:
        """Have an interpreter ready before a job asks for it; `on_warm` follows."""
        self._loop.post(lambda: self._warm_interpreters.warm(python, env))

    def look_again(self) -> None:
        """Check again what waits for its job or its slot; then report the processes on slots."""
        self._loop.post(lambda: self._settle(always=True))

    def kill(self, job: str) -> None:
        """Kill all workers of a job here and hang up on its lead. From any thread."""
        self._loop.post(lambda: self._kill(job))

    def kill_slot(self, slot: int) -> None:
        """Kill whatever lives on a slot. From any thread."""
        self._loop.post(lambda: self._kill_slot(slot))

    def close(self) -> None:
        """Kill every worker, end the thread; returns when nothing of it runs any more."""
        self._loop.post(self._begin_closing)
        if self._thread.ident is None:
            self._listener.close()
            self._loop.close()
        else:
            self._thread.join()

    # The thread.

    def _run(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._loop.close)
            stack.callback(self._listener.close)
            stack.callback(self._warm_interpreters.close)
            stack.callback(self._close_all)
            jobdir.drop_stashes(self._context.name)
            stack.callback(jobdir.drop_stashes, self._context.name)
            self._loop.watch(self._listener, self._accept)
            while not (self._is_closing and not self._ending):
                self._loop.turn()

    def _begin_closing(self) -> None:
        self._is_closing = True
        self._loop.forget(self._listener)
        for job in list(self._job_hosts):
            self._kill(job)
        at_s = time.monotonic() + GONE_WAIT_S
        self._loop.alarm("closing", at_s, self._close_all)

    def _close_all(self) -> None:
        for job_host in self._all():
            job_host.close()
        self._job_hosts.clear()
        self._ending.clear()
        for connection in self._connections:
            connection.channel.close()

    def _all(self) -> Iterator[JobHost]:
        yield from [*self._job_hosts.values(), *self._ending]

    def _held(self) -> dict[int, SlotProcess]:
        held = [each for job_host in self._all() for each in job_host.held.items()]
        return dict(sorted(held, key=lambda each: each[1].awaits_turn))  # as in a job host

    def _is_free(self, slot: int, but_for: JobHost | None) -> bool:
        """Tell whether nothing lives on a slot, not counting what belongs to a job host."""
        return not any(slot in each.held for each in self._all() if each is not but_for)

    def _kill(self, job: str) -> None:
        if (job_host := self._job_hosts.pop(job, None)) is not None:
            self._ending.append(job_host)
            job_host.end(hang_up=True)

    def _kill_slot(self, slot: int) -> None:
        process = self._held().get(slot)
        for job_host in self._all():
            if process is not None and job_host.job == process.job:
                job_host.kill_slot(slot)

    def _on_change(self) -> None:
        """See to what a change brings about, but not in the middle of it."""
        if not self._is_changing:
            self._is_changing = True
            self._loop.post(self._settle)

    def _settle(self, *, always: bool = False) -> None:
        self._is_changing = False
        for job_host in [each for each in self._all() if each.is_gone]:
            job_host.close()
            if job_host in self._ending:
                self._ending.remove(job_host)
            else:
                del self._job_hosts[job_host.job]
        for connection in list(self._connections):
            if connection.job:
                self._admit(connection)
        for job_host in self._all():
            job_host.look_again()
        held = self._held()
        parked = {job_host.job: pids for job_host in self._all() if (pids := job_host.parked)}
        if always or (held, parked) != self._reported:
            self._reported = (held, parked)
            self._agent.on_holding(held, parked)

    # Leads.

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            peer, _ = self._listener.accept()
            keep_alive(peer)
            connection = _LeadConnection()
            connection.channel = Channel(
                self._loop,
                peer,
                lambda message: self._on_hello(connection, message),
                lambda: self._on_end(connection),
                lines=connection.lines,
            )
            self._connections.append(connection)
            at_s = time.monotonic() + HELLO_WAIT_S
            self._loop.alarm(("hello", connection), at_s, lambda: self._drop(connection))
            unauthenticated = [each for each in self._connections if not each.job]
            for each in unauthenticated[:-UNAUTHENTICATED_MAX]:  # descriptors are for those we know
                self._drop(each)

    def _on_hello(self, connection: _LeadConnection, hello: Message) -> None:
        if connection.job:
            return  # it has said it, and was not answered yet
        self._loop.silence(("hello", connection))
        match hello:
            case {"token": str(token), "job": str(job), "attempt": int(attempt)} if (
                hmac.compare_digest(token.encode(errors="replace"), self._token.encode())
                and jobdir.NAME.fullmatch(job)
            ):
                connection.job, connection.attempt = job, attempt
                connection.lines.line_bytes_max = REQUEST_BYTES_MAX
                connection.adopts = hello.get("adopt") is True
                connection.until_s = time.monotonic() + JOB_WAIT_S
                self._loop.alarm(
                    ("home", connection), connection.until_s, lambda: self._admit(connection)
                )
                self._admit(connection)
            case _:
                self._refuse(connection, "token", _wrong_token())

    def _admit(self, connection: _LeadConnection) -> None:
        """Hand a lead over to the host of its job; make one if there is none."""
        job, attempt = connection.job, connection.attempt
        if not connection.channel.is_open or connection not in self._connections:
            return
        if attempt < (newest := self._attempts.get(job, 0)):
            self._refuse(connection, "attempt", _stale(job, attempt, newest))
            return
        environment = self._agent.environment_of(job)
        if environment is None:
            if time.monotonic() >= connection.until_s:
                self._refuse(connection, "home", _unknown_job(job))
            return
        self._attempts[job] = attempt
        job_host = self._job_hosts.get(job)
        if job_host is not None and (
            job_host.is_ending or (attempt > job_host.attempt and not connection.adopts)
        ):
            self._kill(job)
            job_host = None
        if job_host is None:
            try:
                job_host = self._job_hosts[job] = JobHost(self._context, job, attempt, environment)
            except (OSError, TrainingError) as error:
                self._refuse(connection, "home", _unfit(job, error))
                return
        self._connections.remove(connection)
        self._loop.silence(("home", connection))
        lead = connection.channel
        lead.hand_over(partial(job_host.take, lead), partial(job_host.leave, lead))
        job_host.follow(lead, attempt)

    def _refuse(self, connection: _LeadConnection, why: str, error: TrainingError) -> None:
        connection.channel.send({"is": "refused", "why": why, **error.parts()})
        self._drop(connection)

    def _drop(self, connection: _LeadConnection) -> None:
        connection.channel.close()
        self._on_end(connection)

    def _on_end(self, connection: _LeadConnection) -> None:
        for name in ("hello", "home"):
            self._loop.silence((name, connection))
        if connection in self._connections:
            self._connections.remove(connection)


def _wrong_token() -> TrainingError:
    return TrainingError(
        "this node refused the request",
        "the token is not current: each start of its agent creates a new one",
        "the address that the server reports now",
    )


def _stale(job: str, attempt: int, newest: int) -> TrainingError:
    return TrainingError(
        f"attempt {attempt} of job {job} is over",
        f"attempt {newest} has replaced it",
        "nothing: the newer attempt continues",
    )


def _unfit(job: str, error: OSError | TrainingError) -> TrainingError:
    return TrainingError(
        f"job {job} can't run on this node",
        error.because if isinstance(error, TrainingError) else f"{error}",
        "another node, or try again later",
    )


def _unknown_job(job: str) -> TrainingError:
    return TrainingError(
        f"job {job} can't run on this node",
        f"its agent was not told of the job within {JOB_WAIT_S:.0f} s",
        "coddl nodes, which shows whether the agent is connected",
    )

"""The job hosts of a node: which lead each follows, and which slots have workers.

A lead says `lead` with the node's token, and its connection is handed over to the host of its job;
ADR 0007 has the messages. Workers outlive the connection: the next lead, with a higher attempt,
finds them.

Nothing here opens a socket, runs a process or reads a clock: `JobHostServer` runs it on a node, the
full-system simulation in virtual time.
"""

import hmac
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor import jobdir
from coddl.runtime.supervisor.hosted_workers import WorkersOpener
from coddl.runtime.supervisor.job_host import JobHost, JobHostContext
from coddl.runtime.supervisor.loop import MessageChannel, SupervisorLoop
from coddl.runtime.supervisor.slots import HostingAgent, Parked, SlotProcess
from coddl.runtime.wire import Message

ORPHAN_S: Final = 300.0  # how long workers live without a lead
JOB_WAIT_S: Final = 30.0  # how long a lead waits for its job to be known here
HELLO_WAIT_S: Final = 5.0  # how long a connection may be silent before its hello
HELLO_BYTES_MAX: Final = 4 << 10  # of a connection before its hello
REQUEST_BYTES_MAX: Final = 4 << 20  # of a lead
UNAUTHENTICATED_MAX: Final = 64  # connections without a hello; the oldest are closed


@dataclass(slots=True, eq=False)
class _LeadConnection:
    """A connection until its lead has a job host: not authenticated, then waiting for its job."""

    channel: MessageChannel
    job: str = ""
    attempt: int = 0
    adopts: bool = False
    until_s: float = 0.0  # a lead that waits: how long it may


class JobHosts:
    """Admits leads to the job hosts of a node, and tells the node's agent which workers live."""

    def __init__(
        self,
        loop: SupervisorLoop,
        token: str,
        agent: HostingAgent,
        open_workers: WorkersOpener,
        *,
        on_holding: Callable[[Mapping[int, SlotProcess], Parked], None],
        orphan_s: float = ORPHAN_S,
    ) -> None:
        """`on_holding` is called with what `HostingAgent.on_holding` promises."""
        self._loop, self._token, self._agent = loop, token, agent
        self._on_holding = on_holding
        self._context = JobHostContext(
            loop, agent, open_workers, self._is_free, self._on_change, orphan_s
        )
        self._job_hosts: dict[str, JobHost] = {}
        self._ending: list[JobHost] = []  # whose workers are being killed
        self._attempts: dict[str, int] = {}  # the newest of each job
        self._connections: list[_LeadConnection] = []
        self._reported: tuple[object, ...] = ()  # of the processes here
        self._is_changing = False

    # From any thread.

    def look_again(self) -> None:
        """Check again what waits for its job or its slot; then report the processes on slots."""
        self._loop.post(lambda: self._settle(always=True))

    def kill(self, job: str) -> None:
        """Kill all workers of a job here and hang up on its lead."""
        self._loop.post(lambda: self._kill(job))

    def kill_slot(self, slot: int) -> None:
        """Kill whatever lives on a slot."""
        self._loop.post(lambda: self._kill_slot(slot))

    # In the loop.

    @property
    def is_gone(self) -> bool:
        """Tell whether nothing lives here."""
        return not any(self._all())

    def lead_of(self, job: str) -> MessageChannel | None:
        """Give the connection of the lead that a job's workers here have now."""
        job_host = self._job_hosts.get(job)
        return None if job_host is None else job_host.lead

    def end(self) -> None:
        """Kill all workers, and admit no lead; `is_gone` once all are gone."""
        for connection in list(self._connections):
            self._drop(connection)
        for job in list(self._job_hosts):
            self._kill(job)

    def close(self) -> None:
        """Let go of everything; workers that still live are killed."""
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
            self._on_holding(held, parked)

    # Leads.

    def accept(self, channel: MessageChannel) -> None:
        """Hear a connection; it is a lead's once it has said the token."""
        connection = _LeadConnection(channel)
        channel.lines.line_bytes_max = HELLO_BYTES_MAX
        channel.hand_over(partial(self._on_hello, connection), partial(self._forget, connection))
        self._connections.append(connection)
        at_s = self._loop.now_s() + HELLO_WAIT_S
        self._loop.alarm(("hello", connection), at_s, partial(self._drop, connection))
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
                connection.channel.lines.line_bytes_max = REQUEST_BYTES_MAX
                connection.adopts = hello.get("adopt") is True
                connection.until_s = self._loop.now_s() + JOB_WAIT_S
                admit = partial(self._admit, connection)
                self._loop.alarm(("home", connection), connection.until_s, admit)
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
            if self._loop.now_s() >= connection.until_s:
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
        self._forget(connection)  # from now on it is its job host's
        lead = connection.channel
        lead.hand_over(partial(job_host.take, lead), partial(job_host.leave, lead))
        job_host.follow(lead, attempt)

    def _refuse(self, connection: _LeadConnection, why: str, error: TrainingError) -> None:
        connection.channel.send({"is": "refused", "why": why, **error.parts()})
        self._drop(connection)

    def _drop(self, connection: _LeadConnection) -> None:
        connection.channel.close()
        self._forget(connection)

    def _forget(self, connection: _LeadConnection) -> None:
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

"""The job hosts of a simulated node: which leads they follow, and which slots have workers.

The job hosts are those of production. What `JobHostServer` does around them with sockets and a
thread is done here over simulated lines, in the agent's process.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor.hosted_workers import HostedListener, OpenedWorkers
from coddl.runtime.supervisor.job_host import JobHost, JobHostContext
from coddl.runtime.supervisor.job_host_server import JOB_WAIT_S, ORPHAN_S
from coddl.runtime.supervisor.slots import (
    HostAddress,
    HostingAgent,
    JobEnvironment,
    SlotProcess,
)
from coddl.runtime.wire import Message
from coddl.testing.full_system.peer_lines import PeerEnd
from coddl.testing.full_system.virtual_loop import VirtualLoop

LeadFinder = Callable[[], object | None]  # gives the lead that hears workers; None: there is none

REFUSED: Final = TrainingError("this node refused the request", "by its rules", "nothing")


@dataclass(slots=True, eq=False)
class _Lead:
    """A connection: first a stranger's, then one that waits for its job, then a lead's."""

    end: PeerEnd
    job: str = ""
    attempt: int = 0
    adopts: bool = False
    until_s: float = 0.0  # how long it may wait for its job to be known here
    job_host: JobHost | None = None


class SimulatedJobHosts:
    """All job hosts of an agent; gone with it."""

    def __init__(
        self,
        loop: VirtualLoop,
        address: HostAddress,
        agent: HostingAgent,
        open_workers: Callable[[str, HostedListener, LeadFinder], OpenedWorkers],
        report: Callable[[], None],
    ) -> None:
        """`report` is called when other workers are on slots than before."""
        self._loop, self._token, self._agent = loop, address.token, agent
        self._open = open_workers
        self._report = report
        self._context = JobHostContext(
            loop,
            address.node,
            address.host,
            agent,
            self._open_workers,
            is_free=self._is_free,
            on_change=self._on_change,
            orphan_s=ORPHAN_S,
        )
        self._job_hosts: dict[str, JobHost] = {}
        self._ending: list[JobHost] = []  # whose workers are being killed
        self._attempts: dict[str, int] = {}  # the newest of each job
        self._followed: dict[str, PeerEnd] = {}  # the lead of each job
        self._waiting: list[_Lead] = []  # that have no job host yet
        self._reported: tuple[object, ...] = ()
        self._is_changing = False

    def _open_workers(
        self,
        job: str,
        environment: JobEnvironment,  # noqa: ARG002 - nothing runs in it
        listener: HostedListener,
    ) -> OpenedWorkers:
        return self._open(job, listener, partial(self._lead_of, job))

    def _lead_of(self, job: str) -> PeerEnd | None:
        """Give the line to the lead of a job; None if one of them knows that it is gone."""
        end = self._followed.get(job)
        return end if end is not None and end.is_open and end.peer.is_open else None

    # What the agent asks.

    @property
    def held(self) -> dict[int, SlotProcess]:
        """Tell which slots have workers."""
        held: dict[int, SlotProcess] = {}
        for job_host in self._all():
            held |= job_host.held
        return held

    def look_again(self) -> None:
        """Check again what waits for its job or its slot; then report."""
        self._loop.post(lambda: self._settle(always=True))

    def kill(self, job: str) -> None:
        """Kill all workers of a job here and hang up on its lead."""
        self._loop.post(lambda: self._kill(job))

    def kill_slot(self, slot: int) -> None:
        """Kill whatever lives on a slot."""
        self._loop.post(lambda: self._kill_slot(slot))

    def _all(self) -> Iterator[JobHost]:
        yield from [*self._job_hosts.values(), *self._ending]

    def _is_free(self, slot: int, but_for: JobHost | None) -> bool:
        return not any(slot in each.held for each in self._all() if each is not but_for)

    def _kill(self, job: str) -> None:
        if (job_host := self._job_hosts.pop(job, None)) is not None:
            self._ending.append(job_host)
            job_host.end(hang_up=True)

    def _kill_slot(self, slot: int) -> None:
        process = self.held.get(slot)
        for job_host in self._all():
            if process is not None and job_host.job == process.job:
                job_host.kill_slot(slot)

    def _on_change(self) -> None:
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
        for lead in list(self._waiting):
            self._admit(lead)
        for job_host in self._all():
            job_host.look_again()
        held = self.held
        if always or (held,) != self._reported:
            self._reported = (held,)
            self._report()

    # Leads.

    def accept(self, end: PeerEnd) -> None:
        """Take a connection."""
        lead = _Lead(end)
        end.hear(partial(self._on_message, lead), partial(self._on_end, lead))

    def _on_message(self, lead: _Lead, message: Message) -> None:
        if lead.job_host is not None:
            lead.job_host.take(lead.end, message)
            return
        if message["token"] != self._token:
            self._refuse(lead, "token")
            return
        lead.job, lead.attempt, lead.adopts = (message[n] for n in ("job", "attempt", "adopt"))
        lead.until_s = self._loop.now_s() + JOB_WAIT_S
        self._loop.alarm(("home", lead), lead.until_s, partial(self._admit, lead))
        self._waiting.append(lead)
        self._admit(lead)

    def _admit(self, lead: _Lead) -> None:
        """Connect a lead with the host of its job; make one if there is none."""
        job, attempt = lead.job, lead.attempt
        if lead not in self._waiting:
            return
        if attempt < self._attempts.get(job, 0):
            self._refuse(lead, "attempt")
            return
        environment = self._agent.environment_of(job)
        if environment is None:
            if self._loop.now_s() >= lead.until_s:
                self._refuse(lead, "home")
            return
        self._attempts[job] = attempt
        job_host = self._job_hosts.get(job)
        if job_host is not None and (
            job_host.is_ending or (attempt > job_host.attempt and not lead.adopts)
        ):
            self._kill(job)
            job_host = None
        if job_host is None:
            job_host = JobHost(self._context, job, attempt, environment)
            self._job_hosts[job] = job_host
        self._forget(lead)
        lead.job_host = job_host
        self._followed[job] = lead.end
        job_host.follow(lead.end, attempt)

    def _refuse(self, lead: _Lead, why: str) -> None:
        lead.end.send({"is": "refused", "why": why, **REFUSED.parts()})
        lead.end.close()
        self._forget(lead)

    def _forget(self, lead: _Lead) -> None:
        self._loop.silence(("home", lead))
        if lead in self._waiting:
            self._waiting.remove(lead)

    def _on_end(self, lead: _Lead) -> None:
        self._forget(lead)
        if lead.job_host is not None:
            lead.job_host.leave(lead.end)

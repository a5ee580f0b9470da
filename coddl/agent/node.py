"""Does what the orders say: leads jobs, keeps homes and seats, tells the server what happens.

Everything here runs in the agent's own thread. Leads and outposts have threads of their own, and
what they say is posted to this one.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol, assert_never

import structlog

from coddl.agent.account import Fact
from coddl.agent.commands import CommandLead
from coddl.agent.duties import (
    Aim,
    Begin,
    Decline,
    Drop,
    Duty,
    Halt,
    Led,
    Lose,
    Squatters,
    duties,
    given,
)
from coddl.agent.household import Household
from coddl.agent.landlord import Held, Rooms, Table
from coddl.agent.leading import ElasticLead, Lead, Run, missing_script
from coddl.agent.leftovers import Leftovers
from coddl.agent.logs import OURS, LogBook
from coddl.api.wire import LogLine, Peer, RunProgress
from coddl.core.pool import orders as told
from coddl.core.pool.orders import Orders
from coddl.core.pool.records import Claim, Device, RunEnded, Trouble
from coddl.runtime.supervisor.job_host_server import JobHostServer
from coddl.runtime.supervisor.slots import HostAddress

NOTHING: Final = Orders(0, {}, (), {})
SAVING_S: Final = 600.0  # what a job that is saving its state may take beyond its time
AGAIN_S: Final = 1.0  # between looks at one that is

log = structlog.get_logger()


class Speaker(Protocol):
    """The way to the server. For the agent's own thread."""

    def report(self, fact: Fact) -> None:
        """Tell a fact, until it is acknowledged."""
        ...

    def hold(
        self,
        version: int,
        slots: Mapping[int, Claim],
        runs: Set[Claim],
        others: Mapping[int, str],
    ) -> None:
        """Tell which slots have processes, by that version of the orders, and our runs.

        And which GPUs others use, by their index here.
        """
        ...

    def progress(self, progress: RunProgress) -> None:
        """Tell how a run is doing, some time soon."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """What a node is made of."""

    name: str
    post: HostAddress  # of its own outposts
    devices: tuple[Device, ...]


class Node:
    """The agent's work, apart from the line to the server and the lease."""

    def __init__(
        self,
        place: Place,
        household: Household,
        rooms: Rooms,
        outposts: JobHostServer,
        *,
        speaker: Speaker,
        logbook: LogBook,
        leftovers: Leftovers,
    ) -> None:
        self._place = place
        self._household = household
        self._rooms = rooms
        self._outposts = outposts
        self._speaker = speaker
        self._logbook = logbook
        self._leftovers = leftovers
        self._loop = asyncio.get_running_loop()
        self._orders = NOTHING
        self._posts: dict[str, HostAddress] = {}
        self._leads: dict[int, Lead] = {}
        self._led: dict[int, Led] = {}
        self._parting: list[Lead] = []  # dropped, and not gone yet
        self._ended: set[Claim] = set()
        self._unsafe: set[Claim] = set()  # ended, and the server has not acknowledged it
        self._untidy: dict[Claim, Run] = {}  # over for good, as soon as the server knows it
        self._squatters = Squatters()
        self._workers: Held = {}
        self._version = 0  # of the orders that `_workers` are true with
        self._commands: dict[int, tuple[Run, int | None]] = {}  # by slot: whose, and its process
        self._others: Mapping[int, str] = {}  # who use our GPUs, by index
        self._is_leaving = False
        self._idle = asyncio.Event()
        self._idle.set()

    # The server's word.

    def take(self, orders: Orders, peers: Iterable[Peer]) -> None:
        """Do what the orders say; again does no harm."""
        self._orders = orders
        self._posts = {p.node: HostAddress(p.node, p.host, p.port, p.token) for p in peers}
        self._posts[self._place.name] = self._place.post
        wanted = {Claim(lead.job, lead.attempt) for lead in orders.leads}
        self._ended &= wanted
        self._household.failed.clear()  # it may go better this time
        self._furnish()
        self._rooms.table = Table(orders.version, dict(orders.seats))
        self._act()
        self._outposts.look_again()  # and `on_holding` is told, with this table

    def look(self) -> None:
        """See to what time brings about."""
        assert self._outposts.is_alive, "the outposts' thread has ended"
        now_s = time.monotonic()
        for slot in self._squatters.overdue(self._orders.seats, self.holding, now_s):
            log.warning("overstayed", slot=slot, job=self.holding[slot].job)
            self._outposts.kill_slot(slot)
        self._tell_holding()

    @property
    def runs(self) -> set[Claim]:
        """Name the runs that are led here or about to be, and those whose end may get lost."""
        led = {Claim(lead.run.job, lead.run.attempt) for lead in self._leads.values()}
        wanted = {Claim(lead.job, lead.attempt) for lead in self._orders.leads}
        return led | self._unsafe | (set() if self._is_leaving else wanted - self._ended)

    @property
    def holding(self) -> dict[int, Claim]:
        """Tell which slots have processes, and whose."""
        claims = {slot: Claim(int(at.job), at.attempt) for slot, at in self._workers.items()}
        runs = {slot: run for slot, (run, _) in self._commands.items()}
        return claims | {slot: Claim(run.job, run.attempt) for slot, run in runs.items()}

    @property
    def leads(self) -> list[Lead]:
        """Give the runs that are led here."""
        return list(self._leads.values())

    def gpus(self) -> set[str]:
        """Name the GPUs that have processes of jobs. From any thread."""
        leads = [led.lead for led in list(self._led.values())]
        found = {s.gpu for lead in leads for s in lead.seats if s.slot in self._commands}
        found |= {at.gpu for at in self._workers.values()}
        return {gpu for gpu in found if gpu is not None}

    def pids(self) -> dict[int, list[int]]:
        """Give the first processes of each job here."""
        found: dict[int, list[int]] = {}
        for at in self._workers.values():
            if at.pid is not None:
                found.setdefault(int(at.job), []).append(at.pid)
        for run, pid in set(self._commands.values()):
            if pid is not None:
                found.setdefault(run.job, []).append(pid)
        return found

    # The end.

    def leave(self, reason: str) -> None:
        """Have every job that is led here leave, and begin no other."""
        self._is_leaving = True
        self.suspend_all(reason)

    def suspend_all(self, reason: str) -> None:
        """Have every job that is led here make its state durable and leave."""
        for job, lead in self._leads.items():
            if not self._led[job].lead.stop:
                self._halt(Halt(job, "retire", reason), lead)

    def end_all(self, trouble: Trouble) -> None:
        """End every process here at once; what is led here may be led by others from now on.

        A server that has not given us up yet must hear of it: the runs are not begun again.
        """
        self._orders = NOTHING
        self._rooms.table = Table(0, {})
        for job, lead in list(self._leads.items()):
            self._drop(job)
            self._report(RunEnded(job, lead.run.attempt, "lost", trouble=trouble))
        for claim in set(self.holding.values()):
            self._outposts.kill(str(claim.job))
        self._outposts.look_again()

    def end(self, job: int, trouble: Trouble) -> None:
        """End a job here for a reason of ours."""
        self._say(job, 0, f"{trouble.what}, because {trouble.because}")
        if job in self._leads:
            self._leads[job].fail(trouble)
        else:
            self._outposts.kill(str(job))

    @property
    def has_unsaved(self) -> bool:
        """Tell whether a job that was to leave goes on, as its state can't be saved."""
        return any(lead.is_unsaved for lead in self._leads.values())

    async def idle(self) -> None:
        """Wait until nothing is led here."""
        await self._idle.wait()

    # Duties.

    def _act(self) -> None:
        for duty in duties(self._orders, self._posts, self._led, self._ended):
            self._do(duty)
        self._note_idle()

    def _do(self, duty: Duty) -> None:
        match duty:
            case Begin() if self._is_leaving or not self._rooms.is_leased():
                pass  # the server will see that we are gone, or have ended all
            case Begin(lead, posts):
                self._begin(lead, posts)
            case Aim(lead, posts):
                self._led[lead.job] = Led(lead, posts, given(self._orders, lead))
                self._say_others(lead)
                self._leads[lead.job].aim(lead.seats, self._with_own(posts))
            case Lose(job, nodes):
                self._leads[job].lose(nodes)
            case Halt(job) if job in self._leads:
                self._halt(duty, self._leads[job])
            case Halt():
                pass  # its home is not ready: it will be told when it begins
            case Drop(job):
                self._drop(job)
                if job not in self._orders.jobs:  # no lead will come to adopt its workers here
                    self._outposts.kill(str(job))
            case Decline(lead):
                outcome: Final = "cancelled" if lead.stop == "cancel" else "retired"
                self._report(RunEnded(lead.job, lead.attempt, outcome))
            case _:
                assert_never(duty)

    def _begin(self, lead: told.Lead, posts: Mapping[str, HostAddress]) -> None:
        job = lead.job
        if job in self._household.failed:
            outcome, trouble = self._household.failed[job]
            is_refused = outcome == "lost"
            ended = RunEnded(job, lead.attempt, outcome, trouble=trouble, refused=is_refused)
            self._report(ended)
            return
        if job not in self._household.ready:
            return  # asked again when it is
        spec = self._orders.jobs[job]
        run = Run(
            job=job,
            attempt=lead.attempt,
            spec=spec,
            node=self._place.name,
            home=self._household.ready[job],
            reason=lead.reason,
            adopt=lead.adopt,
            precheck=lead.precheck,
            limits=lead.limits,
        )
        is_elastic = spec.is_elastic and not lead.precheck
        if not is_elastic and any(seat.slot in self.holding for seat in lead.seats):
            return  # asked again when the slots are empty; workers are kept waiting by outposts
        if is_elastic and (trouble_ := missing_script(run)) is not None:
            self._report(RunEnded(job, lead.attempt, "failed", trouble=trouble_))
            return
        log.info("leads", job=job, attempt=lead.attempt, seats=[s.slot for s in lead.seats])
        begun: Lead = ElasticLead(run, self) if is_elastic else CommandLead(run, self)
        self._leads[job] = begun
        self._led[job] = Led(lead, posts, given(self._orders, lead))
        self._say_others(lead)
        if not is_elastic:
            self._occupy(self._commands | {seat.slot: (run, None) for seat in lead.seats})
        begun.begin(lead.seats, self._with_own(posts))

    def _with_own(self, posts: Mapping[str, HostAddress]) -> dict[str, HostAddress]:
        return {**posts, self._place.name: self._place.post}

    def _halt(self, halt: Halt, lead: Lead) -> None:
        led = self._led[halt.job]
        self._led[halt.job] = replace(led, lead=replace(led.lead, stop=halt.how))
        log.info("halts", job=halt.job, how=halt.how, why=halt.reason)
        if halt.how == "cancel":
            lead.cancel()
            return
        lead.retire(halt.reason)
        grace_s = lead.run.spec.launch.grace_s
        give_up_s = time.monotonic() + grace_s + SAVING_S
        self._loop.call_later(grace_s, self._force, lead, give_up_s)

    def _force(self, lead: Lead, give_up_s: float) -> None:
        """End a run that was to leave and is still there, unless it is saving its state."""
        if self._leads.get(lead.run.job) is not lead:
            return
        if not lead.force(at_all_costs=time.monotonic() > give_up_s):
            self._loop.call_later(AGAIN_S, self._force, lead, give_up_s)

    def _drop(self, job: int) -> None:
        lead = self._leads.pop(job)
        log.info("drops", job=job, attempt=lead.run.attempt)
        del self._led[job]
        self._parting.append(lead)
        lead.drop()

    def _furnish(self) -> None:
        """See to the homes of the jobs that are here, or are to be."""
        here = {claim.job for claim in self.holding.values()}
        self._household.want(self._orders.jobs, {*here, *self._leads})
        self._rooms.homes = {str(job): home for job, home in self._household.ready.items()}

    def on_home(self) -> None:
        """Go on with what has waited for a home."""
        self._furnish()
        self._act()
        self._outposts.look_again()

    def _say_others(self, lead: told.Lead) -> None:
        """Say so if others use a GPU that is given to a job."""
        index_of = {device.gpu: device.index for device in self._place.devices}
        for seat in lead.seats:
            if seat.gpu in index_of and (who := self._others.get(index_of[seat.gpu])):
                words = f"GPU {index_of[seat.gpu]} ({seat.gpu}) is also used by {who}"
                self._say(lead.job, lead.attempt, words)

    def _report(self, ended: RunEnded) -> None:
        claim = Claim(ended.job, ended.attempt)
        self._ended.add(claim)
        self._unsafe.add(claim)
        self._speaker.report(ended)

    def _say(self, job: int, attempt: int, text: str) -> None:
        log.info("says", job=job, text=text)
        self._logbook.add(job, LogLine(time.time(), attempt, -1, None, OURS, text))

    def _note_idle(self) -> None:
        if self._leads or self._parting:
            self._idle.clear()
        else:
            self._idle.set()

    # Words of other threads.

    def _post(self, action: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(action)

    def hear_holding(self, version: int, held: Held) -> None:
        """Hear of workers here, and of the orders' version that is true with."""
        self._post(partial(self._on_holding, version, held))

    def _on_holding(self, version: int, held: Held) -> None:
        self._workers, self._version = held, version
        self._leftovers.note(pid for pids in self.pids().values() for pid in pids)
        self._tell_holding()
        self._act()  # a command may have waited for a slot

    def _tell_holding(self) -> None:
        self._speaker.hold(self._version, self.holding, self.runs, self._others)

    def hear_others(self, others: Mapping[int, str]) -> None:
        """Hear which GPUs that have no job are used by others, and by whom."""
        self._post(partial(self._on_others, others))

    def _on_others(self, others: Mapping[int, str]) -> None:
        self._others = others
        for index, who in others.items():
            log.warning("used by others", gpu=index, who=who)
        self._outposts.look_again()  # and `on_holding` is told

    def on_fact(self, run: Run, fact: Fact) -> None:
        """Hear of a run."""
        self._post(partial(self._on_fact, run, fact))

    def _on_fact(self, run: Run, fact: Fact) -> None:
        if not isinstance(fact, RunEnded):
            self._speaker.report(fact)
            return
        log.info("ended", job=run.job, attempt=run.attempt, outcome=fact.outcome)
        self._report(fact)
        is_final = fact.outcome in ("succeeded", "cancelled") or (
            fact.outcome == "failed" and not run.spec.max_failures
        )
        if is_final:
            self._untidy[Claim(run.job, run.attempt)] = run

    def on_safe(self, fact: Fact) -> None:
        """Hear that the server knows a fact; only then may the state of a job that is over go."""
        if not isinstance(fact, RunEnded):
            return
        self._unsafe.discard(Claim(fact.job, fact.attempt))
        if (run := self._untidy.pop(Claim(fact.job, fact.attempt), None)) is not None:
            forget = fact.outcome != "failed"
            self._household.tidy(run.job, run.spec, run.attempt, forget=forget)

    def on_progress(self, run: Run, progress: RunProgress) -> None:  # noqa: ARG002 - it is in there
        """Hear how a run is doing."""
        self._post(partial(self._speaker.progress, progress))

    def on_line(self, run: Run, stream: str, text: str) -> None:
        """Keep a line of a run; what a command prints is its only worker's."""
        worker, rank = (-1, None) if stream == OURS else (0, 0)
        self._logbook.add(run.job, LogLine(time.time(), run.attempt, worker, rank, stream, text))

    def on_slots(self, run: Run, slots: Iterable[int], pid: int | None) -> None:
        """Hear which slots a command holds."""
        self._post(partial(self._on_slots, run, tuple(slots), pid))

    def _on_slots(self, run: Run, slots: tuple[int, ...], pid: int | None) -> None:
        others = {s: at for s, at in self._commands.items() if at[0] is not run}
        self._occupy(others | dict.fromkeys(slots, (run, pid)))
        self._outposts.look_again()

    def _occupy(self, commands: dict[int, tuple[Run, int | None]]) -> None:
        """Take down which slots have commands; no worker starts there."""
        self._commands = commands
        self._rooms.commands = commands.keys()

    def on_over(self, run: Run) -> None:
        """Hear that a run is no longer led here."""
        self._post(partial(self._on_over, run))

    def _on_over(self, run: Run) -> None:
        self._parting = [lead for lead in self._parting if lead.run is not run]
        lead = self._leads.get(run.job)
        if lead is not None and lead.run is run:
            del self._leads[run.job], self._led[run.job]
            self._ended.add(Claim(run.job, run.attempt))
        self._act()

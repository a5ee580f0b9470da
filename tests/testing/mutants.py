"""Mistakes that are planted in the parts of a simulation: each breaks one rule of production."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from coddl.agent.emulated.node import EmulatedNode, EmulatedNodeParts
from coddl.agent.lease_clock import NodeClock
from coddl.api.wire import Holding
from coddl.core.pool.records import Event, NodeReported, Record, RunReported
from coddl.core.pool.state import Pool
from coddl.runtime.supervisor import generations as group
from coddl.runtime.supervisor.adoption import Adoption
from coddl.runtime.supervisor.checkpointing import Checkpointing
from coddl.runtime.supervisor.coordinator import Coordinator
from coddl.runtime.supervisor.job_host import JobHost
from coddl.runtime.supervisor.job_hosts import JobHosts
from coddl.runtime.supervisor.pool_job import PoolJob
from coddl.runtime.wire import Message
from coddl.server.folding import JournalEntry
from coddl.server.journal import FoldedPool, Journal
from coddl.server.loop import LoopRequest
from coddl.server.node_leases import NodeLeases
from coddl.server.snapshots import base_of
from coddl.server.store import StoredAnswer
from coddl.testing.full_system.leads import SupervisedRunner
from coddl.testing.full_system.machines import Makers, SimulatedServer
from coddl.testing.full_system.workers import SimulatedRunner


class LateJournal(Journal):
    """Writes what happened only when something else happens: effects come before it is safe."""

    _owed: tuple[Sequence[Record], Sequence[StoredAnswer], float] | None = None

    def append(
        self, records: Sequence[Record], answers: Sequence[StoredAnswer], at_s: float
    ) -> list[JournalEntry]:
        owed, self._owed = self._owed, (records, answers, at_s)
        if owed is not None:
            super().append(*owed)
        return [JournalEntry(self.last_seq + 1 + i, at_s, each) for i, each in enumerate(records)]


class ForgetfulJournal(Journal):
    """Does not know what a key was answered."""

    def answer(self, key: str) -> StoredAnswer | None:  # noqa: ARG002 - it forgets all of them
        return None


class TaillessJournal(Journal):
    """Reads the newest snapshot, and not what was written after it."""

    def fold(self) -> FoldedPool:
        base = base_of(self.store)
        if base is None or not base.seq:
            return super().fold()
        return FoldedPool(base.recording.pool, base.seq, base.at_s)


class DeafPool(Pool):
    """Hears of any attempt, as if it were the newest."""

    __slots__ = ()

    def is_of_lead(self, report: RunReported) -> bool:
        return report.fact.job in self.jobs


class AnyAttemptJournal(Journal):
    """Gives a pool that does not look at attempts."""

    def fold(self) -> FoldedPool:
        found = super().fold()
        fields = {name: getattr(found.pool, name) for name in Pool.__slots__}
        return found._replace(pool=DeafPool(**fields))


class AnyVersionServer(SimulatedServer):
    """Believes what a node holds, whichever orders the node knew when it told."""

    def put(self, ask: LoopRequest) -> None:
        def events(pool: Pool) -> list[Event]:
            return [
                replace(event, version=pool.nodes[event.node].version)
                if isinstance(event, NodeReported) and event.node in pool.nodes
                else event
                for event in ask.events(pool)
            ]

        super().put(LoopRequest(events, ask.reply, ask.once, ask.must))


class HastyServer(SimulatedServer):
    """Takes a lease for over when half of it is."""

    def __init__(self, *parts: Any, **more: Any) -> None:  # Any: whatever the server takes
        super().__init__(*parts, **more)
        self._leases = NodeLeases(self.lease_s / 2.0)


class EarlyNode(EmulatedNode):
    """Tells that slots are empty as soon as their jobs are told to leave."""

    def __init__(self, parts: EmulatedNodeParts) -> None:
        super().__init__(parts)
        tell = self.outbox.hold

        def hold(holding: Holding) -> None:
            orders = self.agent._orders
            stays = {run.job for runs in orders.seats.values() for run in runs}
            stops = {lead.job for lead in orders.leads if lead.stop}
            kept = {s: at for s, at in holding.slots.items() if at.job in stays - stops}
            tell(msgspec.structs.replace(holding, slots=kept))

        self.outbox.hold = hold  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class HaltingClock:
    """Counts half of the time, as a clock does that stands still while the machine sleeps."""

    clock: NodeClock
    began_s: float

    def wall_s(self) -> float:
        return self.clock.wall_s()

    def steady_s(self) -> float:
        return self.began_s + (self.clock.steady_s() - self.began_s) / 2.0


class WrongClockNode(EmulatedNode):
    """Counts its lease, and has its fence count it, by a clock that may halt."""

    def __init__(self, parts: EmulatedNodeParts) -> None:
        clock, fence = parts.clock, parts.fence
        began_s = clock.steady_s()

        def set_fence(at_s: float) -> None:
            fence(began_s + (at_s - began_s) * 2.0)

        super().__init__(replace(parts, clock=HaltingClock(clock, began_s), fence=set_fence))


class UnfencedNode(EmulatedNode):
    """Has nothing that ends its workers while the agent is stopped."""

    def __init__(self, parts: EmulatedNodeParts) -> None:
        super().__init__(replace(parts, fence=lambda _at_s: None))


class CarelessRunner(SimulatedRunner):
    """Takes a state for saved that could not be."""

    def _save(self) -> bool:
        super()._save()
        return True


class HastyCoordinator(Coordinator):
    """Takes all workers for ready as soon as one is."""

    def _on_answer(
        self, worker: int, generation: int, answers: set[int], now_s: float
    ) -> list[group.Command]:
        if self._plan is not None and generation == self._plan.generation:
            answers |= {*self._plan.to} - {worker}
        return super()._on_answer(worker, generation, answers, now_s)


class HastyLead(SupervisedRunner):
    def __init__(self, *parts: Any) -> None:  # Any: whatever a lead takes
        super().__init__(*parts)
        self._supervisor.job_status.coordinator.__class__ = HastyCoordinator


class CountingAnew(Adoption):
    """Does not go on from the numbers of generations that workers know."""

    __slots__ = ()

    def found(self) -> group.SurvivorsFound:
        return replace(super().found(), generation=0)


class AnewPoolJob(PoolJob):
    def on_living(self, node: str, word: Message) -> None:
        if self._adoption is not None:
            self._adoption.__class__ = CountingAnew
        super().on_living(node, word)


class AnewLead(SupervisedRunner):
    def __init__(self, *parts: Any) -> None:  # Any: as above
        super().__init__(*parts)
        assert self._supervisor._pool_job is not None
        self._supervisor._pool_job.__class__ = AnewPoolJob


class OptimisticCheckpointing(Checkpointing):
    """Takes an image for saved that could not be."""

    step: Callable[[], int]

    def tell_outcome(self, word: Message) -> None:
        if word["is"] == "unsaved":
            word = {"is": "saved", "step": self.step(), "path": "", "bytes": 0, "seconds": 0.0}
        super().tell_outcome(word)


class OptimisticLead(SupervisedRunner):
    def _open(self) -> None:
        super()._open()
        found, job_status = self._supervisor.checkpointing, self._supervisor.job_status
        found.__class__ = OptimisticCheckpointing
        assert isinstance(found, OptimisticCheckpointing)
        found.step = lambda: job_status.coordinator.step


class CrowdedJobHosts(JobHosts):
    """Takes a slot for free on which a worker is being killed."""

    def _is_free(self, slot: int, but_for: JobHost | None) -> bool:  # noqa: ARG002 - any slot is
        return True


MUTANTS = {
    "effects come before the journal": Makers(journal=LateJournal),
    "a request's key is forgotten": Makers(journal=ForgetfulJournal),
    "records after a snapshot are not read": Makers(journal=TaillessJournal),
    "attempts are not compared": Makers(journal=AnyAttemptJournal),
    "versions of orders are not compared": Makers(server=AnyVersionServer),
    "a lease is over too early": Makers(server=HastyServer),
    "a slot is freed too early": Makers(node=EarlyNode),
    "a lease is counted by the wrong clock": Makers(node=WrongClockNode),
    "a stopped agent has no fence": Makers(node=UnfencedNode),
    "a state that was not saved counts as saved": Makers(runner=CarelessRunner),
    "a group is committed to when its first worker is ready": Makers(lead=HastyLead),
    "a new lead counts generations anew": Makers(lead=AnewLead),
    "an image that was not saved counts as saved": Makers(lead=OptimisticLead),
    "a slot counts as free before its worker is gone": Makers(job_hosts=CrowdedJobHosts),
}

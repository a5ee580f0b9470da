"""The control loop: events in, records on disk, then effects. Synchronous; knows no asyncio. (D3)

One `turn` takes all that has come: each event is handled, what follows is committed in one batch,
and only then are the results published. A turn may leave the conclusions to a later one, so that no
request waits for a long decision. If the commit fails, nothing has happened: the pool is folded
again from the journal, users get an error, and the events of agents and of the clock are kept for
the next turn, because they are not sent twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from coddl.core.cluster import Cluster
from coddl.core.errors import UserError
from coddl.core.pool.control import ControlOutput, ControlPlane
from coddl.core.pool.failed_decision import FailedDecision
from coddl.core.pool.pending_decision import Decision, PendingDecision
from coddl.core.pool.records import Event, RunReported
from coddl.core.pool.state import Pool
from coddl.core.registry import BUILT_IN, Registry
from coddl.core.scheduler import Stability
from coddl.server.errors import JournalFull, KeyReused
from coddl.server.folding import JournalEntry
from coddl.server.journal import Journal
from coddl.server.store import StoredAnswer


class RequestDone(NamedTuple):
    """A request was handled, and everything that follows from it is durable."""

    response: str = ""  # of a request with a key: what it was answered, now or before


class RequestBug(NamedTuple):
    """A request failed because of a bug in the server."""

    error: Exception


Reply = RequestDone | UserError | RequestBug
Events = Callable[[Pool], Sequence[Event]]  # asked when its turn comes; may raise UserError


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """A request that takes effect once, however often it is repeated."""

    key: str
    request: str  # hash of what was asked
    respond: Callable[[], str]  # asked when all conclusions are drawn


def _no_reply(_reply: Reply) -> None:
    """Ignore the reply: no caller waits for it."""


@dataclass(frozen=True, slots=True, eq=False)
class LoopRequest:
    """Events to handle, and a callback for when they are durable."""

    events: Events
    reply: Callable[[Reply], None] = field(default=_no_reply)
    once: IdempotentRequest | None = None
    must: bool = False  # said once and never again: tried until it is safe
    submits: bool = False  # all its events are submits, which need not wait for a decision


def fact(event: Event, reply: Callable[[Reply], None] = _no_reply) -> LoopRequest:
    """Return the request for something that has happened: it is retried until it is durable."""
    return LoopRequest(lambda _pool: (event,), reply, must=True)


class LoopEffects(Protocol):
    """Receives the effects of a turn, after its commit."""

    def publish(self, entries: Sequence[JournalEntry]) -> None:
        """This has happened."""

    def tell(self, nodes: frozenset[str]) -> None:
        """The orders of these nodes are others now."""

    def drop(self, reports: Sequence[RunReported]) -> None:
        """These reports came from another node than the run's lead, and were ignored."""

    def report_failed(self, failed: FailedDecision) -> None:
        """The policy of a plug-in failed to decide."""

    def report_bug(self, error: Exception) -> None:
        """Something failed that can't fail."""

    def restore(self) -> Sequence[Event]:
        """Return facts that are not in the journal: silent nodes, slots held by jobs."""


class TurnResult(NamedTuple):
    """What remains to be done after a turn."""

    again: list[LoopRequest]  # could not be written down: to be tried again
    wake_at_s: float | None
    full: JournalFull | None = None


@dataclass(slots=True)
class _Batch:
    """What one commit is about."""

    met: list[LoopRequest] = field(default_factory=list)
    first: dict[str, IdempotentRequest] = field(default_factory=dict)  # of each new key
    known: dict[LoopRequest, str] = field(default_factory=dict)  # answered before, and how


class _Failed(Exception):
    """A bug was met while handling a request or, if None, while drawing conclusions."""

    def __init__(self, request: LoopRequest | None, error: Exception) -> None:
        super().__init__(request, error)
        self.request, self.error = request, error


class ControlLoop:
    """Owns the pool. One thread drives it."""

    def __init__(
        self,
        journal: Journal,
        stability: Stability,
        effects: LoopEffects,
        site: Cluster | None = None,
        registry: Registry = BUILT_IN,
    ) -> None:
        self._journal = journal
        self._stability = stability
        self._site = site
        self._registry = registry
        self._effects = effects
        self._must_restore = False
        folded = journal.fold()
        self._now_s = folded.at_s
        self.control = self._control_of(folded.pool)

    @property
    def pool(self) -> Pool:
        """The pool as the journal has it; not to be changed."""
        return self.control.pool

    def turn(
        self,
        requests: Sequence[LoopRequest],
        wall_s: float,
        *,
        conclude: bool = True,
        made: Callable[[], Decision] | None = None,
    ) -> TurnResult:
        """Handle the requests, commit the records, and publish the results.

        `made` returns the decision that was pending. It is to be given with no requests: what they
        say could concern jobs that the decision is about.
        """
        self._now_s = max(self._now_s, wall_s)  # wall clocks are set back now and then
        assert made is None or (conclude and not requests)
        try:
            return self._turn(requests, conclude=conclude, made=made)
        except _Failed as failed:
            self._fold_again()
            culprit = failed.request or (requests[0] if len(requests) == 1 else None)
            if culprit is not None or not requests:
                self._effects.report_bug(failed.error)
            if culprit is not None:
                if culprit.must and failed.request is None:
                    # What was said once is true, whatever we fail to conclude from it.
                    return self.turn(requests, wall_s, conclude=False)
                culprit.reply(RequestBug(failed.error))
                others = [request for request in requests if request is not culprit]
                return self.turn(others, wall_s, conclude=conclude and bool(others))
        # One of many has led to a wrong conclusion. Alone, each shows whether it was that one.
        again = [left for request in requests for left in self.turn([request], wall_s).again]
        return TurnResult(again, self.control.wake_at_s)

    def pending_decision(self, wall_s: float) -> PendingDecision | None:
        """Return the decision that is to be made, for another thread; None: there is none.

        Until it is made and given to `turn`, only submits may be taken. Where the pool is folded
        again meanwhile, `control` is another one, and the decision is void.
        """
        self._now_s = max(self._now_s, wall_s)
        try:
            if self._must_restore:
                self._restore()
            pending = self.control.pending_decision(self._now_s)
        except Exception as error:
            self._fold_again()
            self._effects.report_bug(error)
            return None
        before = self.control
        self.turn([], wall_s, conclude=False)  # what was concluded on the way is committed
        return pending if self.control is before else None

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def _turn(
        self,
        requests: Sequence[LoopRequest],
        *,
        conclude: bool,
        made: Callable[[], Decision] | None,
    ) -> TurnResult:
        batch = _Batch()
        if self._must_restore:
            self._restore()
        for request in requests:
            self._take(request, batch)
        outcome, answers = self._conclude(batch, conclude=conclude, made=made)
        entries: list[JournalEntry] = []
        if outcome.records or answers:
            try:
                entries = self._journal.append(outcome.records, answers, self._now_s)
            except JournalFull as full:
                return self._undo(batch, full)
        self._effects.publish(entries)
        self._effects.tell(outcome.instruct)
        self._effects.drop(outcome.dropped)
        if outcome.failed is not None:
            self._effects.report_failed(outcome.failed)
        responses = {answer.key: answer.response for answer in answers}
        for request in batch.met:
            response = responses.get(request.once.key, "") if request.once else ""
            request.reply(RequestDone(batch.known.get(request, response)))
        return TurnResult([], outcome.wake_at_s)

    def _take(self, request: LoopRequest, batch: _Batch) -> None:
        """Apply the events of one request to the pool."""
        try:
            if request.once is None or not self._came_before(request, request.once, batch):
                for event in request.events(self.pool):
                    self.control.take(event, self._now_s)
        except UserError as error:
            request.reply(error)
        except Exception as error:
            raise _Failed(request, error) from error
        else:
            batch.met.append(request)
            if request.once is not None and request not in batch.known:
                batch.first.setdefault(request.once.key, request.once)

    def _came_before(self, request: LoopRequest, once: IdempotentRequest, batch: _Batch) -> bool:
        """Return whether a request with this key has taken effect; raise if it was another one."""
        earlier = batch.first.get(once.key)
        known = self._journal.answer(once.key) if earlier is None else None
        before = known or earlier
        if before is not None and before.request != once.request:
            raise KeyReused(
                "the request cannot be met",
                f'Idempotency-Key "{once.key}" was used for another request',
                "a new key for a new request",
            )
        if known is not None:
            batch.known[request] = known.response
        return before is not None

    def _conclude(
        self, batch: _Batch, *, conclude: bool, made: Callable[[], Decision] | None
    ) -> tuple[ControlOutput, list[StoredAnswer]]:
        try:
            control, now_s = self.control, self._now_s
            outcome = control.conclude(now_s, made) if conclude else control.note()
            answers = [
                StoredAnswer(once.key, once.request, once.respond(), self._now_s)
                for once in batch.first.values()
            ]
        except Exception as error:
            raise _Failed(None, error) from error
        return outcome, answers

    def _undo(self, batch: _Batch, full: JournalFull) -> TurnResult:
        """Undo a batch that could not be committed: only the journal is true."""
        self._fold_again()
        for request in batch.met:
            if not request.must:
                request.reply(full)
        return TurnResult(
            [request for request in batch.met if request.must], self.control.wake_at_s, full
        )

    def _control_of(self, pool: Pool) -> ControlPlane:
        return ControlPlane(pool, self._stability, self._site, self._registry)

    def _fold_again(self) -> None:
        awaited = self.control.awaited
        self.control = self._control_of(self._journal.fold().pool)
        if awaited:
            self.control.await_nodes(awaited)
        self.control.reconsider("journal reloaded")
        self._must_restore = True

    def _restore(self) -> None:
        """Apply the facts again that are not in the journal."""
        try:
            for event in self._effects.restore():
                self.control.take(event, self._now_s)
        except Exception as error:
            self._effects.report_bug(error)
        self._must_restore = False

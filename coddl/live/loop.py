"""The control loop: events in, records on disk, then effects. Synchronous; knows no asyncio. (D3)

One `turn` takes all that has come: each event is handled, what follows is committed in one batch,
and only then is anybody told. A turn may leave the conclusions to a later one, so that nobody waits
for a decision that takes long. If the commit fails, nothing has happened: the pool is folded again
from the journal, users are told so, and what agents and the clock have said is kept for the next
turn, because they will not say it twice.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from coddl.core.cluster import Cluster
from coddl.core.errors import UserError
from coddl.core.pool.control import Control, Outcome
from coddl.core.pool.records import Event, RunReported
from coddl.core.pool.state import Pool
from coddl.core.scheduler import Stability
from coddl.live.errors import JournalFull, KeyReused
from coddl.live.journal import Journal, Noted
from coddl.live.store import Answer

ANSWERS_KEPT_S: Final = 86_400.0


class Done(NamedTuple):
    """An ask was met, and all that follows from it is safe."""

    response: str = ""  # of an ask with a key: what it was answered, now or before


class Bug(NamedTuple):
    """An ask could not be met, and that is nobody's fault but ours."""

    error: Exception


Reply = Done | UserError | Bug
Events = Callable[[Pool], Sequence[Event]]  # asked when its turn comes; may raise UserError


@dataclass(frozen=True, slots=True)
class Once:
    """A request that shall take effect once, however often it comes."""

    key: str
    request: str  # hash of what was asked
    respond: Callable[[], str]  # asked when all conclusions are drawn


def _nobody(_reply: Reply) -> None:
    """Nobody waits for the answer."""


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """Something to handle, and whom to tell when it is safe."""

    events: Events
    reply: Callable[[Reply], None] = field(default=_nobody)
    once: Once | None = None
    must: bool = False  # said once and never again: tried until it is safe


def fact(event: Event, reply: Callable[[Reply], None] = _nobody) -> Ask:
    """Make the ask for something that has happened, whether we can write it down now or not."""
    return Ask(lambda _pool: (event,), reply, must=True)


class Outbox(Protocol):
    """Where effects go, after the commit."""

    def publish(self, noted: Sequence[Noted]) -> None:
        """This has happened."""

    def tell(self, nodes: frozenset[str]) -> None:
        """The orders of these nodes are others now."""

    def drop(self, reports: Sequence[RunReported]) -> None:
        """These were not the word of a run's lead, and were not heard."""

    def report_bug(self, error: Exception) -> None:
        """Something failed that can't fail."""

    def restore(self) -> Sequence[Event]:
        """Give what a fold does not know, to be handled again: who is silent, who holds what."""


class Turn(NamedTuple):
    """What is left after a turn."""

    again: list[Ask]  # could not be written down: to be tried again
    wake_at_s: float | None
    full: JournalFull | None = None


@dataclass(slots=True)
class _Batch:
    """What one commit is about."""

    met: list[Ask] = field(default_factory=list)
    first: dict[str, Once] = field(default_factory=dict)  # of each new key
    known: dict[Ask, str] = field(default_factory=dict)  # answered before, and how


class _Failed(Exception):
    """Handling met a bug, while it was at an ask or, at None, at drawing conclusions."""

    def __init__(self, ask: Ask | None, error: Exception) -> None:
        super().__init__(ask, error)
        self.ask, self.error = ask, error


class ControlLoop:
    """Owns the pool. One thread drives it."""

    def __init__(
        self, journal: Journal, stability: Stability, outbox: Outbox, site: Cluster | None = None
    ) -> None:
        self._journal = journal
        self._stability = stability
        self._site = site
        self._outbox = outbox
        self._must_restore = False
        self._forgot_s = 0.0
        folded = journal.fold()
        self._now_s = folded.at_s
        self.control = Control(folded.pool, stability, site)

    @property
    def pool(self) -> Pool:
        """The pool as the journal has it; not to be changed."""
        return self.control.pool

    def turn(self, asks: Sequence[Ask], wall_s: float, *, conclude: bool = True) -> Turn:
        """Handle what has come, write it down, and tell who has to know."""
        self._now_s = max(self._now_s, wall_s)  # wall clocks are set back now and then
        try:
            return self._turn(asks, conclude=conclude)
        except _Failed as failed:
            self._fold_again()
            culprit = failed.ask or (asks[0] if len(asks) == 1 else None)
            if culprit is not None or not asks:
                self._outbox.report_bug(failed.error)
            if culprit is not None:
                if culprit.must and failed.ask is None:
                    # What was said once is true, whatever we fail to conclude from it.
                    return self.turn(asks, wall_s, conclude=False)
                culprit.reply(Bug(failed.error))
                others = [ask for ask in asks if ask is not culprit]
                return self.turn(others, wall_s, conclude=conclude and bool(others))
        # One of many has led to a wrong conclusion. Alone, each shows whether it was that one.
        again = [left for ask in asks for left in self.turn([ask], wall_s).again]
        return Turn(again, self.control.wake_at_s)

    def tidy(self) -> None:
        """Do what can wait: a picture of the pool, answers that nobody asks for any more."""
        if self._journal.picture_is_due():
            self._journal.keep_picture(self.pool, self._now_s)
        if self._now_s - self._forgot_s > ANSWERS_KEPT_S / 24:
            self._forgot_s = self._now_s
            self._journal.forget_answers(self._now_s - ANSWERS_KEPT_S)

    def close(self) -> None:
        """Keep a picture for a quick start if there is room, and let go of the journal."""
        with contextlib.suppress(JournalFull):
            self._journal.keep_picture(self.pool, self._now_s)
        self._journal.close()

    def _turn(self, asks: Sequence[Ask], *, conclude: bool) -> Turn:
        batch = _Batch()
        if self._must_restore:
            self._restore()
        for ask in asks:
            self._take(ask, batch)
        outcome, answers = self._conclude(batch, conclude=conclude)
        noted: list[Noted] = []
        if outcome.records or answers:
            try:
                noted = self._journal.append(outcome.records, answers, self._now_s)
            except JournalFull as full:
                return self._undo(batch, full)
        self._outbox.publish(noted)
        self._outbox.tell(outcome.instruct)
        self._outbox.drop(outcome.dropped)
        responses = {answer.key: answer.response for answer in answers}
        for ask in batch.met:
            response = responses.get(ask.once.key, "") if ask.once else ""
            ask.reply(Done(batch.known.get(ask, response)))
        return Turn([], outcome.wake_at_s)

    def _take(self, ask: Ask, batch: _Batch) -> None:
        """Let the pool take in one ask."""
        try:
            if ask.once is None or not self._came_before(ask, ask.once, batch):
                for event in ask.events(self.pool):
                    self.control.take(event, self._now_s)
        except UserError as error:
            ask.reply(error)
        except Exception as error:
            raise _Failed(ask, error) from error
        else:
            batch.met.append(ask)
            if ask.once is not None and ask not in batch.known:
                batch.first.setdefault(ask.once.key, ask.once)

    def _came_before(self, ask: Ask, once: Once, batch: _Batch) -> bool:
        """Tell whether a request with this key has taken effect; raise if it was another one."""
        earlier = batch.first.get(once.key)
        known = self._journal.answer(once.key) if earlier is None else None
        before = known or earlier
        if before is not None and before.request != once.request:
            raise KeyReused(
                "the request cannot be met",
                f'Idempotency-Key "{once.key}" came with another request before',
                "a new key for a new request",
            )
        if known is not None:
            batch.known[ask] = known.response
        return before is not None

    def _conclude(self, batch: _Batch, *, conclude: bool) -> tuple[Outcome, list[Answer]]:
        try:
            outcome = self.control.conclude(self._now_s) if conclude else self.control.note()
            answers = [
                Answer(once.key, once.request, once.respond(), self._now_s)
                for once in batch.first.values()
            ]
        except Exception as error:
            raise _Failed(None, error) from error
        return outcome, answers

    def _undo(self, batch: _Batch, full: JournalFull) -> Turn:
        """Let it not have happened: what is not in the journal is not true."""
        self._fold_again()
        for ask in batch.met:
            if not ask.must:
                ask.reply(full)
        return Turn([ask for ask in batch.met if ask.must], self.control.wake_at_s, full)

    def _fold_again(self) -> None:
        awaited = self.control.awaited
        self.control = Control(self._journal.fold().pool, self._stability, self._site)
        if awaited:
            self.control.await_nodes(awaited)
        self.control.reconsider("the journal was read again")
        self._must_restore = True

    def _restore(self) -> None:
        """Tell the pool once more what no journal holds."""
        try:
            for event in self._outbox.restore():
                self.control.take(event, self._now_s)
        except Exception as error:
            self._outbox.report_bug(error)
        self._must_restore = False

"""The control loop, driven by hand: one commit a turn, effects after it, nothing half done."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from coddl.core.errors import UserError
from coddl.core.pool import records as r
from coddl.core.pool.decision import POOL_STABILITY
from coddl.core.pool.errors import NotFound
from coddl.core.pool.failed_decision import FailedDecision
from coddl.core.pool.state import Pool
from coddl.core.scheduler import Stability
from coddl.server.errors import JournalFull, KeyReused
from coddl.server.folding import JournalEntry
from coddl.server.journal import Journal
from coddl.server.loop import (
    ControlLoop,
    IdempotentRequest,
    LoopRequest,
    Reply,
    RequestBug,
    RequestDone,
    fact,
)
from coddl.server.store import RecordJob, StoredAnswer, StoredRecord
from coddl.server.store_memory import MemoryStore
from tests.server.records import CPU, spec


class CountingStore(MemoryStore):
    """Counts commits, and writes down when they were."""

    def __init__(self, story: list[str]) -> None:
        super().__init__()
        self._story = story

    def append(
        self,
        lines: Sequence[StoredRecord],
        links: Sequence[RecordJob],
        answers: Sequence[StoredAnswer],
    ) -> None:
        """Keep all of it, or raise JournalFull."""
        super().append(lines, links, answers)
        self._story.append("commit")


@dataclass
class Effects:
    """Remembers what it was told."""

    story: list[str]
    bugs: list[Exception] = field(default_factory=list)
    soft: list[r.Event] = field(default_factory=list)

    def publish(self, noted: Sequence[JournalEntry]) -> None:
        self.story += [type(each.record).__name__ for each in noted]

    def tell(self, nodes: frozenset[str]) -> None:
        self.story += [f"tell {node}" for node in sorted(nodes)]

    def drop(self, reports: Sequence[r.RunReported]) -> None:
        self.story += [f"drop {each.node}" for each in reports]

    def report_failed(self, failed: FailedDecision) -> None:
        self.story.append(f"failed {failed.policy}")

    def report_bug(self, error: Exception) -> None:
        self.bugs.append(error)

    def restore(self) -> Sequence[r.Event]:
        return self.soft


class Driven:
    """A loop, its store and what came of it."""

    def __init__(self) -> None:
        self.story: list[str] = []
        self.store = CountingStore(self.story)
        self.outbox = Effects(self.story)
        self.loop = ControlLoop(Journal(self.store), POOL_STABILITY, self.outbox)
        self.replies: dict[str, Reply] = {}

    def ask(
        self, name: str, *events: r.Event, once: IdempotentRequest | None = None
    ) -> LoopRequest:
        return LoopRequest(lambda _pool: events, lambda reply: self._reply(name, reply), once)

    def fact(self, name: str, event: r.Event) -> LoopRequest:
        return fact(event, lambda reply: self._reply(name, reply))

    def submit(self, name: str, key: str = "", request: str = "") -> LoopRequest:
        def events(pool: Pool) -> tuple[r.Event, ...]:
            return (r.JobSubmitted(pool.next_job, spec(name)),)

        def respond() -> str:
            return f"job {self.loop.pool.next_job - 1}"

        once = IdempotentRequest(key, request or name, respond) if key else None
        return LoopRequest(events, lambda reply: self._reply(name, reply), once)

    def _reply(self, name: str, reply: Reply) -> None:
        self.replies[name] = reply
        self.story.append(f"reply {name}")

    def journalled(self) -> list[str]:
        return [noted.kind for noted in self.store.lines(0, 1000)]


@pytest.fixture
def driven() -> Driven:
    return Driven()


JOINED = r.NodeJoined("n1", "boot", "here", CPU)


def told(fact: r.RunFact | r.RunProgressed) -> r.RunReported:
    """Give a fact as the word of the only node."""
    return r.RunReported("n1", "boot", fact)


def test_a_turn_is_one_commit_and_one_decision_then_effects_then_replies(driven: Driven) -> None:
    driven.loop.turn([fact(JOINED), driven.submit("a"), driven.submit("b")], 10.0)
    assert driven.story[0] == "commit"
    assert driven.story.count("commit") == 1
    assert driven.story.count("Decided") == 1
    assert driven.story[-3:] == ["tell n1", "reply a", "reply b"]
    assert driven.replies == {"a": RequestDone(), "b": RequestDone()}
    assert sorted(driven.loop.pool.jobs) == [1, 2]


def test_a_mistake_is_told_to_who_made_it_and_others_go_on(driven: Driven) -> None:
    driven.loop.turn([driven.ask("ghost", r.JobCancelled(7, "")), driven.submit("a")], 10.0)
    assert isinstance(driven.replies["ghost"], NotFound)
    assert driven.replies["a"] == RequestDone()


def test_soft_news_commits_nothing(driven: Driven) -> None:
    driven.loop.turn([driven.submit("a")], 10.0)
    commits = driven.story.count("commit")
    driven.loop.turn([driven.ask("p", told(r.RunProgressed(1, 9, 5, 1, 0.1, 10)))], 11.0)
    assert driven.story.count("commit") == commits
    assert driven.replies["p"] == RequestDone()


def test_a_full_journal_undoes_the_turn_and_keeps_what_is_said_only_once(driven: Driven) -> None:
    driven.loop.turn([driven.submit("a")], 10.0)
    before = driven.journalled()
    driven.store.is_full = True
    told = len(driven.story)
    turn = driven.loop.turn([driven.submit("b"), driven.fact("joined", JOINED)], 11.0)
    assert isinstance(turn.full, JournalFull)
    assert driven.replies["b"] is turn.full
    assert "joined" not in driven.replies
    assert driven.story[told:] == ["reply b"]
    assert driven.journalled() == before
    assert sorted(driven.loop.pool.jobs) == [1]
    assert not driven.loop.pool.nodes

    driven.store.is_full = False
    again = driven.loop.turn([*turn.again, driven.submit("c")], 12.0)
    assert again.full is None
    assert driven.replies["joined"] == RequestDone()
    assert driven.loop.pool.nodes["n1"].is_up
    assert sorted(driven.loop.pool.jobs) == [1, 2]


def test_after_a_failed_commit_the_pool_hears_again_what_no_journal_holds(driven: Driven) -> None:
    driven.loop.turn([fact(JOINED)], 10.0)
    driven.outbox.soft = [r.NodeSilent("n1", "boot")]
    driven.store.is_full = True
    driven.loop.turn([driven.submit("a")], 11.0)
    assert not driven.loop.pool.nodes["n1"].is_silent
    driven.store.is_full = False
    driven.loop.turn([], 12.0)
    assert driven.loop.pool.nodes["n1"].is_silent


def test_nodes_that_were_awaited_are_still_awaited_after_a_failed_commit(driven: Driven) -> None:
    driven.loop.turn([fact(JOINED)], 10.0)
    driven.loop.control.await_nodes(["n1"])
    driven.store.is_full = True
    driven.loop.turn([driven.submit("a")], 11.0)
    assert driven.loop.control.awaited == {"n1"}


def test_a_request_takes_effect_once_however_often_it_comes(driven: Driven) -> None:
    driven.loop.turn([driven.submit("a", key="k")], 10.0)
    assert driven.replies["a"] == RequestDone("job 1")
    driven.loop.turn([driven.submit("other", key="k2"), driven.submit("a", key="k")], 11.0)
    assert driven.replies["a"] == RequestDone("job 1")
    assert driven.replies["other"] == RequestDone("job 2")
    assert sorted(driven.loop.pool.jobs) == [1, 2]


def test_twins_in_one_turn_are_one(driven: Driven) -> None:
    driven.loop.turn([driven.submit("a", key="k"), driven.submit("a", key="k")], 10.0)
    assert driven.story.count("reply a") == 2
    assert driven.replies["a"] == RequestDone("job 1")
    assert sorted(driven.loop.pool.jobs) == [1]


@pytest.mark.parametrize("turns", [1, 2])
def test_a_key_that_came_with_another_request_is_refused(driven: Driven, turns: int) -> None:
    asks = [driven.submit("a", key="k"), driven.submit("b", key="k")]
    for batch in [asks] if turns == 1 else [[asks[0]], [asks[1]]]:
        driven.loop.turn(batch, 10.0)
    assert isinstance(driven.replies["b"], KeyReused)
    assert sorted(driven.loop.pool.jobs) == [1]


def broken(_pool: Pool) -> tuple[r.Event, ...]:
    raise AssertionError("a bug")


def test_a_bug_hits_who_met_it_and_the_others_go_on(driven: Driven) -> None:
    hit: list[Reply] = []
    asks = [driven.submit("a"), LoopRequest(broken, hit.append), driven.submit("b")]
    driven.loop.turn(asks, 10.0)
    assert isinstance(hit[0], RequestBug)
    assert len(driven.outbox.bugs) == 1
    assert driven.replies == {"a": RequestDone(), "b": RequestDone()}
    assert sorted(driven.loop.pool.jobs) == [1, 2]
    assert driven.journalled().count("JobSubmitted") == 2


def test_a_bug_in_drawing_conclusions_hits_only_who_led_to_it(driven: Driven) -> None:
    def respond() -> str:
        raise AssertionError("a bug")

    guilty = driven.ask(
        "guilty", r.PolicyChosen("fifo", ""), once=IdempotentRequest("k", "h", respond)
    )
    driven.loop.turn([driven.submit("a"), guilty, driven.submit("b")], 10.0)
    assert isinstance(driven.replies["guilty"], RequestBug)
    assert driven.replies["a"] == driven.replies["b"] == RequestDone()
    assert driven.loop.pool.policy != "fifo"
    assert sorted(driven.loop.pool.jobs) == [1, 2]


def test_conclusions_may_be_left_to_a_later_turn(driven: Driven) -> None:
    driven.loop.turn([fact(JOINED), driven.submit("a")], 10.0, conclude=False)
    assert driven.journalled() == ["NodeJoined", "JobSubmitted"]
    assert driven.replies == {"a": RequestDone()}
    driven.loop.turn([], 11.0)
    assert driven.journalled()[2:] == ["Decided", "Aimed"]


def test_conclusions_that_could_not_be_written_down_are_drawn_again(driven: Driven) -> None:
    driven.loop.turn([fact(JOINED), driven.submit("a")], 10.0, conclude=False)
    driven.store.is_full = True
    assert driven.loop.turn([], 11.0).full is not None
    driven.store.is_full = False
    driven.loop.turn([], 12.0)
    assert driven.loop.pool.jobs[1].granted


def test_what_is_said_once_is_written_down_though_we_fail_to_conclude_from_it(
    driven: Driven,
) -> None:
    driven.loop.turn([fact(JOINED), driven.submit("a")], 10.0)
    stability = cast(Stability, None)  # with which every decision meets a bug
    driven.loop = ControlLoop(Journal(driven.store), stability, driven.outbox)
    driven.loop.turn([driven.fact("ended", told(r.RunEnded(1, 1, "lost")))], 11.0)
    assert driven.replies["ended"] == RequestDone()
    assert "RunEnded" in driven.journalled()
    assert driven.outbox.bugs


def test_time_never_goes_back_in_the_journal(driven: Driven) -> None:
    driven.loop.turn([driven.submit("a")], 100.0)
    driven.loop.turn([driven.submit("b")], 50.0)
    times = [line.at_s for line in driven.store.lines(0, 100)]
    assert times == sorted(times)
    later = ControlLoop(Journal(driven.store), POOL_STABILITY, driven.outbox)
    later.turn([driven.submit("c")], 60.0)
    assert driven.store.newest(1)[0].at_s == 100.0


def test_a_turn_of_many_keeps_errors_apart(driven: Driven) -> None:
    def refuse(_pool: Pool) -> tuple[r.Event, ...]:
        raise UserError("no", "not now", "later")

    refused: list[Reply] = []
    driven.loop.turn([LoopRequest(refuse, refused.append), driven.submit("a")], 10.0)
    assert str(refused[0]) == "no\n  because not now\n  try     later"
    assert driven.replies == {"a": RequestDone()}

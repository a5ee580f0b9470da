"""What the server is to hear: until it is safe, in order, and not twice for nothing."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from pathlib import Path
from typing import cast

import pytest

from coddl.agent.logs import BATCH_MAX, LogSpool
from coddl.agent.server_line import ServerLine, WebSocketDialer
from coddl.agent.server_session import ReportOutbox, ServerSession, pauses_s
from coddl.api import wire
from coddl.api.wire import (
    Hello,
    Holding,
    LogLine,
    Logs,
    NewOrders,
    Progress,
    Report,
    RunProgress,
    encoded,
)
from coddl.core.pool.orders import Orders
from coddl.core.pool.records import RunEnded, RunId, RunProgressed, RunStepped

STEPPED, ENDED = RunStepped(1, 1, 1), RunEnded(1, 1, "succeeded")


@pytest.fixture
def log_spool(tmp_path: Path) -> Iterator[LogSpool]:
    log_spool = LogSpool(tmp_path)
    yield log_spool
    log_spool.close()


@pytest.fixture
def outbox(log_spool: LogSpool) -> ReportOutbox:
    return ReportOutbox(log_spool)


def opened(outbox: ReportOutbox) -> list[wire.FromAgent]:
    """Have a line, and all that goes over it."""
    sent: list[wire.FromAgent] = []
    outbox.open(sent.append)
    return sent


def numbers(sent: list[wire.FromAgent]) -> list[int]:
    return [message.number for message in sent if isinstance(message, Report)]


def line(text: str) -> LogLine:
    return LogLine(0.0, 1, 0, 0, "stdout", text)


def test_facts_are_told_again_until_they_are_acknowledged(outbox: ReportOutbox) -> None:
    outbox.report(STEPPED)  # without a line
    assert numbers(opened(outbox)) == [1]
    outbox.report(ENDED)
    outbox.close()
    assert numbers(opened(outbox)) == [1, 2]
    outbox.acknowledged(1)
    outbox.acknowledged(1)  # a repeat
    outbox.close()
    assert not outbox.is_safe
    assert numbers(opened(outbox)) == [2]
    outbox.acknowledged(2)
    assert outbox.is_safe


@pytest.mark.parametrize("fact", [STEPPED, ENDED])
def test_a_report_carries_its_fact(fact: RunStepped | RunEnded, outbox: ReportOutbox) -> None:
    sent = opened(outbox)
    outbox.report(fact)
    (report,) = sent
    assert isinstance(report, Report)
    assert report.fact == fact


def test_what_is_held_is_told_when_it_is_news_and_after_a_silence(outbox: ReportOutbox) -> None:
    sent = opened(outbox)
    claim = RunId(1, 1)
    nothing = Holding(version=1, slots={}, runs=frozenset({claim}))
    held = Holding(version=1, slots={3: claim}, runs=frozenset({claim}))
    newest = Holding(version=2, slots={3: claim}, runs=frozenset({claim}))
    outbox.ordered()
    for holding in (nothing, held, held, newest):
        outbox.hold(holding)
    want = [nothing, held]
    assert sent == [*want, newest]
    outbox.hold_again()
    assert sent == [*want, newest, newest]
    again = opened(outbox)
    outbox.hold_again()
    outbox.hold(newest)
    assert again == [], "on a new line, not before orders have come there"
    outbox.ordered()
    outbox.hold(newest)
    assert again == [newest]


def test_lines_come_before_the_end_of_their_job(outbox: ReportOutbox, log_spool: LogSpool) -> None:
    sent = opened(outbox)
    log_spool.add(1, line("the last words"))
    outbox.report(ENDED)
    assert [type(message) for message in sent] == [Logs, Report]


def test_all_lines_come_before_the_end_however_many_there_are(
    outbox: ReportOutbox, log_spool: LogSpool
) -> None:
    sent = opened(outbox)
    for number in range(BATCH_MAX * 2 + 500):
        log_spool.add(1, line(f"{number}"))
        log_spool.add(2, line("of another"))  # which may wait
    outbox.report(ENDED)
    assert [type(message) for message in sent] == [Logs, Logs, Logs, Report]
    said = [each.text for batch in sent if isinstance(batch, Logs) for each in batch.lines]
    assert said == [f"{number}" for number in range(BATCH_MAX * 2 + 500)]


def test_lines_that_were_not_carried_come_again(outbox: ReportOutbox, log_spool: LogSpool) -> None:
    sent = opened(outbox)
    for text in "ab":
        log_spool.add(1, line(text))
        outbox.flush()
    outbox.close()
    outbox.unsent(sent)
    (batch,) = opened(outbox)
    assert isinstance(batch, Logs)
    assert [each.text for each in batch.lines] == ["a", "b"]


def test_of_progress_only_the_newest_counts(outbox: ReportOutbox) -> None:
    sent = opened(outbox)
    for step in (1, 2):
        progressed = RunProgressed(1, 1, step, 2, 0.1, 10)
        outbox.progress(RunProgress(progressed=progressed))
    outbox.flush(progress=False)
    outbox.flush()
    outbox.flush()
    (told,) = sent
    assert isinstance(told, Progress)
    assert [run.progressed.step for run in told.runs] == [2]


def test_that_we_leave_is_told_after_a_silence_too(outbox: ReportOutbox) -> None:
    sent = opened(outbox)
    assert sent == []
    outbox.leave()
    assert sent == [wire.Leaving()]
    assert opened(outbox) == [wire.Leaving()]


def test_pauses_grow_to_a_bound_and_differ() -> None:
    longest = list(islice(pauses_s(lambda: 1.0), 8))
    assert longest == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert list(islice(pauses_s(lambda: 0.0), 2)) == [0.1, 0.2]


class Nobody:
    """A worker that must not be told anything."""

    def take(self, orders: Orders, peers: object) -> None:
        raise AssertionError(orders, peers)


def test_orders_that_come_without_a_lease_are_not_taken(outbox: ReportOutbox) -> None:
    async def words() -> AsyncIterator[bytes]:
        yield encoded(NewOrders(orders=Orders(1, {}, (), {}), peers=()))

    async def listen() -> None:
        dialer = WebSocketDialer("http://127.0.0.1:1", "t")
        session = ServerSession(dialer, cast(Hello, None), outbox, on_pool=print, on_store=print)
        await session._listen(cast(ServerLine, words()), Nobody())

    with pytest.raises(ConnectionError, match="after the lease"):
        asyncio.run(listen())

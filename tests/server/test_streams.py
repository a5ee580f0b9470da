"""Server-sent events: nothing twice, nothing missed, and an end where there is one."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coddl.core.pool.records import RunEnded
from tests.server.harness import LivePool, events_of, eventually
from tests.server.test_agent_sessions import tell_lines


@contextmanager
def stream(live: LivePool, path: str, last: int | None = None) -> Iterator[Iterator[Any]]:
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    with live.client.stream("GET", f"/api/v1{path}", headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield (
            (event.get("id"), event.get("event"), json.loads(event["data"]))
            for event in events_of(answer.iter_lines())
        )


def numbers(events: Iterator[Any], count: int) -> list[int]:
    return [int(next(events)[0]) for _ in range(count)]


def test_a_watcher_sees_what_was_and_what_comes(live: LivePool) -> None:
    live.submit(name="a")
    with stream(live, "/events?watch=true") as events:
        assert numbers(events, 2) == [1, 2]
        live.submit(name="b")
        number, kind, event = next(events)
        assert (number, kind) == ("3", None)
        assert (event["kind"], event["job"]) == ("JobSubmitted", 2)


def test_a_watcher_goes_on_where_it_was(live: LivePool) -> None:
    for name in "abc":
        live.submit(name=name)
    with stream(live, "/events?watch=true&after=1") as events:
        assert numbers(events, 2) == [2, 3]
    with stream(live, "/events?watch=true&after=1", last=3) as events:
        assert numbers(events, 3) == [4, 5, 6]
        live.submit(name="d")
        assert numbers(events, 2) == [7, 8]


def test_more_than_a_page_is_streamed_without_a_gap(live: LivePool) -> None:
    for _ in range(5):
        live.submit(name="a")
    with stream(live, "/events?watch=true&after=0&limit=2") as events:
        assert numbers(events, 10) == list(range(1, 11))


def test_followers_see_lines_as_they_come_and_the_end(live: LivePool) -> None:
    agent = live.joined("n1", slots=1)
    live.submit(name="a", gpus=1)
    tell_lines(agent, 1, "one", "two")
    with stream(live, "/jobs/a/logs?follow=true") as events:
        assert [next(events)[2]["text"] for _ in range(2)] == ["one", "two"]
        tell_lines(agent, 1, "three")
        number, kind, line = next(events)
        assert (number, kind, line["text"]) == ("3", None, "three")
        tell_lines(agent, 1, "four")
        agent.report(RunEnded(1, 1, "failed", 1, 3))
        assert next(events)[2]["text"] == "four"
        _, kind, job = next(events)
        assert (kind, job["state"], job["exit_code"]) == ("end", "FAILED", 3)
        assert list(events) == []


def test_followers_get_lines_that_come_after_the_end(live: LivePool) -> None:
    agent = live.joined("n1", slots=1)
    live.submit(name="a", gpus=1)
    with stream(live, "/jobs/a/logs?follow=true") as events:
        agent.report(RunEnded(1, 1, "failed", 1, 3))
        for name in ("one", "two"):  # other nodes' last lines, and what else happens meanwhile
            live.submit(name=name)
            time.sleep(0.1)
            tell_lines(agent, 1, name)
            assert next(events)[2]["text"] == name
        assert next(events)[1] == "end"


def test_followers_go_on_where_they_were_or_at_the_last_lines(live: LivePool) -> None:
    agent = live.joined("n1", slots=1)
    live.submit(name="a", gpus=1)
    tell_lines(agent, 1, *"abcd")
    agent.report(RunEnded(1, 1, "succeeded", 1, 0))
    eventually(lambda: live.job("a")["state"] == "SUCCEEDED")
    live.clock.turn(5.0)
    with stream(live, "/jobs/a/logs?follow=true&tail=1") as events:
        assert [event.get("text") for _, _, event in events] == ["d", None]
    with stream(live, "/jobs/a/logs?follow=true&tail=1", last=2) as events:
        assert [event.get("text") for _, _, event in events] == ["c", "d", None]


def test_streams_end_when_the_server_does(live: LivePool) -> None:
    live.submit(name="a")
    with (
        stream(live, "/events?watch=true") as events,
        stream(live, "/jobs/a/logs?follow=true") as lines,
    ):
        numbers(events, 2)
        live.soon(live.server.close_lines)
        assert list(events) == []
        assert list(lines) == []

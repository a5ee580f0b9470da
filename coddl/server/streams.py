"""Server-sent events: what happens from now on, and what came before, without a gap between."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Final

from sse_starlette import EventSourceResponse, ServerSentEvent

from coddl.core.pool.job import JobState
from coddl.server import views
from coddl.server.journal import ReadEntry
from coddl.server.logs import LogQuery, StoredLogLine
from coddl.server.server import Server

PAGE: Final = 500
PING_S: Final = 15
LINGER_S: Final = 0.5  # for lines of a job that is over which are still on their way


def event_stream(events: AsyncIterator[ServerSentEvent]) -> EventSourceResponse:
    """Answer with a stream."""
    return EventSourceResponse(events, ping=PING_S, sep="\n")


async def watch_events(
    server: Server, after: int, job: int | None, first: list[ReadEntry]
) -> AsyncIterator[ServerSentEvent]:
    """Yield records, then those that come; `first` has what came up to `after`."""
    page = first
    while not server.is_closing:
        for entry in page:
            view = views.event_view(entry, server.pool.unit, job)
            yield ServerSentEvent(view.model_dump_json(), id=str(entry.seq))
            after = max(after, entry.seq)
        count = server.happened.count
        page = await asyncio.to_thread(server.journal.read, after, PAGE, job)
        if not page:
            await server.happened.wait_after(count)


async def follow_logs(
    server: Server, job: int, wanted: LogQuery, tail: int | None
) -> AsyncIterator[ServerSentEvent]:
    """Yield a job's lines, then those that it prints, and `end` when it is over."""
    reader = await asyncio.to_thread(server.logs.read, job, wanted)
    with contextlib.closing(reader):
        page = [] if tail is None else await asyncio.to_thread(reader.last, tail)
        until_s: float | None = None  # then no more of a job that is over is expected
        while not server.is_closing:
            for kept in page:
                yield _line_event(kept)
            notifier, state = server.printed(job), server.find(str(job))
            count, is_over = notifier.count, state.is_over
            page = await asyncio.to_thread(reader.more)
            if page:
                until_s = None
                continue
            if is_over:
                until_s = until_s or time.monotonic() + LINGER_S
                if time.monotonic() >= until_s or _is_long_over(server, state):
                    yield ServerSentEvent(server.job_view(state).model_dump_json(), event="end")
                    return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(until_s and until_s - time.monotonic()):
                    await notifier.wait_after(count)


def _is_long_over(server: Server, job: JobState) -> bool:
    return job.ended_s is not None and server.clock.wall_s() - job.ended_s > LINGER_S


def _line_event(kept: StoredLogLine) -> ServerSentEvent:
    return ServerSentEvent(views.line_view(kept).model_dump_json(), id=str(kept.number))

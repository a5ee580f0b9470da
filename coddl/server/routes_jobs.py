"""Routes of jobs: hand in, look, change, stop."""

import asyncio
import hashlib
import secrets
from dataclasses import replace
from itertools import islice
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Header, Query, Response
from sse_starlette import EventSourceResponse

from coddl.api import rest
from coddl.api.emulation import EmulatedJob
from coddl.api.spec import JobRequest
from coddl.core.errors import UserError
from coddl.core.pool.control import ControlPlane
from coddl.core.pool.errors import NotFound
from coddl.core.pool.explain import explain
from coddl.core.pool.job import JobState
from coddl.core.pool.preview import preview
from coddl.core.pool.records import (
    Event,
    JobBounded,
    JobCancelled,
    JobPrioritised,
    JobResumed,
    JobSubmitted,
    JobSuspended,
)
from coddl.core.pool.spec import JobSpec
from coddl.core.pool.state import Pool
from coddl.core.speed.profile import TrainingProfile
from coddl.server import views
from coddl.server.clock import ScaledClock
from coddl.server.folding import UnreadableRecord
from coddl.server.job_names import newest_first
from coddl.server.logs import LogQuery
from coddl.server.loop import IdempotentRequest
from coddl.server.route_params import After, By, Limit, at_page
from coddl.server.server import Server
from coddl.server.store import HistoryQuery
from coddl.server.streams import event_stream, follow_logs

STORY_MAX: Final = 1_000  # records that `explain` reads, the newest
LINES_MAX: Final = 10_000

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        description="The same key with the same body gives the same answer, for a day.",
    ),
]


def routes(server: Server) -> APIRouter:
    """Return the routes of jobs."""
    router = APIRouter(tags=["jobs"])
    _add_submit(router, server)
    _add_listing(router, server)
    _add_reading(router, server)
    _add_actions(router, server)
    _add_logs(router, server)
    return router


def _add_submit(router: APIRouter, server: Server) -> None:
    @router.post(
        "/jobs", status_code=201, responses={200: {"model": rest.PreviewView}}, response_model=None
    )
    async def submit(
        request: JobRequest,
        key: Key = None,
        dry_run: Annotated[bool, Query(description="Return what would happen; change nothing.")] = (
            False
        ),
    ) -> Response:
        """Submit a job."""
        if request.code and not server.archives.claim(request.code):
            raise UserError(
                f'job "{request.the_name}" cannot be accepted',
                f"its code {request.code} was not uploaded",
                f"PUT {rest.API}/code/{request.code} first",
            )
        asked = request.to_spec(views.devices_at_most(server.pool))
        if isinstance(server.clock, ScaledClock):
            EmulatedJob.of(asked.launch.argv)  # or it could only fail
        if dry_run:
            shown = await _preview(server, asked)
            return _json(shown.model_dump_json(), 200)
        numbers: list[int] = []

        def events(pool: Pool) -> tuple[Event, ...]:
            numbers.append(pool.next_job)
            spec = replace(request.to_spec(views.devices_at_most(pool)), uid=secrets.token_hex(8))
            return (JobSubmitted(pool.next_job, spec),)

        def respond() -> str:
            return server.job_view(server.pool.jobs[numbers[-1]]).model_dump_json()

        if key is None:
            await server.ask(events, submits=True)
            return _json(respond(), 201)
        digest = hashlib.sha256(request.model_dump_json().encode()).hexdigest()
        once = IdempotentRequest(key, digest, respond)
        return _json(await server.ask(events, once, submits=True), 201)


async def _preview(server: Server, spec: JobSpec) -> rest.PreviewView:
    """Decide on a copy, in a thread: others are not kept waiting."""
    body = msgspec.json.encode(server.pool)
    now_s = server.clock.wall_s()

    def look() -> rest.PreviewView:
        pool = msgspec.json.decode(body, type=Pool)
        control = ControlPlane(pool, server.stability, server.site, server.registry)
        found = preview(control, spec, now_s)
        total = views.devices(pool)
        return rest.PreviewView(
            policy=pool.policy,
            slots_total=total,
            slots_free=total - views.used(pool),
            job=views.effect_view(found.job),
            others=[views.effect_view(effect) for effect in found.others],
        )

    return await asyncio.to_thread(look)


def _json(body: str, status: int) -> Response:
    return Response(body, status, media_type="application/json")


def _add_listing(router: APIRouter, server: Server) -> None:
    @router.get("/jobs")
    async def jobs(
        *,
        state: Annotated[list[rest.State] | None, Query()] = None,
        user: str | None = None,
        name: str | None = None,
        active: Annotated[bool | None, Query(description="Only jobs that have not ended.")] = None,
        limit: Limit = 100,
        cursor: Annotated[int | None, Query(description="`next` of the previous page.")] = None,
    ) -> rest.JobsView:
        """List jobs, the newest first; also those that have left the server's memory."""

        def is_wanted(job: JobState) -> bool:
            return (
                (state is None or views.state_of(job) in state)
                and (user is None or job.spec.user == user)
                and (name is None or job.spec.name == name)
                and (active is None or active != job.is_over)
            )

        jobs = newest_first(server.pool, cursor, bool(active))
        found = list(islice((job for job in jobs if is_wanted(job)), limit + 1))
        phases = tuple(each.lower() for each in state or ())
        if not active and server.pool.forgotten:
            wanted = HistoryQuery(before=cursor, phases=phases, user=user, name=name)
            seen = (found, wanted, limit + 1)
            found = await asyncio.to_thread(server.history.merged_with, *seen)
        page = found[:limit]
        rest_of_it = str(page[-1].id) if len(found) > limit else None
        return rest.JobsView(items=[server.job_view(job) for job in page], next=rest_of_it)


def _add_reading(router: APIRouter, server: Server) -> None:
    @router.get("/jobs/{job}")
    async def describe(job: str) -> rest.JobView:
        """Show a job, by number or name."""
        state = server.find(job)
        return views.described_job(server.pool, state, server.job_view(state))

    @router.get("/jobs/{job}/explain")
    async def explain_job(job: str) -> rest.ExplainView:
        """Return why a job is where it is, and how it came there."""
        number = server.find(job).id
        seen = await asyncio.to_thread(server.journal.newest, STORY_MAX, number)
        story = [(seq, at_s, it) for seq, at_s, it in seen if not isinstance(it, UnreadableRecord)]
        state = server.find(str(number))  # as it is now
        explanation = explain(server.pool, state, story, server.clock.wall_s(), server.awaited)
        removed = views.events_removed(server.journal, state)
        return views.explain_view(explanation, server.job_view(state), removed)

    @router.get("/jobs/{job}/profile")
    async def profile(job: str) -> rest.ProfileView:
        """Show what one worker has measured of a job's training: times, gradients, memory."""
        return rest.ProfileView.model_validate(_profile_of(server.find(job)).as_data())

    @router.get("/jobs/{job}/estimate")
    async def estimate(job: str) -> rest.EstimateInputView:
        """Show what a job's speed is estimated from: profile, links, measured steps."""
        state = server.find(job)
        return views.estimate_input(server.pool, state, _profile_of(state))

    @router.get("/jobs/{job}/events")
    async def events(job: str, after: After = None, limit: Limit = 100) -> rest.EventsView:
        """List the events of a job: the newest, or those after a number."""
        state = server.find(job)
        number = state.id
        page = await asyncio.to_thread(at_page, server.journal, after, limit, number)
        items = [views.event_view(noted, server.pool.unit, number) for noted in page]
        last = items[-1].number if items else after or 0
        removed = views.events_removed(server.journal, state)
        return rest.EventsView(items=items, next=last, removed=removed)


def _profile_of(state: JobState) -> TrainingProfile:
    """Return what a job has measured of its training; raises NotFound."""
    if state.profile is None:
        raise NotFound(
            f'job {state.id} "{state.spec.name}" has no profile',
            "a job measures its passes after the first steps of a script with coddl.prepare",
            f"coddl describe {state.id}, and again when it has made 30 steps",
        )
    return state.profile


def _add_actions(router: APIRouter, server: Server) -> None:
    async def done(number: int, event: Event) -> rest.JobView:
        await server.ask(lambda _pool: (event,))
        return server.job_view(server.pool.jobs[number])

    @router.post("/jobs/{job}:cancel", status_code=202)
    async def cancel(job: str, by: By = "") -> rest.JobView:
        """Stop a job permanently."""
        number = server.find_active(job, "cancelled").id
        return await done(number, JobCancelled(number, by))

    @router.post("/jobs/{job}:suspend", status_code=202)
    async def suspend(job: str, by: By = "") -> rest.JobView:
        """Make a job save its state and release its GPUs until it is resumed."""
        number = server.find_active(job, "suspended").id
        return await done(number, JobSuspended(number, by))

    @router.post("/jobs/{job}:resume", status_code=202)
    async def resume(job: str, by: By = "") -> rest.JobView:
        """Make a suspended job schedulable again."""
        number = server.find_active(job, "resumed").id
        return await done(number, JobResumed(number, by))

    @router.patch("/jobs/{job}")
    async def change(job: str, change: rest.JobChange, by: By = "") -> rest.JobView:
        """Change a job's bounds or priority."""
        number = server.find_active(job, "changed").id

        def events(pool: Pool) -> list[Event]:
            state, found = pool.jobs[number], list[Event]()
            if change.gpus_min is not None or change.gpus_max is not None:
                least = change.gpus_min if change.gpus_min is not None else state.gpus_min
                most = change.gpus_max if change.gpus_max is not None else state.gpus_max
                found.append(JobBounded(number, least, most, by))
            if change.priority is not None:
                found.append(JobPrioritised(number, change.priority, by))
            return found

        await server.ask(events)
        return server.job_view(server.pool.jobs[number])


def _add_logs(router: APIRouter, server: Server) -> None:
    @router.get("/jobs/{job}/logs", response_model=rest.LogsView)
    async def logs(
        job: str,
        *,
        tail: Annotated[int | None, Query(ge=0, le=LINES_MAX)] = None,
        since_s: Annotated[
            float | None, Query(description="Only lines since then (seconds since 1970).")
        ] = None,
        rank: int | None = None,
        follow: Annotated[bool, Query(description="Stream lines until the job has ended.")] = False,
        last_event_id: Annotated[int | None, Header()] = None,
    ) -> rest.LogsView | EventSourceResponse:
        """Return what a job has printed: the last lines, or a stream of server-sent events."""
        number = server.find(job).id
        wanted = LogQuery(after=last_event_id or 0, since_s=since_s, rank=rank)
        if follow:
            first = None if last_event_id is not None else tail
            return event_stream(follow_logs(server, number, wanted, first))

        def read() -> list[rest.LogLineView]:
            reader = server.logs.read(number, wanted)
            try:
                return [views.line_view(kept) for kept in reader.last(_count(tail))]
            finally:
                reader.close()

        items = await asyncio.to_thread(read)
        is_gone = number not in server.pool.jobs and not server.logs.has(number)
        removed = "its output was removed, as it ended long ago" if is_gone else ""
        return rest.LogsView(items=items, removed=removed)


def _count(tail: int | None) -> int:
    return LINES_MAX if tail is None else tail

"""Routes of what has been: timelines, metrics of jobs, decisions."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import APIRouter, Query

from coddl.api import rest_history as rest
from coddl.server.decisions import JobsThen, decision_view, decisions_view
from coddl.server.metric_log import MetricPoint
from coddl.server.route_params import Limit
from coddl.server.server import Server
from coddl.server.timeline_views import timeline_view

SHOWN_S: Final = 3_600.0
POINTS_MAX: Final = 500  # of a metric

Since = Annotated[float | None, Query(ge=0, description="Seconds since 1970.")]


def routes(server: Server) -> APIRouter:
    """Return the routes of what has been."""
    router = APIRouter(tags=["history"])

    @router.get("/timeline")
    async def timeline(since_s: Since = None, until_s: Since = None) -> rest.TimelineView:
        """Show which job held how many GPUs, and when; by default in the last hour."""
        until_s = server.clock.wall_s() if until_s is None else until_s
        since_s = until_s - SHOWN_S if since_s is None else since_s
        # Spans are never changed, so that a thread may read them while the pool goes on.
        jobs, capacities = dict(server.pool.jobs), server.pool.capacities
        jobs = {**await asyncio.to_thread(server.history.around, since_s, until_s), **jobs}
        return await asyncio.to_thread(timeline_view, jobs.values(), capacities, since_s, until_s)

    @router.get("/jobs/{job}/timeline")
    async def job_timeline(job: str) -> rest.TimelineView:
        """Show how many GPUs a job held, and when, since it was submitted."""
        state = server.find(job)
        until_s = state.ended_s if state.ended_s is not None else server.clock.wall_s()
        return timeline_view([state], server.pool.capacities, state.submitted_s, until_s)

    @router.get("/jobs/{job}/metrics")
    async def metrics(job: str) -> rest.MetricsView:
        """Show what a job has logged with `coddl.log`, at some 500 points of each metric."""
        number = server.find(job).id
        found = await asyncio.to_thread(server.metric_log.series, number, POINTS_MAX)
        return rest.MetricsView(series=[_series(name, found[name]) for name in sorted(found)])

    @router.get("/decisions")
    async def decisions(
        before: Annotated[
            int | None, Query(ge=1, description="Only decisions before this number.")
        ] = None,
        limit: Limit = 100,
    ) -> rest.DecisionsView:
        """List decisions, the newest first."""
        jobs = JobsThen(server.history, dict(server.pool.jobs))
        return await asyncio.to_thread(decisions_view, server.journal, jobs, before, limit)

    @router.get("/decisions/{number}")
    async def decision(number: int) -> rest.DecisionDetailView:
        """Show a decision, and what the policy saw."""
        jobs = JobsThen(server.history, dict(server.pool.jobs))
        return await asyncio.to_thread(decision_view, server.journal, jobs, number)

    return router


def _series(name: str, points: Sequence[MetricPoint]) -> rest.SeriesView:
    return rest.SeriesView(
        name=name,
        step=[point.step for point in points],
        at_s=[point.at_s for point in points],
        value=[point.value for point in points],
    )

"""Routes of what has been: timelines, metrics of jobs, decisions."""

from typing import Annotated

from fastapi import APIRouter, Query

from coddl.api import rest_history as rest
from coddl.core.pool.errors import NotFound
from coddl.server.route_params import Limit
from coddl.server.server import Server

Since = Annotated[float | None, Query(ge=0, description="Seconds since 1970.")]


def routes(server: Server) -> APIRouter:
    """Give the routes of what has been."""
    router = APIRouter(tags=["history"])

    @router.get("/timeline")
    async def timeline(since_s: Since = None, until_s: Since = None) -> rest.TimelineView:
        """Show which job held how many GPUs, and when; the last hour, unless told otherwise."""
        until_s = server.clock.wall_s() if until_s is None else until_s
        since_s = until_s - 3600 if since_s is None else since_s
        return rest.TimelineView(since_s=since_s, until_s=until_s, gpus=[], spans=[])

    @router.get("/jobs/{job}/timeline")
    async def job_timeline(job: str) -> rest.TimelineView:
        """Show how many GPUs a job held, and when, since it was submitted."""
        state = server.find(job)
        until_s = state.ended_s if state.ended_s is not None else server.clock.wall_s()
        return rest.TimelineView(since_s=state.submitted_s, until_s=until_s, gpus=[], spans=[])

    @router.get("/jobs/{job}/metrics")
    async def metrics(job: str) -> rest.MetricsView:
        """Show what a job has logged with `coddl.log`, at some 500 points of each metric."""
        server.find(job)
        return rest.MetricsView(series=[])

    @router.get("/decisions")
    async def decisions(
        before: Annotated[
            int | None, Query(ge=1, description="Only decisions before this number.")
        ] = None,
        limit: Limit = 100,
    ) -> rest.DecisionsView:
        """List decisions, the newest first."""
        return rest.DecisionsView(items=[], next=None)

    @router.get("/decisions/{number}")
    async def decision(number: int) -> rest.DecisionDetailView:
        """Show a decision, and what the policy saw."""
        raise NotFound(f"decision {number} cannot be found", "no record has it", "coddl events")

    return router

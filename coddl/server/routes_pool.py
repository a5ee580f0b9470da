"""Routes of the pool as a whole: nodes, policy, what happens, what probes and Prometheus ask."""

import asyncio
import re
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from sse_starlette import EventSourceResponse

from coddl import __version__
from coddl.api import rest
from coddl.api.rest_engine import EngineReport
from coddl.api.wire import PROTOCOL
from coddl.core.node_count import NodeBounds
from coddl.core.pool.errors import NotFound
from coddl.core.pool.node_problems import node_problems
from coddl.core.pool.nodes import NodeState
from coddl.core.pool.records import (
    EngineBounded,
    EngineReported,
    NodeDrained,
    NodeForgotten,
    NodeUndrained,
    PolicyChosen,
    ReportedNode,
)
from coddl.core.pool.scaling import orders_of
from coddl.core.pool.state import Pool
from coddl.server import views
from coddl.server.auth import ACCESS
from coddl.server.metrics import PoolGauges
from coddl.server.route_params import After, By, Limit, WithinSeconds, at_page
from coddl.server.server import Server
from coddl.server.streams import event_stream, watch_events
from coddl.server.warm_up import warm_up


def routes(server: Server) -> APIRouter:
    """Return the routes of the pool."""
    router = APIRouter(tags=["pool"])
    _add_nodes(router, server)
    _add_engine(router, server)
    _add_policy(router, server)
    _add_events(router, server)

    @router.get("/pool")
    async def pool() -> rest.PoolView:
        """Show the pool in one screen."""
        return views.pool_view(
            server.pool,
            pool_id=server.pool_id,
            lease_s=server.lease_s,
            started_s=server.started_s,
            is_ready=not server.waits_for(),
            checkpoints=server.checkpoints,
            now_s=server.clock.wall_s(),
            time_scale=server.clock.scale,
        )

    @router.get("/access")
    async def access(request: Request) -> rest.AccessView:
        """Return the rights of this request's token."""
        return rest.AccessView(access=request.scope[ACCESS])

    return router


def name_order(name: str) -> list[str | int]:
    """Return what names are ordered by, so that node-2 comes before node-10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", name)]


def _add_nodes(router: APIRouter, server: Server) -> None:
    def find(node: str) -> NodeState:
        if node not in server.pool.nodes:
            known = ", ".join(sorted(server.pool.nodes)) or "none yet"
            raise NotFound(
                f'node "{node}" cannot be found', f"the pool's nodes are: {known}", "coddl nodes"
            )
        return server.pool.nodes[node]

    @router.get("/nodes")
    async def nodes() -> rest.NodesView:
        """List nodes and their devices."""
        found = sorted(server.pool.nodes.values(), key=lambda node: name_order(node.name))
        engine = server.engine_view()
        return rest.NodesView(
            items=[server.node_view(node) for node in found],
            engine=engine if engine.engine else None,
            problems=list(node_problems(server.pool).values()),
        )

    @router.get("/nodes/{node}")
    async def describe(node: str) -> rest.NodeView:
        """Show a node and its devices."""
        return server.node_view(find(node))

    @router.post("/nodes/{node}:drain", status_code=202)
    async def drain(node: str, by: By = "", within_s: WithinSeconds = None) -> rest.NodeView:
        """Start nothing new on a node, and move its jobs away.

        After `within_s` nothing runs there any more: what can't move is saved and stopped.
        """
        await server.ask(lambda _pool: (NodeDrained(node, by, within_s),))
        return server.node_view(find(node))

    @router.post("/nodes/{node}:undrain", status_code=202)
    async def undrain(node: str, by: By = "") -> rest.NodeView:
        """Use a node again."""
        await server.ask(lambda _pool: (NodeUndrained(node, by),))
        return server.node_view(find(node))

    @router.post("/nodes/{node}:forget")
    async def forget(node: str, by: By = "") -> rest.NodeView:
        """Take a node off the list that was lost and will not come back."""
        known = server.node_view(find(node))
        await server.ask(lambda _pool: (NodeForgotten(node, by),))
        return known


def _add_engine(router: APIRouter, server: Server) -> None:
    @router.get("/engine")
    async def engine() -> rest.EngineView:
        """Show what brings the nodes of the pool, and how many are wanted."""
        return server.engine_view()

    @router.delete("/engine", status_code=204)
    async def leave() -> None:
        """Forget what brought nodes: from now on they come by themselves."""
        if server.pool.engine.name:
            await server.ask(lambda _pool: (EngineBounded("", None),))

    @router.post("/engine")
    async def report(report: EngineReport) -> rest.EngineOrdersView:
        """Report an engine's nodes; the response says how many to acquire and which to release."""
        server.engine_trouble = report.trouble
        server.engine_notes = _news(server.pool, report)
        told = EngineReported(
            report.engine,
            NodeBounds(
                report.nodes_min, report.nodes_max, report.slots, report.start_s, report.idle_s
            ),
            tuple(ReportedNode(**dict(node)) for node in report.nodes),
            tuple(report.ended),
        )
        if report.trouble:  # what it has is not known: nothing follows
            return rest.EngineOrdersView(acquire=0, release=[])
        await server.ask(lambda _pool: (told,))
        orders = orders_of(server.pool, told)
        release = [rest.ReleaseView(**each._asdict()) for each in orders.release]
        return rest.EngineOrdersView(acquire=orders.acquire, release=release)


def _news(pool: Pool, report: EngineReport) -> list[str]:
    """Return the notes of a report, less what nodes waited for that have joined since."""
    joined = [n.name for n in report.nodes if n.state == "starting" and n.name in pool.nodes]
    return [
        note for note in report.notes if not note.startswith(tuple(f"node {n}: " for n in joined))
    ]


def _add_policy(router: APIRouter, server: Server) -> None:
    @router.get("/policy")
    async def policy() -> rest.PolicyView:
        """Show by what rule devices are shared."""
        return views.policy_view(server.pool)

    @router.get("/plugins")
    async def plugins() -> rest.PluginsView:
        """List the policies and placements of the plug-ins that the server was started with."""
        return views.plugins_view(server.registry)

    @router.put("/policy")
    async def choose(change: rest.PolicyChange, by: By = "") -> rest.PolicyView:
        """Switch the policy or the placement; no job loses a step."""
        chosen = PolicyChosen(change.policy or server.pool.policy, by, change.placement)
        await asyncio.to_thread(warm_up, chosen, server.stability, server.registry)
        await server.ask(lambda _pool: (chosen,))
        return views.policy_view(server.pool)


def _add_events(router: APIRouter, server: Server) -> None:
    @router.get("/events", response_model=rest.EventsView)
    async def events(
        after: After = None,
        limit: Limit = 100,
        watch: Annotated[bool, Query(description="Stream events from then on.")] = False,
        last_event_id: Annotated[int | None, Header(ge=0)] = None,
    ) -> rest.EventsView | EventSourceResponse:
        """List events: the newest, or those after a number; or a stream of them."""
        start = last_event_id if last_event_id is not None else after
        page = await asyncio.to_thread(at_page, server.journal, start, limit, None)
        known = page[-1].seq if page else start or 0
        if watch:
            return event_stream(watch_events(server, known, None, page))
        return rest.EventsView(
            items=[views.event_view(noted, server.pool.unit) for noted in page], next=known
        )


def probes(server: Server) -> APIRouter:
    """Return the routes for monitoring the server."""
    router = APIRouter(tags=["probes"])

    @router.get("/healthz")
    async def healthz(response: Response) -> dict[str, str]:
        """Return whether the server is alive."""
        response.status_code = 200 if server.failure is None else 500
        return {"status": "ok" if server.failure is None else "the control loop has stopped"}

    @router.get("/readyz")
    async def readyz(response: Response) -> rest.ReadyView:
        """Return whether the server decides: its kernels are compiled."""
        waits_for = server.waits_for()
        response.status_code = 503 if waits_for else 200
        unsaved = views.unsaved(server.pool)
        return rest.ReadyView(
            ready=not waits_for,
            waits_for=waits_for,
            problems=[
                *views.plugin_problems(server.pool, server.registry),
                *node_problems(server.pool).values(),
                *unsaved,
            ],
            unsaved=unsaved,
        )

    @router.get("/version")
    async def version() -> rest.VersionView:
        """Return the versions of the server and of its protocol."""
        return rest.VersionView(version=__version__, protocol=PROTOCOL)

    @router.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Return the metrics in Prometheus' text format."""
        gauges = CollectorRegistry()
        gauges.register(PoolGauges(server.pool, server.progress))
        text = generate_latest(server.metrics.registry) + generate_latest(gauges)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return router

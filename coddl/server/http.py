"""The server as an ASGI app: REST and its errors, probes, and the WebSocket of agents."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from fastapi import Depends, FastAPI, Request, WebSocket, WebSocketDisconnect
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from coddl import __version__
from coddl.api.rest import API, PROBLEM_JSON, Problem
from coddl.api.spec import JobRequest, because_of
from coddl.core.errors import UserError
from coddl.server import (
    dashboard,
    routes_code,
    routes_history,
    routes_jobs,
    routes_pool,
    routes_whatif,
)
from coddl.server.agent_sessions import AgentDisconnected, AgentSession
from coddl.server.auth import INSTANCE, AuthMiddleware, Tokens
from coddl.server.problems import INVALID, bug, problem, problem_of
from coddl.server.server import Server

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {  # Any: OpenAPI
    "default": {
        "model": Problem,
        "description": "What is wrong, because of what, and what to try",
        "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
}


def create_app(
    server: Server,
    tokens: Tokens,
    hosts: frozenset[str] = LOOPBACK,
    built: Path = dashboard.BUILT,
) -> ASGIApp:
    """Return a server's web app; `hosts` are the names it answers to, empty: all.

    `built` has the files of the dashboard.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with server.running():
            yield

    app = FastAPI(
        title="CoDDL",
        version=__version__,
        description="An elastic GPU cluster: jobs that grow and shrink while they train.",
        lifespan=lifespan,
        responses=PROBLEMS,
    )
    bearer = [Depends(HTTPBearer(auto_error=False, description="The server's token"))]
    for routes in (routes_jobs, routes_pool, routes_history, routes_whatif, routes_code):
        app.include_router(routes.routes(server), prefix=API, dependencies=bearer)
    app.include_router(routes_pool.probes(server))
    app.include_router(dashboard.routes(built))
    app.add_api_websocket_route(f"{API}/agent", _agent_endpoint(server))
    app.add_exception_handler(UserError, _on_user_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_bug)
    return AuthMiddleware(app, tokens, hosts)


def _agent_endpoint(server: Server) -> Callable[[WebSocket], Awaitable[None]]:
    async def agent(websocket: WebSocket) -> None:
        """Serve an agent."""
        await websocket.accept()
        await AgentSession(server, _WebSocketConnection(websocket), server.sessions).run()

    return agent


class _WebSocketConnection:
    """Starlette's WebSocket as a session wants it."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def receive(self) -> bytes:
        """Wait for a message; raises AgentDisconnected."""
        message = await self._websocket.receive()
        if message["type"] != "websocket.receive":
            raise AgentDisconnected
        data: bytes | None = message.get("bytes")
        return data if data is not None else str(message["text"]).encode()

    async def send(self, data: bytes) -> None:
        """Send a message; raises AgentDisconnected."""
        try:
            await self._websocket.send_bytes(data)
        except (WebSocketDisconnect, RuntimeError) as error:
            raise AgentDisconnected from error

    async def close(self, code: int, reason: str) -> None:
        """Hang up."""
        try:
            await self._websocket.close(code, reason)
        except (WebSocketDisconnect, RuntimeError) as error:
            raise AgentDisconnected from error


async def _on_user_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, UserError)
    return problem(error)


async def _on_bug(request: Request, _error: Exception) -> Response:
    return bug(request.scope[INSTANCE])  # AuthMiddleware sees it next, and logs it


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = [dict(each) for each in error.errors()]
    for each in errors:
        if each["loc"][:1] == ("body",):
            each["loc"] = each["loc"][1:]
    is_job = request.method == "POST" and request.url.path == f"{API}/jobs"
    what = "the job cannot be accepted" if is_job else "the request cannot be met"
    fields = tuple(JobRequest.model_fields) if is_job else ()
    return problem_of(INVALID, "Invalid", because_of(errors, what, fields))


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path, status = request.url.path, error.status_code
    if status == 404:
        words = UserError("the request cannot be met", f"there is no {path}", "/docs")
        return problem_of(404, "NotFound", words)
    if status == 405:
        because = f"{path} does not know {request.method}"
        words = UserError("the request cannot be met", because, "/docs")
        return problem_of(405, "MethodNotAllowed", words, error.headers)
    words = UserError("the request cannot be met", str(error.detail), "/docs")
    return problem_of(status, "Invalid", words, error.headers)

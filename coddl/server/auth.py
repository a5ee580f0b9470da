"""Authentication and limits: the outermost layer of the app, for HTTP and WebSocket alike.

A bearer token opens everything but the probes and the dashboard's files; a second one opens what
changes nothing. A server on loopback answers only to names of loopback, so that no web
page can reach it through a name of its own. Bodies have a limit. What fails inside is answered
here, with an id that the log knows.
"""

import hmac
import secrets
from dataclasses import dataclass, field
from typing import Final, Literal

import structlog
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coddl.api.rest import API
from coddl.core.errors import UserError
from coddl.server.errors import Forbidden, HostRefused, TooLarge, Unauthorized
from coddl.server.problems import bug, problem

BODY_BYTES_MAX: Final = 1 << 20
OPEN: Final = frozenset({"/healthz", "/readyz", "/version"})
ACCESS: Final = "coddl.access"  # of a scope: what its token may do
INSTANCE: Final = "coddl.instance"  # of a scope: what the log knows a request by
UPLOADS: Final = f"{API}/code/"  # these count their bytes themselves
READS: Final = ("GET", "HEAD")
PAGE: Final = "/"  # the dashboard, whose files hold no data
ASSETS: Final = "/assets/"
REPLAY: Final = ("POST", f"{API}/whatif")  # it computes, and changes nothing

log = structlog.get_logger(__name__)


Access = Literal["full", "read"]


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens that requests must carry; the second one only permits reading."""

    full: str = field(repr=False)
    read: str = field(default="", repr=False)  # empty: there is none

    def access_of(self, token: str) -> Access | None:
        """Return what a token opens; None: nothing. Takes as long whatever the token is."""
        given = token.encode("utf-8", "replace")
        is_full = hmac.compare_digest(given, self.full.encode())
        is_read = hmac.compare_digest(given, self.read.encode()) and bool(self.read)
        return "full" if is_full else "read" if is_read else None


class AuthMiddleware:
    """Checks token, host name and size of each request; `hosts` empty: any name."""

    def __init__(self, app: ASGIApp, tokens: Tokens, hosts: frozenset[str]) -> None:
        self._app, self._tokens, self._hosts = app, tokens, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
        except UserError as error:
            await problem(error)(scope, receive, send)
            return
        await self._serve(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = _host_name(headers.get("host", ""))
        if self._hosts and host not in self._hosts:
            raise HostRefused(
                "the request cannot be met",
                f'its host is "{host[:100]}", and this server answers to '
                f"{', '.join(sorted(self._hosts))}",
                "one of these names, or start the server with --host",
            )
        if not _is_open(scope):
            scope[ACCESS] = self._access(headers.get("authorization", ""))
            if scope[ACCESS] == "read" and not _may_read(scope):
                raise _read_only(scope)
        length = headers.get("content-length", "")
        if _has_limit(scope) and length.isdecimal() and int(length[:19]) > BODY_BYTES_MAX:
            raise _too_large()

    def _access(self, authorization: str) -> Access:
        kind, _, token = authorization.partition(" ")
        access = self._tokens.access_of(token.strip()) if kind.lower() == "bearer" else None
        if access is None:
            raise Unauthorized(
                "the request cannot be met",
                "its token is not the server's" if token else "it has no token",
                "set CODDL_TOKEN to the content of `token` in the server's state directory",
            )
        return access

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and answer for what goes wrong inside."""
        request = _LimitedRequest(receive, send, BODY_BYTES_MAX if _has_limit(scope) else None)
        scope[INSTANCE] = secrets.token_hex(6)
        try:
            await self._app(scope, request.receive, request.send)
        except Exception as error:
            request.answer = request.answer or _answer_to(error, scope)
        if request.answer is not None and not request.has_begun:
            await request.answer(scope, receive, send)


class _LimitedRequest:
    """One request: counts what comes in, and notes whether anything went out."""

    def __init__(self, receive: Receive, send: Send, room_bytes: int | None) -> None:
        self._receive, self._send, self._room_bytes = receive, send, room_bytes
        self.has_begun = False
        self.answer: Response | None = None  # instead of the app's

    async def receive(self) -> Message:
        """Return what comes in, unless it is too much."""
        message = await self._receive()
        if self._room_bytes is not None and message["type"] == "http.request":
            self._room_bytes -= len(message.get("body", b""))
            if self._room_bytes < 0:
                error = _too_large()
                self.answer = problem(error)
                raise error
        return message

    async def send(self, message: Message) -> None:
        """Send the app's message, unless another answer replaces it."""
        if self.answer is None:
            self.has_begun = True
            await self._send(message)


def _answer_to(error: Exception, scope: Scope) -> Response:
    if isinstance(error, UserError):
        return problem(error)
    instance = scope[INSTANCE]
    log.error("request_failed_with_a_bug", id=instance, path=scope["path"], exc_info=error)
    return bug(instance)


def _is_open(scope: Scope) -> bool:
    """Return whether a request needs no token: one of probes, or for the dashboard's files."""
    path = scope["path"]
    is_page = path == PAGE or path.startswith(ASSETS)
    return path in OPEN or (is_page and scope["type"] == "http" and scope["method"] in READS)


def _may_read(scope: Scope) -> bool:
    """Return whether a request changes nothing, and asks for no folder that a user has uploaded."""
    if scope["type"] != "http":
        return False  # an agent
    method, path = scope["method"], scope["path"]
    return (method in READS and not path.startswith(UPLOADS)) or (method, path) == REPLAY


def _read_only(scope: Scope) -> Forbidden:
    asked = f"{scope['method']} {scope['path']}" if scope["type"] == "http" else "an agent"
    return Forbidden(
        "the request cannot be met",
        f"its token may only read, and {asked} needs the other one",
        "the content of `token` in the server's state directory, in place of `read-token`",
    )


def _has_limit(scope: Scope) -> bool:
    return scope["type"] == "http" and not scope["path"].startswith(UPLOADS)


def _too_large() -> TooLarge:
    return TooLarge(
        "the request cannot be met", f"its body has more than {BODY_BYTES_MAX >> 20} MB", "less"
    )


def _host_name(host: str) -> str:
    """Return the name of a Host header, without its port; `[::1]:80` is `::1`."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()

"""How an agent reaches its server: a line that carries whole messages, and what dials it."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from typing import Final, Protocol
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosedOK,
    InvalidMessage,
    InvalidStatus,
    InvalidURI,
    WebSocketException,
)

from coddl.api.tls import plain_refusal, tls_refusal
from coddl.core.errors import UserError

PATH: Final = "/api/v1/agent"
MESSAGE_BYTES_MAX: Final = 16 << 20


class ServerRefusal(UserError):
    """The server takes no orders from us, nor gives any."""


class ServerLine(Protocol):
    """A line to the server. What fails on it raises OSError."""

    async def send(self, data: bytes) -> None:
        """Send a message."""
        ...

    async def receive(self) -> bytes | str:
        """Wait for a message."""
        ...

    def abort(self) -> None:
        """Break it: a dead line answers no goodbye."""
        ...

    async def close(self) -> None:
        """Hang up."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes | str]:
        """Give messages until the server hangs up."""
        ...


class Dialer(Protocol):
    """Reaches the server, again and again."""

    @property
    def url(self) -> str:
        """Name what is dialled."""
        ...

    async def dial(self, within_s: float) -> ServerLine:
        """Open a line; raises OSError, or ServerRefusal if there is no use in trying again."""
        ...


class WebSocketDialer:
    """Opens a WebSocket to a server."""

    def __init__(self, server: str, token: str, tls: ssl.SSLContext | None = None) -> None:
        """Raises ServerRefusal if `server` is no address."""
        self.url = _socket_url(server)
        self._server = server
        self._token = token
        self._tls = tls

    async def dial(self, within_s: float) -> ServerLine:
        """Open a line; raises OSError, or ServerRefusal if there is no use in trying again."""
        try:
            line = await connect(
                self.url,
                additional_headers={"Authorization": f"Bearer {self._token}"},
                open_timeout=within_s,
                ping_interval=None,  # beats do that
                close_timeout=1.0,
                max_size=MESSAGE_BYTES_MAX,
                compression=None,
                proxy=None,
                ssl=self._tls,
            )
        except InvalidStatus as error:
            _judge(error.response.status_code, self.url)
            raise ConnectionError(f"{error}") from error
        except InvalidURI as error:
            raise _no_address(self.url) from error
        except (OSError, InvalidMessage) as error:
            refusal = tls_refusal(error, self._server)
            if refusal is None and isinstance(error, InvalidMessage | ConnectionResetError):
                refusal = await asyncio.to_thread(plain_refusal, self._server)
            if refusal is not None:
                raise ServerRefusal(refusal.what, refusal.because, refusal.try_) from None
            if isinstance(error, OSError):
                raise
            raise ConnectionError(f"{error}") from error
        except WebSocketException as error:
            raise ConnectionError(f"{error}") from error
        return _WebSocketLine(line)


class _WebSocketLine:
    """A line over a WebSocket."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def send(self, data: bytes) -> None:
        try:
            await self._socket.send(data)
        except WebSocketException as error:
            raise ConnectionError(f"{error}") from error

    async def receive(self) -> bytes | str:
        try:
            return await self._socket.recv()
        except WebSocketException as error:
            raise ConnectionError(f"{error}") from error

    def abort(self) -> None:
        self._socket.transport.abort()

    async def close(self) -> None:
        await self._socket.close()

    async def __aiter__(self) -> AsyncIterator[bytes | str]:
        try:
            while True:
                yield await self._socket.recv()
        except ConnectionClosedOK:
            return
        except WebSocketException as error:
            raise ConnectionError(f"{error}") from error


def _socket_url(server: str) -> str:
    parts = urlsplit(server)
    schemes = {"http": "ws", "https": "wss"}
    if parts.scheme not in schemes or not parts.netloc:
        raise _no_address(server)
    return urlunsplit((schemes[parts.scheme], parts.netloc, parts.path.rstrip("/") + PATH, "", ""))


def _no_address(url: str) -> ServerRefusal:
    because = "it is not the address of a server"
    return ServerRefusal(f"{url} can't be reached", because, "--server http://HOST:7433")


def _judge(status: int, url: str) -> None:
    """Raise if there is no use in trying again."""
    if status in (401, 403):
        because = "its token is not the server's" if status == 401 else "its token may only read"
        raise ServerRefusal("the server refused this agent", because, "--token-file FILE")
    if 400 <= status < 500:
        because = f"{url} answered with HTTP status {status}"
        raise ServerRefusal("it is not the server of a pool", because, "--server http://HOST:7433")

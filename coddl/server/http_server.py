"""The HTTP server: uvicorn, with our sockets and signals."""

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from coddl.api.tls import TlsFiles
from coddl.server.errors import CannotListen
from coddl.server.server import Server

GRACE_S: Final = 5  # for responses under way when the server stops
WAITING_MAX: Final = 2_048  # connections that are not accepted yet


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that takes connections; raises CannotListen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named, so that asyncio knows TCP when it sees it, and sends answers without delay.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(WAITING_MAX)
    except (OSError, OverflowError) as error:
        listener.close()
        raise CannotListen(
            "the server cannot start",
            f"it can't listen on {host}:{port}: {getattr(error, 'strerror', None) or error}",
            "--port 0 for any that is free, or another --host",
        ) from None
    return listener


class HttpServer(uvicorn.Server):
    """Serves an app; ends streams on a stop request, and leaves the process to its caller."""

    def __init__(self, server: Server, app: ASGIApp, tls: TlsFiles | None = None) -> None:
        config = uvicorn.Config(
            app,
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="websockets-sansio",
            timeout_graceful_shutdown=GRACE_S,
            ssl_certfile=tls.cert if tls else None,
            ssl_keyfile=tls.key if tls else None,
        )
        super().__init__(config)
        self._server = server

    def stop(self) -> None:
        """Stop serving: gracefully on the first call, at once on the second."""
        self.force_exit = self.should_exit
        self.should_exit = True
        self._server.close_lines()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take the signals that ask to stop, if they come to this thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, self.stop)
        try:
            yield
        finally:
            for each in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(each)

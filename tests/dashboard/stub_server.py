"""A server that answers REST from an invented pool, and hands out the built page."""

import json
import threading
from collections.abc import Callable, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel

from coddl.api import rest
from tests.dashboard.invented_pool import InventedPool

PAGE: Final = Path(__file__).parents[2] / "coddl" / "web" / "dist"
KINDS: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)

Query = Mapping[str, list[str]]


class StubServer:
    """Answers until it is closed; `events` are sent to all that watch."""

    def __init__(self, pool: InventedPool) -> None:
        self.pool = pool
        self.closing = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, self))
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()

    def answer(self, path: str, query: Query) -> BaseModel | None:
        """Give what is at a path below /api/v1."""
        pool = self.pool
        answers: dict[str, Callable[[], BaseModel]] = {
            "/access": lambda: rest.AccessView(access="full"),
            "/pool": pool.pool,
            "/nodes": pool.nodes,
            "/timeline": pool.timeline,
            "/decisions": lambda: pool.decisions_page(int(query["limit"][0])),
            "/events": lambda: rest.EventsView(items=[], next=1),
            "/jobs": lambda: rest.JobsView(
                items=pool.active_jobs() if query["active"] == ["true"] else pool.ended_jobs()[:200]
            ),
        }
        for job in pool.jobs:
            answers |= {
                f"/jobs/{job.id}/explain": partial(pool.explained, job),
                f"/jobs/{job.id}/timeline": partial(pool.timeline, job.id),
                f"/jobs/{job.id}/metrics": pool.metrics,
            }
        return answers[path]() if path in answers else None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, server: StubServer, *args: object) -> None:
        self._stub = server
        super().__init__(*args)  # type: ignore[arg-type] # as socketserver calls it

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        if not url.path.startswith(rest.API):
            self._send_file(url.path)
        elif "watch" in query:
            self._stream()
        else:
            found = self._stub.answer(url.path.removeprefix(rest.API), query)
            body = found.model_dump_json() if found else json.dumps({"what": "no such path"})
            self._send(200 if found else 404, "application/json", body.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _send_file(self, path: str) -> None:
        file = PAGE / ("index.html" if path == "/" else path.lstrip("/"))
        if file.is_file() and file.is_relative_to(PAGE):
            self._send(200, KINDS.get(file.suffix, "image/svg+xml"), file.read_bytes())
        else:
            self._send(404, "text/plain", b"")

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(body)

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b": nothing happens here\n\n")
        self._stub.closing.wait()
        self.close_connection = True

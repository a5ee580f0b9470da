"""A server that answers what it was told to, and remembers what it was asked."""

import json
import os
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, urlsplit

TOKEN = "the-token"


class Asked(NamedTuple):
    """A request."""

    method: str
    path: str
    parameters: dict[str, str]
    body: bytes
    headers: dict[str, str]

    def json(self) -> Any:
        return json.loads(self.body)


class Reply(NamedTuple):
    """What to answer; a body of text is a stream of events, broken off at its end."""

    status: int
    body: Any = None


class QuietServer(ThreadingHTTPServer):
    """Says nothing when somebody hangs up."""

    def handle_error(self, *_whose: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(*_whose)  # type: ignore[arg-type]


HANG_UP = Reply(0)  # say nothing at all
BREAK = Reply(-1)  # begin a stream, and break it off before it has said anything


@dataclass
class StubPool:
    """Answers by (method, path), in turn where there are several; the last one for good."""

    replies: dict[tuple[str, str], list[Reply]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    port: int = 0  # any

    def __enter__(self) -> Self:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                stub.handle(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_HEAD = handle_any

            def log_message(self, *_words: object) -> None:
                pass

        self.http = QuietServer(("127.0.0.1", self.port), Handler)
        self.http.daemon_threads = True
        self._thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.http.shutdown()
        self._thread.join()
        self.http.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}"

    def announce(self, folder: Path, pid: int | None = None) -> None:
        """Leave address and token where the command line looks for them."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "server.json").write_text(
            json.dumps({"url": self.url, "pid": os.getpid() if pid is None else pid})
        )
        (folder / "token").write_text(f"{TOKEN}\n")
        (folder / "token").chmod(0o600)

    def will(self, method: str, path: str, *replies: Any) -> None:
        """Answer a request so; what is no Reply is the body of a good one."""
        told = [each if isinstance(each, Reply) else Reply(200, each) for each in replies]
        self.replies[method, f"/api/v1{path}"] = told

    def saw(self, method: str, path: str) -> list[Asked]:
        return [each for each in self.asked if each[:2] == (method, f"/api/v1{path}")]

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        if request.headers.get("Transfer-Encoding") == "chunked":
            body = _unchunked(request)
        method = request.command
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.asked.append(Asked(method, parts.path, dict(parse_qsl(parts.query)), body, headers))
        left = self.replies.get((method, parts.path), [problem(404, "there is no such thing")])
        reply = left.pop(0) if len(left) > 1 else left[0]
        if reply == HANG_UP:
            request.close_connection = True
            return
        if reply == BREAK:
            request.close_connection = True
            request.send_response(200)
            request.send_header("Content-Length", "1000")
            request.end_headers()
            return
        is_stream = isinstance(reply.body, str)
        data = reply.body.encode() if is_stream else json.dumps(reply.body).encode()
        request.send_response(reply.status)
        request.send_header("Content-Type", "text/event-stream" if is_stream else _kind(reply))
        if is_stream:
            request.close_connection = True
        else:
            request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        if method != "HEAD":
            request.wfile.write(data)


def _kind(reply: Reply) -> str:
    return "application/problem+json" if reply.status >= 400 else "application/json"


def _unchunked(request: BaseHTTPRequestHandler) -> bytes:
    whole = b""
    while size := int(request.rfile.readline(), 16):
        whole += request.rfile.read(size)
        request.rfile.readline()
    request.rfile.readline()
    return whole


def problem(status: int, what: str, because: str = "so it is", try_: str = "again") -> Reply:
    """Make a refusal as the server writes it."""
    return Reply(
        status, {"status": status, "code": "x", "what": what, "because": because, "try": try_}
    )


NOT_FOUND = problem(404, 'job "x" cannot be found', "no job has that name", "coddl ls --all")

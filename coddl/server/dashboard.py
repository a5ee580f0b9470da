"""The dashboard: a page and its files, as they were built. They hold no data: it asks the REST API.

Open without a token, and allowed to load nothing from elsewhere.
"""

import gzip
import mimetypes
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException

BUILT: Final = Path(__file__).parents[1] / "web" / "dist"  # `make web` writes it; wheels have it
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
FRESH: Final = HEADERS | {"Cache-Control": "no-cache"}
KEPT: Final = HEADERS | {"Cache-Control": "public, max-age=31536000, immutable"}  # named by content
NOT_BUILT: Final = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>CoDDL</title></head>
<body>
<h1>CoDDL</h1>
<p>The server runs. Its dashboard was not built: in a checkout, <code>make web</code> builds it
(this needs Node.js); then reload this page. Released wheels contain it.</p>
<p>The REST API is described at <code>/openapi.json</code>, which needs the token.</p>
</body>
</html>
"""


def routes(built: Path) -> APIRouter:
    """Return the routes of the files in a folder, which may be built later."""
    router = APIRouter(include_in_schema=False)
    index, assets = built / "index.html", built / "assets"
    files = _Files()

    @router.api_route("/", methods=["GET", "HEAD"])
    async def page(request: Request) -> Response:
        if not index.is_file():
            return HTMLResponse(NOT_BUILT, headers=FRESH)
        return files.response(index, request, FRESH)

    @router.api_route("/assets/{name:path}", methods=["GET", "HEAD"])
    async def asset(name: str, request: Request) -> Response:
        known = {str(path.relative_to(assets)): path for path in assets.rglob("*")}
        if name not in known or not known[name].is_file():
            raise HTTPException(404)
        return files.response(known[name], request, KEPT)

    return router


class _Files:
    """Files in memory, compressed: there are few, and they change only when built anew."""

    def __init__(self) -> None:
        self._compressed: dict[tuple[Path, int], bytes] = {}

    def response(self, path: Path, request: Request, headers: Mapping[str, str]) -> Response:
        """Return a file, compressed for clients that accept gzip."""
        key = path, path.stat().st_mtime_ns
        if key not in self._compressed:
            self._compressed[key] = gzip.compress(path.read_bytes(), mtime=0)
        content, sent = self._compressed[key], {**headers, "Vary": "Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            sent["Content-Encoding"] = "gzip"
        else:
            content = gzip.decompress(content)
        return Response(content, headers=sent, media_type=mimetypes.guess_type(path.name)[0])

"""The dashboard: a page and its files, as they were built. They hold no data: it asks the REST API.

Open without a token, and allowed to load nothing from elsewhere.
"""

from pathlib import Path
from typing import Final

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse, HTMLResponse
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
    """Give the routes of the files in a folder, which may be built later."""
    router = APIRouter(include_in_schema=False)
    index, assets = built / "index.html", built / "assets"

    @router.api_route("/", methods=["GET", "HEAD"])
    async def page() -> Response:
        if not index.is_file():
            return HTMLResponse(NOT_BUILT, headers=FRESH)
        return FileResponse(index, headers=FRESH)

    @router.api_route("/assets/{name:path}", methods=["GET", "HEAD"])
    async def asset(name: str) -> Response:
        known = {str(path.relative_to(assets)): path for path in assets.rglob("*")}
        if name not in known or not known[name].is_file():
            raise HTTPException(404)
        return FileResponse(known[name], headers=KEPT)

    return router

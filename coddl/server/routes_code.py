"""Routes of submitted folders: `coddl submit` puts them, agents get them."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse

from coddl.server.server import Server


def routes(server: Server) -> APIRouter:
    """Return the routes of submitted folders."""
    router = APIRouter(tags=["code"])

    @router.head("/code/{name}")
    async def has(name: str) -> Response:
        """Return whether an archive is there."""
        return Response(status_code=200 if server.archives.claim(name) else 404)

    @router.get("/code/{name}", response_class=FileResponse)
    async def get(name: str) -> FileResponse:
        """Return an archive."""
        return FileResponse(server.archives.find(name), media_type="application/gzip")

    @router.put("/code/{name}", status_code=201, response_class=Response)
    async def put(name: str, request: Request) -> Response:
        """Keep an archive (.tar.gz) whose SHA-256 is its name."""
        if server.archives.claim(name):
            return Response(status_code=200)
        await server.archives.keep(name, request.stream())
        return Response(status_code=201)

    return router

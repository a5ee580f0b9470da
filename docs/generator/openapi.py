"""Prints the server's OpenAPI description, without a server: `python -m docs.generator.openapi`."""

import asyncio
import json
import sys
from typing import cast

import httpx

from coddl.server.auth import Tokens
from coddl.server.http import create_app
from coddl.server.server import Server
from docs.generator.markdown import Json


def openapi() -> Json:
    """Give the description of every request and answer."""
    return asyncio.run(_asked())


async def _asked() -> Json:
    # Routes ask the server only when they are called, and none is called here.
    served = create_app(cast(Server, None), Tokens("token"))
    transport = httpx.ASGITransport(app=served)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.get("/openapi.json", headers={"Authorization": "Bearer token"})
    return cast(Json, answer.raise_for_status().json())


if __name__ == "__main__":
    json.dump(openapi(), sys.stdout, indent=2)
    sys.stdout.write("\n")

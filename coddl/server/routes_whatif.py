"""Routes of replays: what the recorded jobs would have come to under another policy."""

from fastapi import APIRouter

from coddl.api import rest_whatif as rest
from coddl.server.server import Server


def routes(server: Server) -> APIRouter:
    """Return the routes of replays."""
    router = APIRouter(tags=["whatif"])

    @router.post("/whatif", status_code=202)
    async def start(request: rest.WhatIfRequest) -> rest.WhatIfStartedView:
        """Replay the journal under other policies; one replay at a time."""
        for policy in request.policies:
            server.registry.policy(policy)  # a request names no file: only what was loaded
        return rest.WhatIfStartedView(id=server.replays.start(request))

    @router.get("/whatif/{id}")
    async def show(id: str) -> rest.WhatIfView:
        """Return the progress of a replay, or its result."""
        return server.replays.find(id).view()

    return router

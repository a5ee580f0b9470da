"""Keeps a node to its lease: jobs leave in time when it runs out, and all ends when it has."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import structlog

from coddl.agent.node_agent import NodeAgent
from coddl.agent.server_session import ServerSession
from coddl.core.errors import UserError
from coddl.core.pool.records import Trouble

WELCOME_S: Final = 120.0  # within which a server answers for the first time
LEASE_OVER: Final = Trouble(
    "the run was stopped",
    "its agent had no contact with the server until its lease expired",
    "nothing: it is restarted",
)
STOPPED: Final = Trouble("the run was stopped", "its agent was stopped", "nothing: it is restarted")

log = structlog.get_logger()


async def keep_lease(
    node: NodeAgent,
    session: ServerSession,
    gone: Callable[[float], UserError] | None = None,
    welcome_s: float = WELCOME_S,
) -> None:
    """Have jobs leave in time when the lease runs out, and end all when it has.

    Then raise what `gone` makes of the seconds for which the server has not answered, if it is
    given; or wait for a server that answers. One that never answers has `welcome_s`.
    """
    clock = session.clock
    welcome_by_s = clock.steady_s() + welcome_s
    is_closing = False
    while True:
        now = clock.steady_s()
        standing = session.lease.standing(now)
        if standing == "closing" and not is_closing:
            log.warning("lease_expiring", jobs=[runner.run.job for runner in node.runners])
            node.suspend_all("no contact with the server, and the lease is expiring")
        elif standing == "over":
            log.warning("lease_expired_stopping_all")
            node.end_all(LEASE_OVER)
            if gone is not None:
                raise gone(session.lease.unheard_s(now))
            session.lease.end()
        elif standing == "none" and gone is not None and now >= welcome_by_s:
            raise gone(welcome_s)
        is_closing = standing == "closing"
        wake_at_s = session.lease.wake_at_s(now)
        if standing == "none" and gone is not None:
            wake_at_s = welcome_by_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if wake_at_s is None else max(0.0, wake_at_s - now)):
                await session.lease_changed()

"""What brings machines to a pool: an engine. It starts an agent on each, and never schedules jobs.

An engine is asked again and again, and keeps nothing of its own that it could not find out anew:
after a restart `look` names the nodes that were acquired before, by their names. The caller
compares that with what the pool wants. (`connector`)

    look      what there is: nodes that start, are up, or must leave at some time; and how many
              more could be had. A node that `look` no longer names is gone.
    acquire   ask for one more node; it shows up in `look` at once, as starting
    release   give a node back: its agent has so long to save its jobs, then it is ended
"""

from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from coddl.core.errors import UserError

CA_FILE: Final = "tls-ca.pem"  # in an agent's state folder: `AgentLaunch.ca`


class EngineUnavailable(UserError):
    """The engine does not answer now; what runs on its nodes goes on."""

    exit_code = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLaunch:
    """How the agents of a pool are started, wherever that is."""

    pool: str  # the id of the pool: its nodes are found again by it
    server: str  # as http://host:port, reachable from the nodes
    token: str = field(repr=False)
    ca: str = ""  # certificates in PEM that the server's is verified by; empty: a node's own CAs
    slots: int | None = None  # of each node, or its GPUs; None: all that a node has
    jobs_dir: str = ""  # that the nodes share; empty: each has its own


@dataclass(frozen=True, slots=True)
class EngineNode:
    """A machine that the engine has brought, or is about to; the pool's node has the same name."""

    name: str
    state: Literal["starting", "up", "releasing"]
    leaves_at_s: float | None = None  # in wall-clock time: when the engine takes it away
    because: str = ""  # why it leaves, or has not come yet
    expires_at_s: float | None = None  # like `leaves_at_s`, and another one can come before that


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """All that an engine has for a pool."""

    nodes: tuple[EngineNode, ...]
    more: int | None = None  # nodes that could be had at once; None: that can't be known
    ended: tuple[str, ...] = ()  # nodes whose processes have all ended, for sure: no lease matters


class Engine(Protocol):
    """See above. `EngineUnavailable` may be raised by each call but `close`."""

    def look(self) -> EngineStatus:
        """Return what there is. Quick: it is called every second."""
        ...

    def acquire(self) -> str:
        """Ask for one more node and give the name it will have; does not wait for it."""
        ...

    def release(self, node: str, within_s: float) -> None:
        """Give a node back; does not wait for it. A node that is unknown by now is no mistake."""
        ...

    def close(self) -> None:
        """Release the engine; the nodes stay."""
        ...

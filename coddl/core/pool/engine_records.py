"""What happens with nodes that an engine brings and takes away; a part of `records`."""

from dataclasses import dataclass
from typing import Literal

from coddl.core.node_count import NodeBounds


@dataclass(frozen=True, slots=True)
class EngineBounded:
    """An engine brings nodes, within these bounds; no bounds: none does any more."""

    engine: str
    bounds: NodeBounds | None


@dataclass(frozen=True, slots=True)
class NodeAcquired:
    """An engine was asked for a node of that name, which it may take some time to bring."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """A node that an engine had brought is gone for good, and so is its name."""

    node: str
    because: str


@dataclass(frozen=True, slots=True)
class NodesWanted:
    """The number of nodes that the pool wants has changed."""

    nodes: int
    because: str


@dataclass(frozen=True, slots=True)
class ReportedNode:
    """A node as its engine knows it."""

    name: str
    state: Literal["starting", "up", "releasing"]
    leaves_in_s: float | None = None
    because: str = ""  # it leaves, or has not come yet
    expires_in_s: float | None = None  # then it leaves, and another one can come before that


@dataclass(frozen=True, slots=True)
class EngineReported:
    """An engine has reported its nodes; a node that it does not name is gone. Soft."""

    engine: str
    bounds: NodeBounds
    nodes: tuple[ReportedNode, ...]
    ended: tuple[str, ...] = ()  # nodes whose processes have all ended, for sure

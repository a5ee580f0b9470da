"""How many nodes a pool should have: what its jobs can use, within bounds, and without haste. Pure.

The live pool and the simulator ask the same functions. A job can use GPUs as long as each of them
adds enough: `gpus_worth` reads that off its speeds. Nodes are asked for as soon as jobs can use
them, unless those will be done before a node is there. They are given back when they have not been
needed for some time, and only those that were not needed at any moment of it: a short gap between
two jobs costs no restart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from coddl.core.errors import UserError

NodeId = TypeVar("NodeId", int, str)
EFFICIENCY: Final = 0.5  # of the progress per GPU at a job's smallest size, at its largest
GAIN: Final = 0.1  # of that progress, by each GPU that is added to a smaller size
START_S: Final = 60.0
IDLE_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class NodeBounds:
    """How many nodes there may be, and what one is like."""

    least: int
    most: int
    gpus: int  # of each node
    start_s: float = START_S  # from asking for a node until jobs run on it
    idle_s: float = IDLE_S  # that a node is kept while no job needs it


@dataclass(frozen=True, slots=True)
class NodeCount:
    """How many nodes are wanted, and since when fewer would do."""

    nodes: int = 0
    surplus_since_s: float | None = None
    peak: int = 0  # nodes that were needed at most since then


def node_range(text: str) -> tuple[int, int]:
    """Read `MIN..MAX`, or one number for both."""
    least, dots, most = text.partition("..")
    most = most if dots else least
    are_numbers = all(each.isdecimal() and len(each) <= 9 for each in (least, most))
    if not are_numbers or not int(least) <= int(most) >= 1:
        raise UserError(
            f"--nodes {text} can't be used",
            f'"{text}" is neither a number nor a range MIN..MAX',
            "--nodes 0..8",
        )
    return int(least), int(most)


def gpus_worth(step_s: Mapping[int, float], least: int, most: int) -> int:
    """Return the most GPUs that a job makes good use of, from its step times by number of GPUs.

    A batch of 12 samples is no faster on 10 GPUs than on 6, though on both each GPU is half used.
    """
    at_least = least * step_s[least]
    worth = least
    for gpus in range(least + 1, most + 1):
        gain = at_least * (1.0 / step_s[gpus] - 1.0 / step_s[worth]) / (gpus - worth)
        if gain >= GAIN and at_least >= EFFICIENCY * gpus * step_s[gpus]:
            worth = gpus
    return worth


def nodes_for(gpus: int, bounds: NodeBounds) -> int:
    """Return the number of nodes for a number of GPUs, within bounds."""
    return min(bounds.most, max(bounds.least, -(-gpus // bounds.gpus)))


def next_count(before: NodeCount, needed: int, bounds: NodeBounds, now_s: float) -> NodeCount:
    """Decide the number of nodes, now that `needed` are needed."""
    if needed >= before.nodes:
        return NodeCount(needed)
    if before.nodes > bounds.most:
        return NodeCount(bounds.most, before.surplus_since_s, before.peak)
    if before.surplus_since_s is None:
        return NodeCount(before.nodes, now_s, needed)
    peak = max(before.peak, needed)
    # Compared as a driver computes when to ask again, or rounding might make it ask too early.
    if now_s < before.surplus_since_s + bounds.idle_s:
        return NodeCount(before.nodes, before.surplus_since_s, peak)
    return NodeCount(peak, now_s if needed < peak else None, needed)


def emptiest(used: Mapping[NodeId, int], count: int) -> list[NodeId]:
    """Name the nodes to give back first, from how many GPUs of each are in use."""
    return sorted(used, key=lambda node: (used[node], node))[: max(0, count)]

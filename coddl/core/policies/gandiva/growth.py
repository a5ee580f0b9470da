"""Grow-shrink: idle GPUs of a server go to the elastic jobs on it, until other jobs need them."""

from typing import NamedTuple

import numpy as np

from coddl.core.columns import BoolColumn, FloatMatrix, IntColumn, IntMatrix
from coddl.core.compiling import kernel, part
from coddl.core.policies.gandiva.assignment import COLUMN


class Idle(NamedTuple):
    """What is left once every row has its turn, and which may have it."""

    free: IntColumn  # by node
    node: IntColumn  # of each row that is alone on its GPUs, all on one server; else -1
    may_grow: BoolColumn


class Sizes(NamedTuple):
    """What rows hold, and what they can use."""

    held: IntColumn
    most: IntColumn
    curve: IntColumn
    last: IntMatrix  # as in Steps


@part
def useful_share(sizes: Sizes, row: int, least: int, share: int) -> int:
    """The largest share up to this one that a row gains from, `least` at least."""
    share = min(share, sizes.most[row], sizes.last.shape[1] - 1)
    return int(max(least, sizes.last[sizes.curve[row], share]))


@kernel
def grow(
    sizes: Sizes,
    idle: Idle,
    memory: FloatMatrix,
    now_s: float,
    grow_after_s: float,
    shares: IntColumn,
) -> float:
    """Give GPUs that have been idle long enough to rows on the same server.

    A row that has grown before keeps that as far as no other needs it. Returns when to look again.
    """
    wake_at_s = np.inf
    for row in range(shares.shape[0]):
        if idle.may_grow[row]:
            node, extra = idle.node[row], max(0, sizes.held[row] - shares[row])
            share = shares[row] + min(extra, idle.free[node])
            kept = useful_share(sizes, row, shares[row], share)
            idle.free[node] -= kept - shares[row]
            shares[row] = kept
    for row in range(shares.shape[0]):
        more = 0
        if idle.may_grow[row]:
            room = shares[row] + idle.free[idle.node[row]]
            more = useful_share(sizes, row, shares[row], room) - shares[row]
        if more <= 0:
            memory[row, COLUMN.grow_at_s] = 0.0
        elif memory[row, COLUMN.grow_at_s] == 0.0:
            memory[row, COLUMN.grow_at_s] = now_s + grow_after_s
        elif memory[row, COLUMN.grow_at_s] <= now_s:
            memory[row, COLUMN.grow_at_s] = 0.0
            idle.free[idle.node[row]] -= more
            shares[row] += more
        if memory[row, COLUMN.grow_at_s] > 0.0:
            wake_at_s = min(wake_at_s, memory[row, COLUMN.grow_at_s])
    return wake_at_s

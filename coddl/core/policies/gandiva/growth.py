"""Grow-shrink: idle GPUs of a server go to the elastic jobs on it, until somebody needs them."""

from typing import NamedTuple

import numpy as np

from coddl.core.columns import BoolColumn, FloatMatrix, IntColumn
from coddl.core.compiling import kernel, part
from coddl.core.jobs import CURVE, GPUS, GPUS_MAX, GPUS_REQUESTED
from coddl.core.policies.gandiva.homes import GROW_AT_S
from coddl.core.snapshot import Picture


class Idle(NamedTuple):
    """What is left once everybody has its turn, and who may have it."""

    free: IntColumn  # by node
    node: IntColumn  # of each row that is alone on its GPUs, all on one server; else -1
    may_grow: BoolColumn


@part
def useful_share(picture: Picture, row: int, share: int) -> int:
    """The largest share up to this one that a row gains from, at least its request."""
    whole, last = picture.jobs.whole, picture.steps.last
    share = min(share, whole[GPUS_MAX, row], last.shape[1] - 1)
    return int(max(whole[GPUS_REQUESTED, row], last[whole[CURVE, row], share]))


@kernel
def grow(
    picture: Picture, idle: Idle, memory: FloatMatrix, grow_after_s: float, shares: IntColumn
) -> float:
    """Give idle GPUs to rows beside them, once they have been idle for so long.

    Who has grown before keeps that as far as nobody needs it. Returns when to look again.
    """
    whole, wake_at_s = picture.jobs.whole, np.inf
    for row in range(shares.shape[0]):
        if idle.may_grow[row]:
            node, extra = idle.node[row], max(0, whole[GPUS, row] - shares[row])
            kept = useful_share(picture, row, shares[row] + min(extra, idle.free[node]))
            idle.free[node] -= kept - shares[row]
            shares[row] = kept
    for row in range(shares.shape[0]):
        more = 0
        if idle.may_grow[row]:
            room = shares[row] + idle.free[idle.node[row]]
            more = useful_share(picture, row, room) - shares[row]
        if more <= 0:
            memory[row, GROW_AT_S] = 0.0
        elif memory[row, GROW_AT_S] == 0.0:
            memory[row, GROW_AT_S] = picture.now_s + grow_after_s
        elif memory[row, GROW_AT_S] <= picture.now_s:
            memory[row, GROW_AT_S] = 0.0
            idle.free[idle.node[row]] -= more
            shares[row] += more
        if memory[row, GROW_AT_S] > 0.0:
            wake_at_s = min(wake_at_s, memory[row, GROW_AT_S])
    return wake_at_s

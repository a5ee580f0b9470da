"""Equal shares."""

from dataclasses import dataclass

import numpy as np

from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn
from coddl.core.compiling import ONE, kernel, whole_number
from coddl.core.jobs import GPUS, GPUS_MIN, LAST_START_S
from coddl.core.kernels import (
    ANY,
    NOBODY,
    SKIP,
    grow_all,
    line_up,
    next_share,
    select_first,
    serve_running_first,
    sort_heap,
)
from coddl.core.policies.policy import RulePolicy
from coddl.core.snapshot import Picture

MINIMUM = whole_number(GPUS_MIN)


@kernel
def max_min(picture: Picture, params: FloatColumn, memory: FloatMatrix, shares: IntColumn) -> float:
    """Round-robin in order of (start, submission), one step at a time."""
    left = serve_running_first(picture, MINIMUM, SKIP, shares)
    if left == 0 or grow_all(picture, left, shares):
        return np.inf
    size = picture.rows.shape[0]
    line, turn = line_up(ONE, size), np.empty(size, np.int64)
    for k in range(size):
        row = picture.rows[k]
        line.need[k] = shares[k]
        line.holds[k] = picture.jobs.whole[GPUS, row] > 0
        line.keys[0, k] = picture.jobs.real[LAST_START_S, row] if line.holds[k] else np.inf
    select_first(line, ANY, NOBODY, size, turn)
    sort_heap(turn, size, line.keys)
    while left > 0:
        before = left
        for i in range(size):
            k = turn[i]
            following = next_share(picture, k, shares[k]) if shares[k] > 0 else 0
            added = following - shares[k]
            if following > 0 and added <= left:
                shares[k] = following
                left -= added
        if left == before:
            break
    return np.inf


@dataclass(frozen=True)
class MaxMin(RulePolicy):
    """Gives every job the same number of GPUs, as far as its model can use them.

    Partial share · under overload, first come first served with gpus_min each · cap: the model's
    largest useful share.
    """

    rule = staticmethod(max_min)
    why = "jobs that started earlier hold the GPUs"

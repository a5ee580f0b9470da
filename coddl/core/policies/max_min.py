"""Equal shares."""

from dataclasses import dataclass

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn
from coddl.core.compiling import kernel
from coddl.core.jobs import GPUS, LAST_START_S
from coddl.core.kernels import (
    ANY,
    NOBODY,
    first_in_order,
    grant_minimum,
    grant_minimum_in_order,
    next_share,
)
from coddl.core.policies.policy import answer, parameters
from coddl.core.snapshot import Picture, Snapshot


@kernel
def max_min(picture: Picture, params: FloatColumn, memory: FloatMatrix, shares: IntColumn) -> float:
    """Round-robin in order of (last start, submission), one step at a time."""
    size = picture.rows.shape[0]
    keys = np.empty((1, size))
    for k in range(size):
        row = picture.rows[k]
        started_s = picture.jobs.real[LAST_START_S, row]
        keys[0, k] = started_s if picture.jobs.whole[GPUS, row] > 0 else np.inf
    left = grant_minimum(picture, shares)
    if left < 0:
        left = grant_minimum_in_order(picture, keys, shares)
    turn = np.empty(size, np.int64)
    served = first_in_order(keys, shares, ANY, NOBODY, turn, size)
    while left > 0:
        before = left
        for i in range(served):
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
class MaxMin:
    """Gives every job the same number of GPUs, as far as its model can use them.

    Partial share · under overload, first come first served with gpus_min each · cap: the model's
    largest useful share.
    """

    rule = staticmethod(max_min)

    @property
    def parameters(self) -> FloatColumn:
        return parameters()

    def __call__(self, snapshot: Snapshot) -> Allocation:
        return answer(self, snapshot, "jobs that started earlier hold the GPUs")

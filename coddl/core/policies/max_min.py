"""Equal shares."""

from dataclasses import dataclass

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn
from coddl.core.compiling import kernel
from coddl.core.jobs import GPUS, LAST_START_S
from coddl.core.kernels import first_in_order, grant_minimum, next_share
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
    left = grant_minimum(picture, keys, shares)
    turn, holds = np.empty(size, np.int64), np.empty(size, np.bool_)
    for k in range(size):
        holds[k] = shares[k] > 0
    served = first_in_order(keys, holds, size, turn)
    while left > 0:
        before = left
        for i in range(served):
            k = turn[i]
            following = next_share(picture, k, shares[k])
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

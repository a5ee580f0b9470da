"""Equal shares."""

from dataclasses import dataclass

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn
from coddl.core.compiling import ONE, kernel, kernel_int
from coddl.core.heaps import sort_heap
from coddl.core.jobs import GPUS, GPUS_MIN, LAST_START_S
from coddl.core.kernels import (
    ANY,
    NO_ROW,
    SKIP,
    empty_ranking,
    grow_all,
    next_share,
    select_first,
    serve_running_first,
)
from coddl.core.policies.kinds import LEAST, GpuKinds, KindPolicy, dealt, served_all
from coddl.core.snapshot import KernelSnapshot, Snapshot

MINIMUM = kernel_int(GPUS_MIN)


@kernel
def max_min(
    snapshot: KernelSnapshot, params: FloatColumn, memory: FloatMatrix, shares: IntColumn
) -> float:
    """Round-robin in order of (start, submission), one step at a time."""
    left = serve_running_first(snapshot, MINIMUM, SKIP, shares)
    if left == 0 or grow_all(snapshot, left, shares):
        return np.inf
    size = snapshot.rows.shape[0]
    ranked, turn = empty_ranking(ONE, size), np.empty(size, np.int64)
    for k in range(size):
        row = snapshot.rows[k]
        ranked.need[k] = shares[k]
        ranked.holds[k] = snapshot.jobs.ints[GPUS, row] > 0
        ranked.keys[0, k] = snapshot.jobs.floats[LAST_START_S, row] if ranked.holds[k] else np.inf
    select_first(ranked, ANY, NO_ROW, size, turn)
    sort_heap(turn, size, ranked.keys)
    while left > 0:
        before = left
        for i in range(size):
            k = turn[i]
            following = next_share(snapshot, k, shares[k]) if shares[k] > 0 else 0
            added = following - shares[k]
            if following > 0 and added <= left:
                shares[k] = following
                left -= added
        if left == before:
            break
    return np.inf


@dataclass(frozen=True)
class MaxMin(KindPolicy):
    """Gives every job the same number of GPUs, as far as its model can use them; of several kinds,
    counted in what they do for it.

    Partial share · under overload, first come first served with gpus_min each · cap: the model's
    largest useful share.
    """

    kinds: GpuKinds = "auto"

    rule = staticmethod(max_min)
    why = "jobs that started earlier hold the GPUs"

    def by_kind(self, snapshot: Snapshot) -> Allocation:
        """Deal the next GPUs to the job that has least."""
        jobs = snapshot.jobs
        start_s = np.where(jobs.gpus > 0, jobs.last_start_s, np.inf)
        return Allocation(
            dealt(snapshot, served_all(snapshot, np.lexsort((jobs.id, start_s))), LEAST)
        )

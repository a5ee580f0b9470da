"""Shortest first, by time (SRTF) or by GPU-time (SRSF)."""

from dataclasses import dataclass

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn
from coddl.core.compiling import kernel
from coddl.core.jobs import GPUS_REQUESTED
from coddl.core.kernels import SKIP, fill_in_order, seconds_left
from coddl.core.policies.policy import answer, parameters
from coddl.core.snapshot import Picture, Snapshot


@kernel
def shortest(
    picture: Picture, params: FloatColumn, memory: FloatMatrix, shares: IntColumn
) -> float:
    """Fill in order of the time left at the request. params: [weigh it by the request]."""
    size = picture.rows.shape[0]
    widest = picture.step_s.shape[1] - 1
    keys, need = np.empty((1, size)), np.empty(size, np.int64)
    for k in range(size):
        row = picture.rows[k]
        need[k] = picture.jobs.whole[GPUS_REQUESTED, row]
        keys[0, k] = seconds_left(picture, row, min(need[k], widest))
        if params[0] != 0.0:
            keys[0, k] *= need[k]
    fill_in_order(keys, need, picture.gpus, SKIP, shares)
    return np.inf


@dataclass(frozen=True)
class Srtf:
    """Runs the jobs that would finish soonest on the GPUs they asked for; preempts longer ones.

    Rigid request · backfill: a job that does not fit is skipped, later ones may start · no cap but
    the request.
    """

    rule = staticmethod(shortest)

    @property
    def parameters(self) -> FloatColumn:
        return parameters(0)

    def __call__(self, snapshot: Snapshot) -> Allocation:
        return answer(self, snapshot, "shorter jobs hold the GPUs")


@dataclass(frozen=True)
class Srsf:
    """Runs the jobs with the least GPU-time left (request x time at it); preempts larger ones.

    Rigid request · backfill: a job that does not fit is skipped, later ones may start · no cap but
    the request.
    """

    rule = staticmethod(shortest)

    @property
    def parameters(self) -> FloatColumn:
        return parameters(1)

    def __call__(self, snapshot: Snapshot) -> Allocation:
        return answer(self, snapshot, "jobs with less GPU-time left hold the GPUs")

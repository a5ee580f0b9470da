"""Shortest first, by time (SRTF) or by GPU-time (SRSF)."""

from dataclasses import dataclass

import numpy as np

from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn
from coddl.core.compiling import ONE, kernel
from coddl.core.jobs import GPUS, GPUS_REQUESTED
from coddl.core.kernels import SKIP, empty_ranking, fill_in_order, seconds_left
from coddl.core.policies.policy import RulePolicy, parameters
from coddl.core.snapshot import KernelSnapshot


@kernel
def shortest(
    snapshot: KernelSnapshot, params: FloatColumn, memory: FloatMatrix, shares: IntColumn
) -> float:
    """Fill in order of the time left at the request. params: [weigh it by the request]."""
    size = snapshot.rows.shape[0]
    widest = snapshot.step_s.shape[1] - 1
    ranked = empty_ranking(ONE, size)
    for k in range(size):
        row = snapshot.rows[k]
        ranked.need[k] = snapshot.jobs.ints[GPUS_REQUESTED, row]
        ranked.holds[k] = snapshot.jobs.ints[GPUS, row] > 0
        ranked.keys[0, k] = seconds_left(snapshot, row, min(ranked.need[k], widest))
        if params[0] != 0.0:
            ranked.keys[0, k] *= ranked.need[k]
    fill_in_order(ranked, snapshot.gpus, SKIP, shares)
    return np.inf


@dataclass(frozen=True)
class Srtf(RulePolicy):
    """Runs the jobs that would finish soonest on the GPUs they asked for; preempts longer ones.

    Rigid request · backfill: a job that does not fit is skipped, later ones may start · no cap but
    the request.
    """

    rule = staticmethod(shortest)
    why = "shorter jobs hold the GPUs"
    rigid = True

    @property
    def parameters(self) -> FloatColumn:
        return parameters(0)


@dataclass(frozen=True)
class Srsf(RulePolicy):
    """Runs the jobs with the least GPU-time left (request x time at it); preempts larger ones.

    Rigid request · backfill: a job that does not fit is skipped, later ones may start · no cap but
    the request.
    """

    rule = staticmethod(shortest)
    why = "jobs with less remaining GPU-time hold the GPUs"
    rigid = True

    @property
    def parameters(self) -> FloatColumn:
        return parameters(1)

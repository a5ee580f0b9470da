"""Shortest first, by time (SRTF) or by GPU-time (SRSF)."""

from dataclasses import dataclass

import numpy as np

from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn
from coddl.core.compiling import ONE, kernel
from coddl.core.jobs import GPUS, GPUS_REQUESTED
from coddl.core.kernels import SKIP, fill_in_order, line_up, seconds_left
from coddl.core.policies.policy import RulePolicy, parameters
from coddl.core.snapshot import Picture


@kernel
def shortest(
    picture: Picture, params: FloatColumn, memory: FloatMatrix, shares: IntColumn
) -> float:
    """Fill in order of the time left at the request. params: [weigh it by the request]."""
    size = picture.rows.shape[0]
    widest = picture.step_s.shape[1] - 1
    line = line_up(ONE, size)
    for k in range(size):
        row = picture.rows[k]
        line.need[k] = picture.jobs.whole[GPUS_REQUESTED, row]
        line.holds[k] = picture.jobs.whole[GPUS, row] > 0
        line.keys[0, k] = seconds_left(picture, row, min(line.need[k], widest))
        if params[0] != 0.0:
            line.keys[0, k] *= line.need[k]
    fill_in_order(line, picture.gpus, SKIP, shares)
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
    why = "jobs with less GPU-time left hold the GPUs"
    rigid = True

    @property
    def parameters(self) -> FloatColumn:
        return parameters(1)

"""Tiresias-L (NSDI '19): least attained GPU-time first, in queues so that jobs do not swap places
all the time.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn
from coddl.core.compiling import THREE, kernel, part
from coddl.core.jobs import (
    EXECUTED_S,
    FIRST_START_S,
    GPUS,
    GPUS_REQUESTED,
    LAST_START_S,
    SUBMITTED_S,
)
from coddl.core.kernels import SKIP, fill_in_order, line_up
from coddl.core.policies.policy import answer, parameters
from coddl.core.snapshot import Picture, Snapshot

LEVEL, OLD_EXECUTED_S, OLD_WAITED_S = range(3)  # memory: queue, and where its counters started from
PROMOTE, SINCE_START, THRESHOLD_GPU_S = range(3)  # params; one threshold or more
SLACK_S = 1e-3  # a crossing is due at the instant predicted for it, whatever the rounding


@part
def queue_level(picture: Picture, row: int, params: FloatColumn, memory: FloatMatrix) -> float:
    """Move a job to the queue it belongs to now; return when it is due for another."""
    jobs, now_s = picture.jobs, picture.now_s
    if jobs.whole[GPUS, row] == 0 and memory[row, LEVEL] == 0.0:
        return np.inf  # it waits in the first queue, and will until it runs
    gpus = jobs.whole[GPUS_REQUESTED, row]
    executed_s = jobs.real[EXECUTED_S, row] - memory[row, OLD_EXECUTED_S]
    waited_s = now_s - jobs.real[SUBMITTED_S, row] - jobs.real[EXECUTED_S, row]
    if jobs.whole[GPUS, row] > 0:
        began_s, late_s = now_s - executed_s, 0.0
        if params[SINCE_START] != 0.0:
            memory[row, LEVEL] = 0.0
            began_s = jobs.real[LAST_START_S, row]
            # The AFS evaluation looks a GPU-second a GPU late, in whole seconds. So do its traces'
            # times come, and ties between jobs that started within a second of each other hang on
            # it.
            late_s = (gpus - 1) / gpus
        for level in range(int(memory[row, LEVEL]), params.shape[0] - THRESHOLD_GPU_S):
            limit_s = params[THRESHOLD_GPU_S + level] / gpus
            if now_s - began_s < limit_s - SLACK_S:
                look_s = np.ceil(limit_s + late_s) if late_s > 0.0 else limit_s
                return float(began_s + look_s)
            if level == 0:
                memory[row, OLD_WAITED_S] = waited_s
            memory[row, LEVEL] = level + 1
    elif params[PROMOTE] > 0.0 and memory[row, LEVEL] > 0.0:
        due_s = params[PROMOTE] * executed_s - (waited_s - memory[row, OLD_WAITED_S])
        if due_s > SLACK_S:
            return float(now_s + due_s)
        memory[row, LEVEL] = 0.0
        memory[row, OLD_EXECUTED_S] = jobs.real[EXECUTED_S, row]
    return np.inf


@kernel
def tiresias_l(
    picture: Picture, params: FloatColumn, memory: FloatMatrix, shares: IntColumn
) -> float:
    """Fill queue by queue, in order of first start."""
    jobs, size = picture.jobs, picture.rows.shape[0]
    line = line_up(THREE, size)
    wake_at_s = np.inf
    for k in range(size):
        row = picture.rows[k]
        line.need[k] = jobs.whole[GPUS_REQUESTED, row]
        line.holds[k] = jobs.whole[GPUS, row] > 0
        wake_at_s = min(wake_at_s, queue_level(picture, row, params, memory))
        line.keys[0, k] = memory[row, LEVEL]
        # A running job is not swapped for one of its queue that waits; the AFS evaluation does so.
        line.keys[1, k] = params[SINCE_START] == 0.0 and not line.holds[k]
        line.keys[2, k] = jobs.real[FIRST_START_S, row]
    fill_in_order(line, picture.gpus, SKIP, shares)
    return wake_at_s


@dataclass(frozen=True)
class TiresiasL:
    """Runs jobs that have had least GPU-time, in queues with thresholds; lengths unknown; preempts.

    Rigid request · backfill: a job that does not fit is skipped, later ones may start · no cap but
    the request.
    """

    threshold_gpu_h: tuple[float, ...] = (1.0,)  # queue limits; one more queue than limits
    promote: float = 0.0  # to the first queue after waiting this many times its run time; 0: never
    count: Literal["total", "since-start"] = "total"  # since promotion, or since the last start

    rule = staticmethod(tiresias_l)
    # The setting of the AFS evaluation.
    presets: ClassVar = {
        "afs": {"threshold_gpu_h": (50.0,), "promote": 0.0, "count": "since-start"}
    }

    @property
    def parameters(self) -> FloatColumn:
        limits_gpu_s = (hours * 3600.0 for hours in self.threshold_gpu_h)
        since_start = self.count == "since-start"
        return parameters(self.promote, since_start, *limits_gpu_s)

    def __call__(self, snapshot: Snapshot) -> Allocation:
        return answer(self, snapshot, "jobs that have had less GPU-time hold the GPUs")

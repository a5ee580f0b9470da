"""Tiresias-L (NSDI '19): least attained GPU-time first, in queues so that jobs do not swap places
all the time.

Where a switch costs little, jobs may swap places more often: those of a queue take turns then, and
the one that has run least is next.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn
from coddl.core.compiling import TWO, kernel, part
from coddl.core.jobs import (
    EXECUTED_S,
    FIRST_START_S,
    GPUS,
    GPUS_REQUESTED,
    LAST_START_S,
    SUBMITTED_S,
)
from coddl.core.kernels import SKIP, empty_ranking, fill_in_order
from coddl.core.named import Meaning
from coddl.core.policies.policy import RulePolicy, parameters
from coddl.core.policies.quantum import turn_s, with_short_turns
from coddl.core.snapshot import KernelSnapshot, Snapshot, memory_columns

PROMOTE, SINCE_START, TURN_S, THRESHOLD_GPU_S = range(4)  # params; one threshold or more
SLACK_S = 1e-3  # a crossing is due at the instant predicted for it, whatever the rounding
# What is remembered of a job.
COLUMN = memory_columns(
    "level",  # the queue that it is in
    "old_executed_s",  # where the counters of its queue started from
    "old_waited_s",
    "turn_end_s",  # until then it keeps its GPUs from the others of its queue
)


@part
def counted_from_s(
    snapshot: KernelSnapshot, row: int, params: FloatColumn, memory: FloatMatrix
) -> float:
    """When the time that counts for a job's queue began, had it run without a break."""
    if params[SINCE_START] == 0.0:
        executed_s = snapshot.jobs.floats[EXECUTED_S, row] - memory[row, COLUMN.old_executed_s]
        return float(snapshot.now_s - executed_s)
    runs = snapshot.jobs.ints[GPUS, row] > 0
    return float(snapshot.jobs.floats[LAST_START_S, row]) if runs else snapshot.now_s


@part
def down_at_s(
    snapshot: KernelSnapshot, row: int, params: FloatColumn, memory: FloatMatrix
) -> float:
    """When to look whether a job that runs from now on has had what its queue allows."""
    gpus, level = snapshot.jobs.ints[GPUS_REQUESTED, row], int(memory[row, COLUMN.level])
    if params[SINCE_START] != 0.0 and snapshot.jobs.ints[GPUS, row] == 0:
        level = 0  # it starts afresh
    if THRESHOLD_GPU_S + level >= params.shape[0]:
        return np.inf
    limit_s = params[THRESHOLD_GPU_S + level] / gpus
    if params[SINCE_START] != 0.0:
        # The AFS evaluation looks a GPU-second a GPU late, in whole seconds. Its traces have whole
        # seconds too, and ties of jobs that start within one of each other hang on it.
        limit_s = np.ceil(limit_s + (gpus - 1) / gpus)
    return float(counted_from_s(snapshot, row, params, memory) + limit_s)


@part
def up_at_s(snapshot: KernelSnapshot, row: int, params: FloatColumn, memory: FloatMatrix) -> float:
    """When a job that waits from now on is promoted."""
    executed_s, now_s = snapshot.jobs.floats[EXECUTED_S, row], snapshot.now_s
    waited_s = (
        now_s
        - snapshot.jobs.floats[SUBMITTED_S, row]
        - executed_s
        - memory[row, COLUMN.old_waited_s]
    )
    return float(
        now_s + params[PROMOTE] * (executed_s - memory[row, COLUMN.old_executed_s]) - waited_s
    )


@part
def change_queue(
    snapshot: KernelSnapshot, row: int, params: FloatColumn, memory: FloatMatrix
) -> None:
    """Move a job to the queue it belongs to now."""
    jobs, now_s = snapshot.jobs, snapshot.now_s
    if jobs.ints[GPUS, row] > 0:
        if params[SINCE_START] != 0.0:
            memory[row, COLUMN.level] = 0.0
        ran_s = now_s - counted_from_s(snapshot, row, params, memory)
        gpus, limits = jobs.ints[GPUS_REQUESTED, row], params[THRESHOLD_GPU_S:]
        for level in range(int(memory[row, COLUMN.level]), limits.shape[0]):
            if ran_s < limits[level] / gpus - SLACK_S:
                break
            if level == 0:
                waited_s = now_s - jobs.floats[SUBMITTED_S, row] - jobs.floats[EXECUTED_S, row]
                memory[row, COLUMN.old_waited_s] = waited_s
            memory[row, COLUMN.level] = level + 1
        return
    hopes = memory[row, COLUMN.level] > 0.0 and params[PROMOTE] > 0.0
    if hopes and up_at_s(snapshot, row, params, memory) <= now_s + SLACK_S:
        memory[row, COLUMN.level] = 0.0
        memory[row, COLUMN.old_executed_s] = jobs.floats[EXECUTED_S, row]


@part
def next_move_s(
    snapshot: KernelSnapshot, params: FloatColumn, memory: FloatMatrix, shares: IntColumn
) -> float:
    """When the first job leaves its queue or a turn ends, given the rows that run from now on."""
    wake_at_s, turn_end_s, waits = np.inf, np.inf, False
    for k in range(snapshot.rows.shape[0]):
        row = snapshot.rows[k]
        if shares[k] > 0:
            wake_at_s = min(wake_at_s, down_at_s(snapshot, row, params, memory))
            turn_end_s = min(turn_end_s, memory[row, COLUMN.turn_end_s])
            continue
        waits = True
        if params[PROMOTE] > 0.0 and memory[row, COLUMN.level] > 0.0:
            wake_at_s = min(wake_at_s, up_at_s(snapshot, row, params, memory))
    if waits and params[TURN_S] < np.inf:
        wake_at_s = min(wake_at_s, turn_end_s)
    return max(wake_at_s, snapshot.now_s + SLACK_S)


@kernel
def tiresias_l(
    snapshot: KernelSnapshot, params: FloatColumn, memory: FloatMatrix, shares: IntColumn
) -> float:
    """Fill queue by queue, in order of first start, or in turns."""
    jobs, size = snapshot.jobs, snapshot.rows.shape[0]
    ranked, in_turn = empty_ranking(TWO, size), np.zeros(size, np.bool_)
    takes_turns = params[TURN_S] < np.inf
    # A running job is not swapped for one of its queue that waits; in the AFS evaluation it is.
    waits_behind = 0.5 if params[SINCE_START] == 0.0 else 0.0
    for k in range(size):
        row = snapshot.rows[k]
        ranked.need[k] = jobs.ints[GPUS_REQUESTED, row]
        ranked.holds[k] = jobs.ints[GPUS, row] > 0
        if ranked.holds[k] or memory[row, COLUMN.level] > 0.0:
            change_queue(snapshot, row, params, memory)
        turn_is_over = takes_turns and memory[row, COLUMN.turn_end_s] <= snapshot.now_s + SLACK_S
        in_turn[k] = ranked.holds[k] and not turn_is_over
        ranked.keys[0, k] = memory[row, COLUMN.level] + (0.0 if in_turn[k] else waits_behind)
        ranked.keys[1, k] = jobs.floats[FIRST_START_S, row]
        if takes_turns:
            ranked.keys[1, k] = snapshot.now_s - counted_from_s(snapshot, row, params, memory)
    fill_in_order(ranked, snapshot.gpus, SKIP, shares)
    for k in range(size):
        if takes_turns and shares[k] > 0 and not in_turn[k]:
            memory[snapshot.rows[k], COLUMN.turn_end_s] = snapshot.now_s + params[TURN_S]
    return next_move_s(snapshot, params, memory, shares)


@dataclass(frozen=True)
class TiresiasL(RulePolicy):
    """Runs jobs that have had least GPU-time, in queues with thresholds; lengths unknown; preempts.

    Rigid request · backfill: a job that does not fit is skipped, later ones may start · no cap but
    the request. Jobs of a queue take turns in a pool that knows what a switch costs.
    """

    threshold_gpu_h: Annotated[
        tuple[float, ...],
        Meaning("limits of the queues in GPU-hours, as in 1/10; one more queue than limits"),
    ] = (1.0,)
    promote: Annotated[
        float,
        Meaning(
            "a job returns to the first queue after waiting this many times its run time; 0: never"
        ),
    ] = 0.0
    count: Annotated[
        Literal["total", "since-start"],
        Meaning("GPU-time that counts: total since promotion, or since the last start"),
    ] = "total"
    turn_h: Annotated[
        float,
        Meaning("hours that turns in a queue last; 0: none until a pool knows what a switch costs"),
    ] = 0.0

    rule = staticmethod(tiresias_l)
    why = "jobs with less GPU-time so far hold the GPUs"
    rigid = True
    memory = COLUMN
    # The setting of the AFS evaluation.
    presets: ClassVar = {
        "afs": {"threshold_gpu_h": (50.0,), "promote": 0.0, "count": "since-start"}
    }

    @property
    def parameters(self) -> FloatColumn:
        limits_gpu_s = (hours * 3600.0 for hours in self.threshold_gpu_h)
        since_start = self.count == "since-start"
        return parameters(self.promote, since_start, self._turn_s_max, *limits_gpu_s)

    def parameters_for(self, snapshot: Snapshot) -> FloatColumn:
        """With turns as long as they are now."""
        found = self.parameters
        found[TURN_S] = turn_s(snapshot.jobs, self._turn_s_max)
        return found

    @property
    def _turn_s_max(self) -> float:
        return self.turn_h * 3600.0 or np.inf

    def __call__(self, snapshot: Snapshot) -> Allocation:
        """Take turns, which may have become shorter since they began."""
        return super().__call__(with_short_turns(snapshot, COLUMN.turn_end_s, self._turn_s_max))

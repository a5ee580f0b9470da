"""Tiresias-G (NSDI '19): the jobs likeliest to end soon, by the GPU-time that past jobs took.

The Gittins index of a job that has had a of GPU-time, with the next quantum D in view, is

    P(s - a <= D | s > a)  /  E[min(s - a, D) | s > a]

over the GPU-times s of past jobs: the chance that the quantum pays over what it is expected to
cost. D is the upper limit of the job's queue. The published code adds up s where the textbook adds
up s - a, which makes old jobs look dearer than they are.
"""

from dataclasses import dataclass
from typing import Annotated, Final, Literal, NamedTuple

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn
from coddl.core.compiling import kernel, kernel_int, part
from coddl.core.jobs import EXECUTED_S, FIRST_START_S, GPUS, GPUS_REQUESTED
from coddl.core.kernels import SKIP, empty_ranking, fill_in_order
from coddl.core.named import Meaning
from coddl.core.policies.policy import parameters, with_reasons
from coddl.core.policies.tiresias import (
    COLUMN,
    THRESHOLD_GPU_S,
    change_queue,
    next_move_s,
)
from coddl.core.snapshot import KernelSnapshot, Snapshot

RECENT: Final = 1000  # past jobs that count, as many as the published simulator reads
KEYS = kernel_int(4)

Form = Literal["textbook", "published"]


class Past(NamedTuple):
    """What past jobs took, as an index needs it."""

    services_gpu_s: FloatColumn  # rising
    sums_gpu_s: FloatColumn  # entry i: the sum of the first i of them
    from_now: bool  # the textbook's s - a, not s


@part
def gittins_index(past: Past, attained_gpu_s: float, quantum_gpu_s: float) -> float:
    """The index of a job; 0 if none of the past had as much and ended within the quantum."""
    end_gpu_s = attained_gpu_s + quantum_gpu_s
    first = np.searchsorted(past.services_gpu_s, attained_gpu_s, side="right")
    last = np.searchsorted(past.services_gpu_s, end_gpu_s, side="right")
    if first == last:
        return 0.0
    within_gpu_s = past.sums_gpu_s[last] - past.sums_gpu_s[first]
    if past.from_now:
        within_gpu_s -= attained_gpu_s * (last - first)
    beyond_gpu_s = quantum_gpu_s * (past.services_gpu_s.shape[0] - last)
    return float((last - first) / (within_gpu_s + beyond_gpu_s))


@kernel
def tiresias_g(
    snapshot: KernelSnapshot,
    params: FloatColumn,
    memory: FloatMatrix,
    shares: IntColumn,
    past: Past,
) -> float:
    """Fill queue by queue, in order of the index; the last queue in order of first start."""
    jobs, size = snapshot.jobs, snapshot.rows.shape[0]
    ranked, limits = empty_ranking(KEYS, size), params[THRESHOLD_GPU_S:]
    for k in range(size):
        row = snapshot.rows[k]
        ranked.need[k] = jobs.ints[GPUS_REQUESTED, row]
        ranked.holds[k] = jobs.ints[GPUS, row] > 0
        if ranked.holds[k] or memory[row, COLUMN.level] > 0.0:
            change_queue(snapshot, row, params, memory)
        level = int(memory[row, COLUMN.level])
        ran_s = jobs.floats[EXECUTED_S, row] - memory[row, COLUMN.old_executed_s]
        ranked.keys[0, k] = level
        ranked.keys[1, k] = 0.0
        if level < limits.shape[0]:
            ranked.keys[1, k] = -gittins_index(past, ran_s * ranked.need[k], limits[level])
        ranked.keys[2, k] = 0.0 if ranked.holds[k] else 1.0  # equals are not swapped
        ranked.keys[3, k] = jobs.floats[FIRST_START_S, row]
    fill_in_order(ranked, snapshot.gpus, SKIP, shares)
    return next_move_s(snapshot, params, memory, shares)


def past_of(services_gpu_s: FloatColumn, form: Form) -> Past:
    """Past jobs, in any order."""
    rising = np.sort(services_gpu_s)
    sums = np.concatenate((np.zeros(1), np.cumsum(rising)))
    return Past(rising, sums, form == "textbook")


@dataclass(frozen=True)
class TiresiasG:
    """Runs jobs likely to end soon, by their GPU-time so far and what past jobs took; preempts.

    Rigid request · backfill: a job that does not fit is skipped, later ones may start · no cap but
    the request.
    """

    threshold_gpu_h: Annotated[
        tuple[float, ...],
        Meaning("limits of the queues in GPU-hours, as in 1/10; the last queue is first come"),
    ] = (1.0,)
    promote: Annotated[
        float,
        Meaning(
            "a job returns to the first queue after waiting this many times its run time; 0: never"
        ),
    ] = 0.0
    services_gpu_h: Annotated[
        tuple[float, ...],
        Meaning("what jobs take in all, as in 4/8/12; none: what the last 1,000 that ended took"),
    ] = ()
    form: Annotated[
        Form, Meaning("the index as in the textbook, or published: as in the paper's simulator")
    ] = "textbook"

    rigid = True
    memory = COLUMN

    def __call__(self, snapshot: Snapshot) -> Allocation:
        jobs, memory = snapshot.jobs, snapshot.memory.copy()
        services_gpu_s = snapshot.past_gpu_s[-RECENT:]
        if self.services_gpu_h:
            services_gpu_s = np.array(self.services_gpu_h) * 3600.0
        limits_gpu_s = (3600.0 * limit for limit in self.threshold_gpu_h)
        params = parameters(self.promote, 0.0, np.inf, *limits_gpu_s)
        past, shares = past_of(services_gpu_s, self.form), np.zeros(jobs.size, np.int64)
        wake_at_s = tiresias_g(snapshot.for_kernels(), params, memory, shares, past)
        allocation = Allocation(shares, wake_at_s=wake_at_s, memory=memory)
        why = "jobs that are more likely to finish soon hold the GPUs"
        return with_reasons(snapshot, allocation, why, jobs.gpus_requested)

"""Optimus with workers and parameter servers (EuroSys '18): the next task where it gains most."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.columns import FloatColumn
from coddl.core.compiling import ZERO, as_part, kernel, part
from coddl.core.heaps import make_heap, sink
from coddl.core.jobs import CURVE, GPUS_MAX, REMAINING_ITERATIONS
from coddl.core.kernels import next_share
from coddl.core.named import Meaning, Part
from coddl.core.parameter_server.tasks import Grant, IntervalPolicy, Tasks, add, start_all
from coddl.core.snapshot import KernelSnapshot, Snapshot

begin = as_part(start_all)


@part
def iteration_s(
    snapshot: KernelSnapshot, tasks: Tasks, row: int, workers: int, servers: int
) -> float:
    """Seconds per iteration with these tasks."""
    curve, table = snapshot.jobs.ints[CURVE, row], tasks.speeds.step_s
    if table.shape[0] == 0:
        return float(snapshot.step_s[curve, min(workers, snapshot.step_s.shape[1] - 1)])
    w, p = min(workers, table.shape[1] - 1), min(servers, table.shape[2] - 1)
    return float(table[curve, w, p])


@part
def more_workers(snapshot: KernelSnapshot, tasks: Tasks, row: int, workers: int) -> int:
    """How many workers a job can take at the next step, 0 if none."""
    if tasks.speeds.step_s.shape[0] == 0:
        return max(0, next_share(snapshot, row, workers) - workers)
    return 1 if workers < snapshot.jobs.ints[GPUS_MAX, row] else 0


@part
def per_demand(gain_s: float, demand: float) -> float:
    """A gain over what it takes; one that takes nothing comes first."""
    if demand > 0.0:
        return gain_s / demand
    return np.inf if gain_s > 0.0 else gain_s


@part
def dominant(tasks: Tasks, gpus: int, cpus: int) -> float:
    """The demand for the resource of which the task takes the largest part."""
    if tasks.cpus == 0 or gpus * tasks.cpus >= cpus * tasks.gpus:
        return float(gpus)
    return float(cpus)


@part
def best_task(
    snapshot: KernelSnapshot, tasks: Tasks, grant: Grant, row: int
) -> tuple[float, int, int]:
    """What a job's best next task gains per dominant resource, and its workers and servers.

    Time left is Q/f(p, w); an unknown length counts as one iteration, so that the job gets
    what others leave.
    """
    left, w, p = (
        snapshot.jobs.floats[REMAINING_ITERATIONS, row],
        grant.workers[row],
        grant.servers[row],
    )
    left = left if left >= 0.0 else 1.0
    now_s = left * iteration_s(snapshot, tasks, row, w, p)
    best, workers, servers = -np.inf, 0, 0
    # A server comes first where both gain the same.
    if tasks.speeds.step_s.shape[0] > 0 and p < tasks.speeds.step_s.shape[2] - 1:
        gain_s = now_s - left * iteration_s(snapshot, tasks, row, w, p + 1)
        best, servers = per_demand(gain_s, dominant(tasks, ZERO, tasks.server_cpus)), 1
    added = more_workers(snapshot, tasks, row, w)
    if added > 0:
        gain_s = now_s - left * iteration_s(snapshot, tasks, row, w + added, p)
        gain = per_demand(gain_s, dominant(tasks, added, added * tasks.worker_cpus))
        if gain > best:
            best, workers, servers = gain, added, 0
    return best, workers, servers


@kernel
def hand_out_by_gain(
    snapshot: KernelSnapshot, tasks: Tasks, trust: FloatColumn, grant: Grant
) -> None:
    """A worker and a server for all, then task by task where it gains most.

    It ends when the best task does not fit, as a resource is used up, or gains nothing. A step of
    several GPUs that does not fit is left out instead: others may need fewer. `trust` is a factor
    on each row's gains.
    """
    begin(snapshot, tasks, grant)
    size, count = snapshot.rows.shape[0], ZERO
    heap, keys = np.empty(size, np.int64), np.empty((2, size))
    task = np.empty((2, size), np.int64)
    for row in range(size):
        if grant.workers[row] > 0:
            gain, task[0, row], task[1, row] = best_task(snapshot, tasks, grant, row)
            keys[0, row], keys[1, row] = gain * trust[row], -row
            heap[count] = row
            count += 1
    make_heap(heap, count, keys)
    while count > 0 and keys[0, heap[0]] > 0.0:
        row = heap[0]
        if add(tasks, grant, row, task[0, row], task[1, row]):
            gain, task[0, row], task[1, row] = best_task(snapshot, tasks, grant, row)
            keys[0, row] = gain * trust[row]
        elif task[0, row] <= 1:
            break
        else:
            count -= 1
            heap[0] = heap[count]
        sink(heap, ZERO, count, keys)


@dataclass(frozen=True)
class OptimusPs(IntervalPolicy):
    """Gives the next worker or parameter server to the job whose remaining time drops most for it
    (EuroSys '18), slot by slot; jobs that have just begun count a little less.

    Partial share · under overload, first come first served with gpus_min and one server each · cap:
    gpus_max, and where a task gains nothing.
    """

    young: Annotated[
        Part, Meaning("factor on the gains of a job that has run for less than young_s")
    ] = 0.95
    young_s: Annotated[float, Meaning("seconds for which a job's predictions count as poor")] = (
        600.0
    )

    def __call__(self, snapshot: Snapshot) -> Allocation:
        tasks = self.tasks(snapshot, even=False)
        trust = np.where(snapshot.jobs.executed_s < self.young_s, self.young, 1.0)

        def hand_out(grant: Grant) -> None:
            hand_out_by_gain(snapshot.for_kernels(), tasks, trust, grant)

        why = "jobs submitted earlier hold them until the next decision"
        return self.allocation(snapshot, tasks, hand_out, why)

"""Tetris (SIGCOMM '14), as compared with Optimus: what packs well, and what is soon done."""

from dataclasses import dataclass

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.compiling import kernel, part
from coddl.core.jobs import GPUS_MIN, GPUS_REQUESTED
from coddl.core.kernels import NO_ROW, seconds_left
from coddl.core.parameter_server.tasks import Grant, IntervalPolicy, Tasks, add, servers_beside
from coddl.core.snapshot import KernelSnapshot, Snapshot


@part
def cores(tasks: Tasks, workers: int) -> int:
    """Cores that `workers` workers and their servers take."""
    return workers * tasks.worker_cpus + servers_beside(tasks, workers) * tasks.server_cpus


@part
def alignment(tasks: Tasks, grant: Grant, workers: int) -> float:
    """Demand . free, each as a part of the whole: high for what fills just what is plentiful."""
    out = workers / tasks.gpus * grant.left[0] / tasks.gpus
    if tasks.cpus > 0:
        out += cores(tasks, workers) / tasks.cpus * grant.left[1] / tasks.cpus
    return float(out)


@kernel
def hand_out_by_fit(snapshot: KernelSnapshot, tasks: Tasks, grant: Grant) -> None:
    """The job with the best score gets its request, or as much of it as there is; then the next.

    score = demand . free + eps / time left, with eps = mean(demand . free) / mean(1 / time left):
    packing and shortest remaining time first, weighed so that neither outdoes the other. (Tetris,
    SIGCOMM '14, §3.)
    """
    ints, size = snapshot.jobs.ints, snapshot.rows.shape[0]
    hurry, waits = np.zeros(size), np.ones(size, np.bool_)
    for row in range(size):
        asked = min(ints[GPUS_REQUESTED, row], snapshot.step_s.shape[1] - 1)
        hurry[row] = 1.0 / max(seconds_left(snapshot, row, asked), 1e-9)
    while grant.left[0] > 0:
        fits, hurries = 0.0, 0.0
        for row in range(size):
            least = ints[GPUS_MIN, row]
            waits[row] &= least <= grant.left[0] and cores(tasks, least) <= grant.left[1]
            if waits[row]:
                fits += alignment(tasks, grant, ints[GPUS_REQUESTED, row])
                hurries += hurry[row]
        eps = fits / hurries if hurries > 0.0 else 0.0
        best, highest = NO_ROW, 0.0
        for row in range(size):
            if waits[row]:
                score = alignment(tasks, grant, ints[GPUS_REQUESTED, row]) + eps * hurry[row]
                if best < 0 or score > highest:
                    best, highest = row, score
        if best < 0:
            break
        waits[best] = False
        workers = ints[GPUS_REQUESTED, best]
        while not add(tasks, grant, best, workers, servers_beside(tasks, workers)):
            workers -= 1  # no further than to its minimum, which fits


@dataclass(frozen=True)
class Tetris(IntervalPolicy):
    """Serves jobs whose request fits best into what is free, and those that are soon done
    (SIGCOMM '14), with as many parameter servers as workers.

    Partial share · under overload, best score first · cap: the request, even past the model's
    largest useful share.
    """

    def __call__(self, snapshot: Snapshot) -> Allocation:
        tasks = self.tasks(snapshot, even=True)

        def hand_out(grant: Grant) -> None:
            hand_out_by_fit(snapshot.for_kernels(), tasks, grant)

        why = "jobs that fit better or finish sooner hold them"
        return self.allocation(snapshot, tasks, hand_out, why)

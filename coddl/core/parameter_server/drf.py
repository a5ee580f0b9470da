"""Dominant resource fairness (NSDI '11), as compared with Optimus: equal shares, whatever they
bring.
"""

from dataclasses import dataclass

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.compiling import ZERO, kernel, part
from coddl.core.heaps import make_heap, sink
from coddl.core.jobs import GPUS_MAX, GPUS_MIN
from coddl.core.parameter_server.tasks import Grant, IntervalPolicy, Tasks, add, servers_beside
from coddl.core.snapshot import KernelSnapshot, Snapshot


@part
def dominant_share(tasks: Tasks, grant: Grant, row: int) -> float:
    """The largest part of a resource that a job holds."""
    cpus = grant.workers[row] * tasks.worker_cpus + grant.servers[row] * tasks.server_cpus
    of_cpus = cpus / tasks.cpus if tasks.cpus > 0 else 0.0
    return float(max(of_cpus, grant.workers[row] / max(1, tasks.gpus)))


@kernel
def hand_out_evenly(snapshot: KernelSnapshot, tasks: Tasks, grant: Grant) -> None:
    """The job with the smallest dominant share gets the next worker and its server.

    A job that does not fit gets no more; ties go to the job submitted first.
    """
    ints, size = snapshot.jobs.ints, snapshot.rows.shape[0]
    heap, keys, count = np.arange(size), np.zeros((2, size)), size
    for row in range(size):
        keys[1, row] = -row
    make_heap(heap, count, keys)
    while count > 0:
        row = heap[0]
        added = 1 if grant.workers[row] > 0 else ints[GPUS_MIN, row]
        capped = grant.workers[row] + added > ints[GPUS_MAX, row]
        if not capped and add(tasks, grant, row, added, servers_beside(tasks, added)):
            keys[0, row] = -dominant_share(tasks, grant, row)
        else:
            count -= 1
            heap[0] = heap[count]
        sink(heap, ZERO, count, keys)


@dataclass(frozen=True)
class Drf(IntervalPolicy):
    """Gives the next worker, with a parameter server, to the job that has the smallest part of its
    dominant resource (NSDI '11); how much faster it makes the job does not matter.

    Partial share · under overload, first come first served with gpus_min each · cap: gpus_max, even
    past the model's largest useful share.
    """

    def __call__(self, snapshot: Snapshot) -> Allocation:
        tasks = self.tasks(snapshot, even=True)

        def hand_out(grant: Grant) -> None:
            hand_out_evenly(snapshot.for_kernels(), tasks, grant)

        why = "jobs submitted earlier hold an equal share of them"
        return self.allocation(snapshot, tasks, hand_out, why)

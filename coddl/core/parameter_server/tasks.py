"""Jobs of workers and parameter servers: what their tasks take, and slots in which shares stay.

A worker takes a GPU and some CPU cores, a server cores alone. Where no node counts its cores they
are free; where no speeds with servers are known, no job has servers.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Final, NamedTuple, Self

import numpy as np

from coddl.core.allocation import Allocation, because
from coddl.core.columns import FloatMatrix, IntColumn
from coddl.core.compiling import kernel, part
from coddl.core.jobs import GPUS_MIN
from coddl.core.named import Meaning
from coddl.core.parameter_server.costs import (
    SERVER_CPUS,
    WORKER_CPUS,
    ServedSpeeds,
    ServerCpus,
    ServerTimes,
    WorkerCpus,
)
from coddl.core.placement.placement import Placed
from coddl.core.policies.policy import with_reasons
from coddl.core.slots import Slots
from coddl.core.snapshot import KernelSnapshot, Snapshot, memory_columns

NO_SERVERS: Final = ServerTimes(np.zeros((0, 0, 0)), np.zeros((0, 0, 0)))
# What is remembered of a job.
COLUMN = memory_columns(
    "slot_end_s",  # when all shares are decided anew
    "servers",  # as decided last, for a job that holds GPUs
)


def held_servers(gpus: IntColumn, memory: FloatMatrix | None) -> IntColumn:
    """The servers of rows that hold these GPUs."""
    assert memory is not None
    return np.where(gpus > 0, memory[:, COLUMN.servers], 0.0).astype(np.int64)


@dataclass(frozen=True, slots=True)
class ServedAllocation(Allocation):
    """How many GPUs each row gets, and, in its memory, how many servers."""

    @property
    def servers(self) -> IntColumn:
        """Servers of each row."""
        return held_servers(self.gpus, self.memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPlaced(Placed):
    """Where jobs go with their servers."""

    servers: Slots

    def cut(self, allocation: Allocation) -> Allocation:
        """The same, with the servers that have found a place."""
        assert allocation.memory is not None
        memory = allocation.memory.copy()
        memory[:, COLUMN.servers] = self.servers.totals
        return replace(Placed.cut(self, allocation), memory=memory)

    def take(self, rows: IntColumn) -> Self:
        """The same for a table of these rows."""
        return replace(Placed.take(self, rows), servers=self.servers.take(rows))


class Tasks(NamedTuple):
    """What there is and what a task takes, for kernels."""

    gpus: int
    cpus: int  # 0: there are none left, or they are not counted
    worker_cpus: int
    server_cpus: int
    speeds: ServerTimes  # without curves: speeds with servers are unknown
    even: int  # 1: a job has as many servers as workers


class Grant(NamedTuple):
    """What is handed out, by row, and what is left: GPUs, then cores."""

    workers: IntColumn
    servers: IntColumn
    left: IntColumn


@dataclass(frozen=True)
class IntervalPolicy:
    """What tasks take and how long shares stay; the parameters that such policies have in common.

    At the end of a slot all shares are decided anew. Within one no job is resized: what jobs leave
    stays idle but for those that come or wait, which start on their minimum. A slot begins when the
    one before it has ended and there are jobs.
    """

    worker_cpus: WorkerCpus = WORKER_CPUS
    server_cpus: ServerCpus = SERVER_CPUS
    slot_s: Annotated[
        float, Meaning("seconds that shares stay, except for new jobs; 0: decide at every event")
    ] = 600.0

    memory = COLUMN
    answer = ServedAllocation

    def tasks(self, snapshot: Snapshot, *, even: bool) -> Tasks:
        """What tasks take, as far as it plays a part in this cluster."""
        cpus, speeds = int(snapshot.cluster.columns.node_cpus.sum()), snapshot.speeds
        times = speeds.servers if isinstance(speeds, ServedSpeeds) else NO_SERVERS
        of_worker = self.worker_cpus if cpus else 0
        of_server = self.server_cpus if cpus and times is not NO_SERVERS else 0
        if (taken := snapshot.taken) is not None:
            servers = held_servers(taken.gpus, taken.memory)
            cpus -= int(taken.gpus.sum()) * of_worker + int(servers.sum()) * of_server
        return Tasks(
            snapshot.cluster.gpus_total,
            max(0, cpus),
            of_worker,
            of_server,
            times,
            int(even),
        )

    def allocation(
        self, snapshot: Snapshot, tasks: Tasks, hand_out: Callable[[Grant], None], why: str
    ) -> Allocation:
        """Decide, if it is time to; `hand_out` fills in a grant of nothing."""
        jobs, memory, now_s = snapshot.jobs, snapshot.memory.copy(), snapshot.now_s
        end_s = float(memory[:, COLUMN.slot_end_s].max(initial=0.0))
        grant = held(snapshot, tasks)
        if now_s < end_s and grant is not None:
            start_all(snapshot.for_kernels(), tasks, grant)
        else:
            grant, end_s = nothing(snapshot, tasks), now_s + self.slot_s
            hand_out(grant)
        memory[:, COLUMN.slot_end_s], memory[:, COLUMN.servers] = end_s, grant.servers
        free, cores = int(grant.left[0]), int(grant.left[1])
        counted = tasks.worker_cpus + tasks.server_cpus > 0
        few = because(
            (grant.workers == 0) & (jobs.gpus_min <= free) & counted,
            "Resources",
            f"only {cores} CPU cores are free; {why}",
        )
        wake_at_s = end_s if end_s > now_s and jobs.size else np.inf
        return with_reasons(snapshot, ServedAllocation(grant.workers, few, wake_at_s, memory), why)


def nothing(snapshot: Snapshot, tasks: Tasks) -> Grant:
    """A grant of nothing yet."""
    counts = np.zeros((2, snapshot.jobs.size), np.int64)
    return Grant(counts[0], counts[1], np.array([tasks.gpus, tasks.cpus]))


def held(snapshot: Snapshot, tasks: Tasks) -> Grant | None:
    """What rows hold; None if that can't stay, as nodes or cores were lost."""
    jobs = snapshot.jobs
    workers, servers = jobs.gpus.copy(), held_servers(jobs.gpus, snapshot.memory)
    cpus = workers * tasks.worker_cpus + servers * tasks.server_cpus
    left = np.array([tasks.gpus - workers.sum(), tasks.cpus - cpus.sum()])
    most = np.maximum(jobs.gpus_max, jobs.gpus_requested)
    odd = (workers > 0) & ((workers < jobs.gpus_min) | (workers > most))
    return None if (left < 0).any() or odd.any() else Grant(workers, servers, left)


@part
def add(tasks: Tasks, grant: Grant, row: int, workers: int, servers: int) -> bool:
    """Give a job more tasks; False if there is no room for them."""
    cpus = workers * tasks.worker_cpus + servers * tasks.server_cpus
    if workers > grant.left[0] or cpus > grant.left[1]:
        return False
    grant.workers[row] += workers
    grant.servers[row] += servers
    grant.left[0] -= workers
    grant.left[1] -= cpus
    return True


@part
def servers_beside(tasks: Tasks, workers: int) -> int:
    """How many servers a job starts with for `workers` workers."""
    if tasks.speeds.step_s.shape[0] == 0:
        return 0
    return workers if tasks.even else 1


@kernel
def start_all(snapshot: KernelSnapshot, tasks: Tasks, grant: Grant) -> None:
    """Give rows without GPUs their minimum as they came; what does not fit is skipped."""
    for row in range(snapshot.rows.shape[0]):
        need = snapshot.jobs.ints[GPUS_MIN, row]
        if grant.workers[row] == 0:
            add(tasks, grant, row, need, servers_beside(tasks, need))

"""The snapshot a policy decides on: the cluster and its jobs at one instant."""

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Self, cast

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.cluster import Cluster
from coddl.core.columns import BoolColumn, FloatColumn, FloatMatrix, IntColumn
from coddl.core.history import EndedJobs, History, history_of, no_history, none_ended
from coddl.core.jobs import JobTable
from coddl.core.slots import Slots
from coddl.core.speed.table import ShareSteps, Speeds

# What is remembered of a job from one decision to the next: first the policy's columns, then when a
# job that has a share was first refused a place, plus 1, as 0 is for all others. Journals have them
# in this order.
POLICY_COLUMNS: Final = 6
REFUSED_S: Final = POLICY_COLUMNS


def memory_columns(*names: str) -> Any:  # Any: a tuple with these names
    """The columns that a policy has in the memory: 0, 1, … by name."""
    return cast(Any, namedtuple("MemoryColumns", names))(*range(len(names)))


class KernelSnapshot(NamedTuple):
    """A snapshot in the form kernels take: arrays and numbers only.

    `rows` are the jobs that compete, in order of submission. A simulator keeps the columns of a
    whole trace and names the rows that are in the system, so that nothing is copied between events.
    """

    jobs: JobTable
    rows: IntColumn
    step_s: FloatMatrix
    steps: ShareSteps
    gpus: int
    now_s: float
    seed: int
    history: History


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster at one instant. Rows are sorted by id: equal clusters, equal snapshots."""

    now_s: float
    cluster: Cluster
    jobs: JobTable
    speeds: Speeds
    memory: FloatMatrix  # [jobs, columns], what was carried over; zeros for a new job
    seed: int = 1  # of the policy's coin, 1..2**31-2; a driver draws a new one for each decision
    slots: Slots | None = None  # where each row's GPUs are; None: they are not placed
    reserved: IntColumn | None = None  # by island: GPUs that are kept for a job
    # What jobs hold that the policy is not asked about. Their GPUs are gone from the cluster, not
    # their cores: how many a task takes, the policy knows.
    taken: Allocation | None = None
    past_gpu_s: FloatColumn = field(default_factory=lambda: np.zeros(0))  # of jobs that have ended
    quota_gpus: IntColumn = field(default_factory=lambda: np.zeros(0, np.int64))  # by queue
    known_past: Callable[[], EndedJobs] = none_ended  # called by policies that learn from it

    @property
    def waited_s(self) -> FloatColumn:
        """How long each job has been in the system without GPUs."""
        return self.now_s - self.jobs.submitted_s - self.jobs.executed_s

    @property
    def unplaced_s(self) -> FloatColumn:
        """How long each job has had a share and no place for it; 0 until it is refused one."""
        refused_s = self.memory[:, REFUSED_S]
        return np.where(refused_s > 0.0, self.now_s + 1.0 - refused_s, 0.0)

    def remembering(self, memory: FloatMatrix | None, refused: BoolColumn) -> FloatMatrix:
        """What to carry over: what the policy remembers, and since when rows have no place."""
        out = (self.memory if memory is None else memory).copy()
        before_s = self.memory[:, REFUSED_S]
        since_s = np.where(before_s > 0.0, before_s, self.now_s + 1.0)
        out[:, REFUSED_S] = np.where(refused, since_s, 0.0)
        return out

    def seconds_left_at(self, gpus: IntColumn) -> FloatColumn:
        """Time each job would still take at these shares; NaN where its length is unknown."""
        widest = self.speeds.step_s.shape[1] - 1
        step_s = self.speeds.step_s[self.jobs.curve, np.minimum(gpus, widest)]
        left_s: FloatColumn = self.jobs.remaining_iterations * step_s
        return left_s

    def take(self, rows: IntColumn) -> Self:
        """The same snapshot with only these rows."""
        slots = None if self.slots is None else self.slots.take(rows)
        return replace(self, jobs=self.jobs.take(rows), memory=self.memory[rows], slots=slots)

    def for_kernels(self, *, learns: bool = False) -> KernelSnapshot:
        """The same, for a kernel; with what has ended, for one that learns from it."""
        assert self.jobs.gpus_min.max(initial=0) < self.speeds.step_s.shape[1], (
            "a share off the table"
        )
        return KernelSnapshot(
            self.jobs,
            np.arange(self.jobs.size),
            self.speeds.step_s,
            self.speeds.steps,
            self.cluster.gpus_total,
            self.now_s,
            self.seed,
            history_of(self.jobs, self.known_past()) if learns else no_history(),
        )


def empty_memory(jobs: int) -> FloatMatrix:
    """The memory of jobs that nothing was decided about yet."""
    return np.zeros((jobs, POLICY_COLUMNS + 1))

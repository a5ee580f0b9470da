"""The picture a policy decides on: the cluster and its jobs at one instant."""

from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Self

import numpy as np

from coddl.core.cluster import Cluster
from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn
from coddl.core.jobs import JobTable
from coddl.core.seats import Seats
from coddl.core.speed.table import Speeds, Steps

MEMORY_COLUMNS: Final = 6  # what a policy may remember of a job from one decision to the next


class Picture(NamedTuple):
    """A snapshot in the form kernels take: arrays and numbers only.

    `rows` are the jobs that compete, in order of submission. A simulator keeps the columns of a
    whole trace and names the rows that are in the system, so that nothing is copied between events.
    """

    jobs: JobTable
    rows: IntColumn
    step_s: FloatMatrix
    steps: Steps
    gpus: int
    now_s: float
    seed: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster at one instant. Rows are sorted by id: equal clusters, equal snapshots."""

    now_s: float
    cluster: Cluster
    jobs: JobTable
    speeds: Speeds
    memory: FloatMatrix  # [jobs, MEMORY_COLUMNS], what the policy carried over; zeros for a new job
    seed: int = 1  # of the policy's coin, 1..2**31-2; a driver draws a new one for each decision
    seats: Seats | None = None  # where each row's GPUs are; None: nobody places them
    reserved: IntColumn | None = None  # by island: GPUs that are kept for somebody
    past_gpu_s: FloatColumn = field(default_factory=lambda: np.zeros(0))  # of jobs that have ended
    quota_gpus: IntColumn = field(default_factory=lambda: np.zeros(0, np.int64))  # by queue

    @property
    def waited_s(self) -> FloatColumn:
        """How long each job has been in the system without GPUs."""
        return self.now_s - self.jobs.submitted_s - self.jobs.executed_s

    def seconds_left_at(self, gpus: IntColumn) -> FloatColumn:
        """Time each job would still take at these shares; NaN where its length is unknown."""
        widest = self.speeds.step_s.shape[1] - 1
        step_s = self.speeds.step_s[self.jobs.curve, np.minimum(gpus, widest)]
        left_s: FloatColumn = self.jobs.remaining_iterations * step_s
        return left_s

    def take(self, rows: IntColumn) -> Self:
        """The same picture with only these rows."""
        seats = None if self.seats is None else self.seats.take(rows)
        return replace(self, jobs=self.jobs.take(rows), memory=self.memory[rows], seats=seats)

    def picture(self) -> Picture:
        """The same, for a kernel."""
        assert self.jobs.gpus_min.max(initial=0) < self.speeds.step_s.shape[1], (
            "a share off the table"
        )
        return Picture(
            self.jobs,
            np.arange(self.jobs.size),
            self.speeds.step_s,
            self.speeds.steps,
            self.cluster.gpus_total,
            self.now_s,
            self.seed,
        )


def no_memory(jobs: int) -> FloatMatrix:
    """The memory of a policy that has not decided anything yet."""
    return np.zeros((jobs, MEMORY_COLUMNS))

"""What a recorded pool has in addition to its jobs: GPUs that come and go, users' changes of mind,
and jobs that take time to start and stay small until they were measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from coddl.core.columns import BoolColumn, FloatColumn, IntColumn
from coddl.core.jobs import (
    FIRST_START_S,
    GPUS,
    GPUS_MAX,
    GPUS_MIN,
    GPUS_REQUESTED,
    ID,
    PREEMPTIBLE,
    PRIORITY,
    REMAINING_ITERATIONS,
    JobTable,
)
from coddl.core.pool.timeline import Capacity
from coddl.sim.world import ACTIVE, START_S, World


class UserAction(NamedTuple):
    """What a user does to a job, and when."""

    at_s: float
    row: int
    kind: Literal["suspend", "resume", "bounds", "priority"]
    values: tuple[int, ...] = ()  # the minimum, the maximum and the request; or the priority


@dataclass(frozen=True, eq=False)
class PoolConditions:
    """What happens in a run whatever is decided."""

    start_s: FloatColumn  # by job: from its GPUs to its first step
    small_s: FloatColumn  # by job: how long after its first start it has its minimum at most
    tells_length: BoolColumn  # by job: whether its length is known while it trains
    capacity: Sequence[Capacity] = ()  # in order; the first is there from the beginning on
    actions: Sequence[UserAction] = ()  # in order


class PoolEvents:
    """What is still to happen in a run."""

    def __init__(self, conditions: PoolConditions, world: World) -> None:
        self._conditions = conditions
        self._world = world
        self._capacity = list(conditions.capacity)[::-1]  # the next one last
        self._gpus = self._capacity[-1].gpus
        self._actions = list(conditions.actions)[::-1]
        self._suspended = np.zeros(world.jobs.size, np.bool_)
        self._closed = conditions.small_s > 0.0  # may not grow yet
        world.floats[START_S] = conditions.start_s

    @property
    def next_s(self) -> float:
        """When the next of it happens; inf: nothing will."""
        times_s = [each[-1].at_s for each in (self._capacity, self._actions) if each]
        rows = self._active
        opens_s = self._opens_s(rows)[self._closed[rows]].min(initial=np.inf)
        return min([*times_s, float(opens_s)])

    def happen(self, now_s: float) -> int:
        """Let everything happen that is due; return how many GPUs there are."""
        while self._capacity and self._capacity[-1].at_s <= now_s:
            self._gpus = self._capacity.pop().gpus
        while self._actions and self._actions[-1].at_s <= now_s:
            self._act(self._actions.pop())
        rows = self._active
        self._closed[rows] &= self._opens_s(rows) > now_s
        return self._gpus

    def competes(self, rows: IntColumn) -> BoolColumn:
        """Return which of these jobs may have GPUs."""
        competes: BoolColumn = ~self._suspended[rows]
        return competes

    def as_bounded(self, table: JobTable, now_s: float) -> JobTable:
        """Return these jobs as a scheduler may treat them now.

        None asks for more GPUs than there are. Until it was measured, a job has its minimum at
        most. It reports its length when it first
        trains; until then it is not stopped, as that would cost all it has done.
        """
        floats, ints = table.floats.copy(), table.ints.copy()
        rows = ints[ID]
        for column in (GPUS_MAX, GPUS_REQUESTED):
            ints[column] = np.where(self._closed[rows], ints[GPUS_MIN], ints[column])
        requested = np.minimum(ints[GPUS_REQUESTED], self._gpus)
        ints[GPUS_REQUESTED] = np.maximum(requested, ints[GPUS_MIN])
        begins = now_s < floats[FIRST_START_S] + self._conditions.start_s[rows]
        ints[PREEMPTIBLE] &= ~((ints[GPUS] > 0) & begins)
        floats[REMAINING_ITERATIONS, begins | ~self._conditions.tells_length[rows]] = np.nan
        return JobTable(floats, ints).read_only()

    @property
    def _active(self) -> IntColumn:
        return self._world.active[: self._world.counts[ACTIVE]]

    def _opens_s(self, rows: IntColumn) -> FloatColumn:
        """When these jobs may grow; inf: they have not started."""
        opens_s: FloatColumn = (
            self._world.jobs.floats[FIRST_START_S, rows] + self._conditions.small_s[rows]
        )
        return opens_s

    def _act(self, action: UserAction) -> None:
        ints, row = self._world.jobs.ints, action.row
        match action.kind:
            case "suspend" | "resume":
                self._suspended[row] = action.kind == "suspend"
            case "bounds":
                ints[GPUS_MIN, row], ints[GPUS_MAX, row], ints[GPUS_REQUESTED, row] = action.values
            case "priority":
                (ints[PRIORITY, row],) = action.values

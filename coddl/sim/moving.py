"""Where jobs are put: what that means for their speed, and what it costs to get there."""

from typing import NamedTuple

import numpy as np

from coddl.core.cluster import ClusterColumns
from coddl.core.columns import BoolColumn, BoolMatrix, FloatColumn, IntColumn
from coddl.core.compiling import kernel
from coddl.core.jobs import GPUS
from coddl.core.slots import Slots
from coddl.sim.world import (
    ACTIVE,
    HELD,
    MIGRATIONS,
    MOVE,
    MOVING_S,
    NEW_PART,
    NEW_PAUSE_S,
    NEW_SLOWDOWN,
    NOW,
    PART,
    SLOWDOWN,
    World,
    hold,
    tell,
)


class PlacementEffects(NamedTuple):
    """What follows from where jobs were put, by position in `active`."""

    slowdown: FloatColumn
    part: FloatColumn  # of its GPUs
    moved: BoolColumn  # to other GPUs, as many as before
    pause_s: FloatColumn  # how long a change takes


@kernel
def apply_places(world: World, places: PlacementEffects, shares: IntColumn) -> None:
    """Let jobs be where they were put, before these shares are applied.

    A job that keeps its share feels it at once, and one that moves stands still. One that
    changes its share feels it with that.
    """
    now_s, before = world.clock[NOW], world.floats
    for k in range(world.counts[ACTIVE]):
        row, held = world.active[k], world.ints[HELD, world.active[k]]
        world.floats[NEW_SLOWDOWN, row] = places.slowdown[k]
        world.floats[NEW_PART, row] = places.part[k]
        world.floats[NEW_PAUSE_S, row] = places.pause_s[k]
        if held == 0 or held != world.jobs.ints[GPUS, row] or held != shares[k]:
            continue
        moving_s = max(now_s, world.floats[MOVING_S, row])
        if places.moved[k]:
            world.counts[MIGRATIONS] += 1
            tell(world, MOVE, row, held)
            hold(world, row, held, moving_s + places.pause_s[k])
        elif places.slowdown[k] != before[SLOWDOWN, row] or places.part[k] != before[PART, row]:
            hold(world, row, held, moving_s)


class LastNodes:
    """The nodes that each job was on when it last ran."""

    def __init__(self, jobs: int, nodes: int) -> None:
        self._on: BoolMatrix = np.zeros((jobs, nodes), np.bool_)

    def left(self, columns: ClusterColumns, rows: IntColumn, slots: Slots) -> BoolColumn:
        """Which rows now sit on a node that they were not on; where they sit is the last from now.

        One that has never run leaves nothing.
        """
        was_on, now_on = self._on[rows], np.zeros((rows.size, self._on.shape[1]), np.bool_)
        row = np.repeat(np.arange(rows.size), np.diff(slots.first))
        now_on[row, columns.island_node[slots.island]] = True
        self._on[rows] = np.where(now_on.any(axis=1, keepdims=True), now_on, was_on)
        left: BoolColumn = np.any(now_on & ~was_on, axis=1) & np.any(was_on, axis=1)
        return left


def move_pauses(move_s: tuple[float, float], gpus: IntColumn) -> FloatColumn:
    """Pauses of jobs with these numbers of GPUs for a move, from the pauses with 1 and with 8."""
    with_1_s, with_8_s = move_s
    return with_1_s + (with_8_s - with_1_s) / 7.0 * (gpus.astype(np.float64) - 1.0)

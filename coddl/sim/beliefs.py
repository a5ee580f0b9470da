"""What a scheduler takes for the jobs' lengths and speeds, where that is not the truth."""

from dataclasses import dataclass

import numpy as np

from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn
from coddl.core.jobs import CURVE, REMAINING_ITERATIONS
from coddl.core.speed.table import Speeds
from coddl.sim.learning import SpeedLearning
from coddl.sim.world import (
    BASE_ITERATIONS,
    ENDS_AT,
    NEW_SLOWDOWN,
    SAVED_ITERATIONS,
    SLOWDOWN,
    STOPS_AT,
    UNIT,
    World,
)


@dataclass(frozen=True, eq=False)
class Beliefs:
    """What a scheduler takes for the jobs' lengths and speeds, right or wrong."""

    speeds: Speeds
    curve: IntColumn | None = None  # by job: its row in `speeds`; None: as in the trace
    # A factor on what is left to do, [job, stage]: stages are equal parts of a job's training, as
    # many as there are columns. None: the truth.
    length: FloatMatrix | None = None
    learning: SpeedLearning | None = None  # None: `speeds` does not change in a run

    @property
    def is_fixed(self) -> bool:
        """Return whether what a job is taken for stays the same throughout a run."""
        return self.learning is None and (self.length is None or self.length.shape[1] == 1)

    def left(self, rows: IntColumn, left: FloatColumn, total: FloatColumn) -> FloatColumn:
        """What jobs are taken to have left, that in truth have `left` of `total` iterations."""
        if self.length is None:
            return left
        stages = self.length.shape[1]
        stage = np.minimum(stages * (total - left) / total, stages - 1).astype(np.int64)
        believed: FloatColumn = left * self.length[rows, stage]
        return believed


def as_believed(world: World, beliefs: Beliefs) -> World:
    """A world before its first event, as the compiled loop takes it to show a policy these beliefs.

    Policies there see the columns of the world itself. So iterations are counted in believed ones:
    a job that is taken to be twice as long has twice as many, which take half as long each.
    """
    shown = beliefs.speeds
    if beliefs.length is not None:
        factor = beliefs.length[:, 0]
        world.jobs.floats[REMAINING_ITERATIONS] *= factor
        world.floats[[BASE_ITERATIONS, SAVED_ITERATIONS, STOPS_AT, ENDS_AT]] *= factor
        world.fails_at[:] *= factor
        world.floats[[SLOWDOWN, NEW_SLOWDOWN, UNIT]] /= factor
    if beliefs.curve is None:
        return world._replace(believed_step_s=shown.step_s, steps=shown.steps)
    model = np.zeros(len(shown.step_s), np.int64)  # by believed curve
    model[beliefs.curve] = world.jobs.curve
    assert (model[beliefs.curve] == world.jobs.curve).all(), "two models with one believed curve"
    world.jobs.ints[CURVE] = beliefs.curve
    return world._replace(
        step_s=world.step_s[model], believed_step_s=shown.step_s, steps=shown.steps
    )

"""Progress of jobs during a run: when an iteration is reached, and what is done by a given time.

Progress is linear between two events, so both are exact.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np

from coddl.core.columns import FloatColumn, FloatMatrix
from coddl.core.jobs import REMAINING_ITERATIONS
from coddl.sim.simulate import Case, step_loop_of, world_before
from coddl.sim.world import BASE_ITERATIONS, LOGGED, MOVING_S, NOW, STEP_S, World


class ProgressLines(NamedTuple):
    """The progress of all jobs, linear from now until the next event."""

    from_s: float
    left: FloatColumn  # iterations of a job that trains, at `moving_s`; of others, now
    moving_s: FloatColumn
    step_s: FloatColumn  # inf: it does not train

    @classmethod
    def of(cls, world: World) -> Self:
        """The lines from now on."""
        floats, remaining = world.floats, world.jobs.floats[REMAINING_ITERATIONS]
        left = np.where(np.isfinite(floats[STEP_S]), floats[BASE_ITERATIONS], remaining)
        return cls(float(world.clock[NOW]), left, floats[MOVING_S].copy(), floats[STEP_S].copy())

    def left_at(self, time_s: float) -> FloatColumn:
        """Iterations left to do at a time before the next event."""
        trained_s = np.maximum(0.0, time_s - self.moving_s)
        left: FloatColumn = np.maximum(0.0, self.left - trained_s / self.step_s)
        return left

    def reach_s(self, left: FloatColumn) -> FloatColumn:
        """When this many iterations are left, if progress continues; inf without training.

        The formula of the simulator's own predictions: a finish is reached when it happens.
        """
        trains = np.isfinite(self.step_s)
        ahead = np.where(trains, self.left - left, np.inf)
        out: FloatColumn = self.moving_s + ahead * np.where(trains, self.step_s, 1.0)
        return out


def progress_of(case: Case) -> Iterator[ProgressLines]:
    """Make a run step by step; after each event, the lines that hold until the next."""
    world = world_before(case)
    steps = step_loop_of(case, world)
    while steps.run(1):
        world.counts[LOGGED] = 0
        yield ProgressLines.of(world)


def time_to_iterations(case: Case, iterations: float) -> FloatColumn:
    """Seconds from each job's submission until it has done this many iterations, or all of them.

    NaN where the run ends before. What a search waits for: Gandiva, OSDI '18, calls it early
    feedback.
    """
    trace = case.trace
    mark = np.maximum(0.0, trace.iterations - iterations)
    reached_s, before = np.full(trace.size, np.nan), None
    for lines in progress_of(case):
        if before is not None:
            reach_s = before.reach_s(mark)
            new = np.isnan(reached_s) & (reach_s <= lines.from_s)
            reached_s[new] = reach_s[new]
        before = lines
    return reached_s - trace.submitted_s


def iterations_at(case: Case, times_s: Sequence[float]) -> FloatMatrix:
    """Iterations that each job has done by each of these ascending times, one row per time."""
    iterations = case.trace.iterations
    done = np.zeros((len(times_s), len(iterations)))
    before, at = None, 0
    for lines in progress_of(case):
        while at < len(times_s) and lines.from_s > times_s[at]:
            if before is not None:
                done[at] = iterations - before.left_at(times_s[at])
            at += 1
        if at == len(times_s):
            return done
        before = lines
    done[at:] = iterations  # the run has ended by then
    return done

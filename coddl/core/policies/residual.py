"""How long a job of unknown length will still take, learned from jobs that have ended.

The hazard of a level of training time is the part of the jobs that reach it which end in it; jobs
that have not ended count as far as they have come (Kaplan-Meier). A job's own hazards are those of
its neighbours, the jobs of its cohort that were submitted just before and after it, and where these
are few those of all jobs. The guess is the inverse of the Gittins index: training time that jobs at
this point take per job that ends, if they are given up at the best moment.
"""

from typing import Final, NamedTuple

import numpy as np

from coddl.core.columns import FloatColumn
from coddl.core.compiling import part
from coddl.core.history import LEVEL_END_S, LEVELS, level_of
from coddl.core.jobs import (
    ATTAINED_GPU_S,
    CURVE,
    DONE_ITERATIONS,
    GPUS,
    GPUS_MIN,
    GPUS_REQUESTED,
)
from coddl.core.snapshot import KernelSnapshot

NEIGHBOURS: Final = 8  # that count, on either side
SEARCHED: Final = 4 * NEIGHBOURS  # jobs on either side that are looked at: some have never run
NEIGHBOUR_PRIOR: Final = 2.0  # so many jobs weigh all jobs together, beside neighbours
PRIOR, PRIOR_HAZARD = 5.0, 0.0866  # so many jobs, beside all; ended with a density of 1/(4 time)
MOST: Final = 0.999  # hazard: no level is the end of all jobs
STICKY: Final = 4.0  # a job that runs is preempted only for one so many times shorter
WAKE_S: Final = 60.0  # the least time between two decisions that a job's progress asks for
WIDTH_S: Final = np.diff(LEVEL_END_S, prepend=0.0)  # of the last: as if it ended


class Hazards(NamedTuple):
    """What is known at one decision, and room to work in."""

    common: FloatColumn  # of all jobs, by level
    guess_s: FloatColumn  # by level, for a job without neighbours; negative: not computed yet
    ended: FloatColumn  # neighbours, by level
    reached: FloatColumn


@part
def trained_s(snapshot: KernelSnapshot, row: int) -> float:
    """How long a job has trained, in seconds at the speed of its request."""
    jobs, curve = snapshot.jobs, snapshot.jobs.ints[CURVE, row]
    step_s, widest = snapshot.step_s[curve], snapshot.step_s.shape[1] - 1
    done = jobs.floats[DONE_ITERATIONS, row]
    if not done >= 0.0:  # unknown: as if it had been on its minimum throughout
        least = jobs.ints[GPUS_MIN, row]
        done = jobs.floats[ATTAINED_GPU_S, row] / least / step_s[least]
    return float(done * step_s[min(jobs.ints[GPUS_REQUESTED, row], widest)])


@part
def common_hazards(snapshot: KernelSnapshot) -> Hazards:
    """The hazards of all jobs."""
    columns = np.zeros((4, LEVELS))
    found = Hazards(columns[0], columns[1], columns[2], columns[3])
    for k in range(snapshot.rows.shape[0]):
        so_far_s = trained_s(snapshot, snapshot.rows[k])
        if so_far_s > 0.0:
            found.reached[level_of(so_far_s)] += 1.0
    reached = 0.0
    for level in range(LEVELS - 1, -1, -1):
        ended = snapshot.history.ended[level]
        reached += ended + found.reached[level]
        found.common[level] = min(MOST, (ended + PRIOR * PRIOR_HAZARD) / (reached + PRIOR))
        found.guess_s[level] = -1.0
    return found


@part
def see_neighbours(snapshot: KernelSnapshot, hazards: Hazards, row: int, level: int) -> bool:
    """Count the neighbours that got as far as this level, and where they ended or are."""
    history, found = snapshot.history, False
    for at in range(level, LEVELS):
        hazards.ended[at] = hazards.reached[at] = 0.0
    for side in (history.earlier, history.later):
        other, count = row, 0
        for _ in range(SEARCHED):
            other = side[other] if other < side.shape[0] else -1
            if other < 0 or count == NEIGHBOURS:
                break
            at = history.level[other]
            ended = at >= 0
            if not ended:
                so_far_s = trained_s(snapshot, other)
                if so_far_s <= 0.0:
                    continue  # it says nothing
                at = level_of(so_far_s)
            count += 1
            if at >= level:
                hazards.reached[at] += 1.0
                hazards.ended[at] += 1.0 if ended else 0.0
                found = True
    for at in range(LEVELS - 2, level - 1, -1):
        hazards.reached[at] += hazards.reached[at + 1]
    return found


@part
def inverse_index_s(hazards: Hazards, level: int) -> float:
    """1 / the Gittins index of a job at this level."""
    ends, takes_s, stays, index = 0.0, 0.0, 1.0, 0.0
    for at in range(level, LEVELS):
        ended = hazards.ended[at] + NEIGHBOUR_PRIOR * hazards.common[at]
        hazard = min(MOST, ended / (hazards.reached[at] + NEIGHBOUR_PRIOR))
        takes_s += stays * (1.0 - 0.5 * hazard) * WIDTH_S[at]
        ends += stays * hazard
        stays *= 1.0 - hazard
        index = max(index, ends / takes_s)
    return float(1.0 / index)


@part
def residual_s(snapshot: KernelSnapshot, hazards: Hazards, row: int) -> float:
    """The guess, in seconds at the minimum."""
    ints, level = snapshot.jobs.ints, level_of(trained_s(snapshot, row))
    if see_neighbours(snapshot, hazards, row, level):
        guess_s = inverse_index_s(hazards, level)
    else:
        if hazards.guess_s[level] < 0.0:
            hazards.guess_s[level] = inverse_index_s(hazards, level)
        guess_s = hazards.guess_s[level]
    step_s, widest = snapshot.step_s[ints[CURVE, row]], snapshot.step_s.shape[1] - 1
    guess_s *= step_s[ints[GPUS_MIN, row]] / step_s[min(ints[GPUS_REQUESTED, row], widest)]
    return float(guess_s / STICKY if ints[GPUS, row] > 0 else guess_s)


@part
def next_level_s(snapshot: KernelSnapshot, row: int, share: int) -> float:
    """When a job with this share will have trained to the end of its level; in a minute at least,
    so that decisions are not too frequent.
    """
    ints, so_far_s = snapshot.jobs.ints, trained_s(snapshot, row)
    level = level_of(so_far_s)
    if level == LEVELS - 1:
        return np.inf
    step_s, widest = snapshot.step_s[ints[CURVE, row]], snapshot.step_s.shape[1] - 1
    to_go_s = LEVEL_END_S[level] - so_far_s
    slower = step_s[min(share, widest)] / step_s[min(ints[GPUS_REQUESTED, row], widest)]
    return float(snapshot.now_s + max(WAKE_S, to_go_s * slower))

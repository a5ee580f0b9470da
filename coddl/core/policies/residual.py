"""How long a job of unknown length will still take, learned from jobs that have ended.

The hazard of a level of training time is the part of the jobs that reach it which end in it; jobs
that have not ended count as far as they have come (Kaplan-Meier). A job's own hazards are those of
its neighbours, the jobs of its cohort that were submitted just before and after it, and where these
are few those of all jobs. The guess is the inverse of the Gittins index: training time that jobs at
this point take per job that ends, if they are given up at the best moment.
"""

from typing import Final, NamedTuple

import numpy as np

from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn
from coddl.core.compiling import ZERO, part
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
NEIGHBOUR_PRIOR: Final = 1.0  # weight of all jobs together, in neighbours
PRIOR, PRIOR_HAZARD = 5.0, 0.0866  # weight of the assumed hazard, in jobs; a density of 1/(4 time)
MOST: Final = 0.999  # hazard: no level is the end of all jobs
STICKY: Final = 8.0  # a running job is preempted only for one this many times shorter
WAKE_S: Final = 60.0  # the least time between two decisions that a job's progress asks for
WIDTH_S: Final = np.diff(LEVEL_END_S, prepend=0.0)  # of the last: as if it ended
# By level: the hazard of all jobs; neighbours that ended in it, and that reached it; the guess for
# a job without neighbours, once it was needed.
COMMON, ENDED, REACHED, GUESS_S = range(4)


class Levels(NamedTuple):
    """How far jobs have come, by position in the history."""

    ended: IntColumn  # negative: it has not ended
    active: IntColumn  # plus 1; 0: it has ended, or has not trained yet


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
def see_all(snapshot: KernelSnapshot, counts: FloatMatrix) -> Levels:
    """Find how far all jobs have come, and the hazards of all."""
    size = max(snapshot.jobs.ints.shape[1], snapshot.history.level.shape[0])
    levels, reached = Levels(snapshot.history.level, np.zeros(size, np.int64)), np.zeros(LEVELS)
    for k in range(snapshot.rows.shape[0]):
        so_far_s = trained_s(snapshot, snapshot.rows[k])
        if so_far_s > 0.0:
            level = level_of(so_far_s)
            levels.active[snapshot.rows[k]] = level + 1
            reached[level] += 1.0
    count = 0.0
    for level in range(LEVELS - 1, -1, -1):
        ended = snapshot.history.ended[level]
        count += ended + reached[level]
        counts[COMMON, level] = min(MOST, (ended + PRIOR * PRIOR_HAZARD) / (count + PRIOR))
    return levels


@part
def see_side(counts: FloatMatrix, levels: Levels, side: IntColumn, row: int, level: int) -> bool:
    """Count a job's neighbours on one side that got as far as this level; False if none did."""
    other, count, found = side[row], ZERO, False
    for _ in range(SEARCHED):
        if other < 0 or count == NEIGHBOURS:
            break
        ended = levels.ended[other]
        at = ended if ended >= 0 else levels.active[other] - 1
        other = side[other]
        if at >= 0:  # else it has not trained, which says nothing
            count += 1
        if at >= level:
            counts[ENDED, at] += 1.0 if ended >= 0 else 0.0
            counts[REACHED, at] += 1.0
            found = True
    return found


@part
def inverse_index_s(counts: FloatMatrix, level: int) -> float:
    """1 / the Gittins index of a job at this level."""
    for at in range(LEVELS - 2, level - 1, -1):
        counts[REACHED, at] += counts[REACHED, at + 1]
    ends, takes_s, stays, index = 0.0, 0.0, 1.0, 0.0
    for at in range(level, LEVELS):
        ended = counts[ENDED, at] + NEIGHBOUR_PRIOR * counts[COMMON, at]
        hazard = min(MOST, ended / (counts[REACHED, at] + NEIGHBOUR_PRIOR))
        takes_s += stays * (1.0 - 0.5 * hazard) * WIDTH_S[at]
        ends += stays * hazard
        stays *= 1.0 - hazard
        if ends > index * takes_s:
            index = ends / takes_s
        counts[ENDED, at] = 0.0
        counts[REACHED, at] = 0.0
    return float(1.0 / index)


@part
def guess_lengths(snapshot: KernelSnapshot, left_s: FloatColumn) -> None:
    """Fill in what rows with an endless time left will still take, in seconds at the minimum."""
    ints, history, counts = snapshot.jobs.ints, snapshot.history, np.zeros((4, LEVELS))
    levels, widest = see_all(snapshot, counts), snapshot.step_s.shape[1] - 1
    for k in range(snapshot.rows.shape[0]):
        if left_s[k] < np.inf:
            continue
        row, found = snapshot.rows[k], False
        level = max(ZERO, levels.active[row] - 1)
        for side in (history.earlier, history.later):
            if side.shape[0] > 0 and see_side(counts, levels, side, row, level):
                found = True
        guess_s = counts[GUESS_S, level]
        if found or guess_s == 0.0:
            guess_s = inverse_index_s(counts, level)
        if not found:
            counts[GUESS_S, level] = guess_s
        step_s, request = snapshot.step_s[ints[CURVE, row]], ints[GPUS_REQUESTED, row]
        guess_s *= step_s[ints[GPUS_MIN, row]] / step_s[min(request, widest)]
        left_s[k] = guess_s / STICKY if ints[GPUS, row] > 0 else guess_s


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

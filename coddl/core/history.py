"""How long jobs trained that have ended, for policies that guess the lengths of others.

Jobs of one cohort (same user, same queue, same request) that are submitted one after the other tend
to be alike: a search, or one script tried again. So what has ended is kept in order of submission,
cohort by cohort.
"""

from math import frexp
from typing import Final, NamedTuple

import numpy as np

from coddl.core.columns import FloatColumn, IntColumn
from coddl.core.compiling import part
from coddl.core.jobs import JobTable

# Training time in levels: the first up to FIRST_S, each further one sqrt(2) times as long.
FIRST_S: Final = 10.0
LEVELS: Final = 45
LEVEL_END_S: Final = FIRST_S * 2.0 ** (np.arange(LEVELS) / 2.0)  # the last level has no end
NOT_ENDED: Final = -1
HALF_OCTAVE: Final = 0.5**0.5


def level_at(trained_s: float) -> int:
    """The level of a training time."""
    if trained_s < FIRST_S:
        return 0
    mantissa, exponent = frexp(trained_s / FIRST_S)  # 0.5 <= mantissa < 1
    level = min(LEVELS - 1, 2 * exponent - (1 if mantissa < HALF_OCTAVE else 0))
    if trained_s < LEVEL_END_S[level - 1]:  # rounding, at the limits
        return level - 1
    return min(LEVELS - 1, level + 1) if trained_s >= LEVEL_END_S[level] else level


level_of = part(level_at)


class EndedJobs(NamedTuple):
    """Jobs that have ended, in any order."""

    id: IntColumn
    cohort: IntColumn  # as in the JobTable of the same snapshot
    level: IntColumn  # of the time for which they trained, at the speed of their request


def none_ended() -> EndedJobs:
    """No job has ended yet."""
    return EndedJobs(*np.zeros((3, 0), np.int64))


class History(NamedTuple):
    """The same in the form kernels take.

    Positions are rows of the JobTable, and behind these jobs that have ended and have no row.
    """

    earlier: IntColumn  # position of the job of its cohort that was submitted just before, or -1
    later: IntColumn  # and just after
    level: IntColumn  # of a job that has ended; NOT_ENDED of all others
    ended: FloatColumn  # how many jobs have ended, by level


def no_history() -> History:
    """For policies that learn nothing."""
    none = np.zeros(0, np.int64)
    return History(none, none, none, np.zeros(LEVELS))


def history_of(jobs: JobTable, past: EndedJobs) -> History:
    """Line up the jobs of each cohort, those of the table and those that have ended."""
    ids, cohorts = np.append(jobs.id, past.id), np.append(jobs.cohort, past.cohort)
    order = np.lexsort((ids, cohorts))
    earlier, later = np.full((2, ids.size), -1)
    alike = cohorts[order[1:]] == cohorts[order[:-1]]
    earlier[order[1:][alike]] = order[:-1][alike]
    later[order[:-1][alike]] = order[1:][alike]
    level = np.append(np.full(jobs.size, NOT_ENDED), past.level)
    ended = np.bincount(past.level, minlength=LEVELS).astype(np.float64)
    return History(earlier, later, level, ended)

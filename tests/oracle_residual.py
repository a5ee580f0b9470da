"""Learned lengths of the oracle: see `tests.oracle`. Each job looks at its neighbours anew."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from math import inf

ENDS_S = [10.0 * 2.0 ** (at / 2.0) for at in range(45)]  # of levels; the last has none
PRIOR, PRIOR_HAZARD, NEIGHBOUR_PRIOR, STICKY, WAKE_S = 5.0, 0.0866, 1.0, 8.0, 60.0


def level(trained_s: float) -> int:
    """The level of a training time."""
    return min(bisect_right(ENDS_S, trained_s), len(ENDS_S) - 1)


def wake_in_s(trained_s: float, slower: float) -> float:
    """When a job that has trained so long leaves its level."""
    at = level(trained_s)
    return inf if at == len(ENDS_S) - 1 else max(WAKE_S, (ENDS_S[at] - trained_s) * slower)


class Trained:
    """A job of which lengths are learned."""

    def __init__(self, trained_s: float, ended: bool):
        self.level, self.ended, self.says_nothing = level(trained_s), ended, trained_s == 0.0


def nearest(others: Iterable[Trained]) -> list[Trained]:
    """The first eight of the next 32 jobs that have trained."""
    looked_at = [other for other, _ in zip(others, range(32), strict=False)]
    return [other for other in looked_at if not other.says_nothing][:8]


def hazards(jobs: Sequence[Trained], prior: float, before: Sequence[float]) -> list[float]:
    """Of all that reach a level, the part that ends in it, with `prior` more jobs as before."""
    found = []
    for at, hazard in enumerate(before):
        reached = sum(1.0 for job in jobs if job.level >= at)
        ended = sum(1.0 for job in jobs if job.level == at and job.ended)
        found.append(min(0.999, (ended + prior * hazard) / (reached + prior)))
    return found


def common_hazards(jobs: Iterable[Trained]) -> list[float]:
    """The hazards of all jobs."""
    trained = [job for job in jobs if job.ended or not job.says_nothing]
    return hazards(trained, PRIOR, [PRIOR_HAZARD] * len(ENDS_S))


def residual_s(cohort: Sequence[Trained], place: int, common: Sequence[float]) -> float:
    """What a job of a cohort will still take, in seconds at its request."""
    at = cohort[place].level
    near = nearest(reversed(cohort[:place])) + nearest(cohort[place + 1 :])
    own = hazards([job for job in near if job.level >= at], NEIGHBOUR_PRIOR, common)
    ends, takes_s, stays, index = 0.0, 0.0, 1.0, 0.0
    for each in range(at, len(ENDS_S)):
        width_s = ENDS_S[each] - (ENDS_S[each - 1] if each else 0.0)
        takes_s += stays * (1.0 - 0.5 * own[each]) * width_s
        ends += stays * own[each]
        stays *= 1.0 - own[each]
        if ends > index * takes_s:
            index = ends / takes_s
    return 1.0 / index

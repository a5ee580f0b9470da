"""Jobs that wait for one another's devices: one of them has to leave its own first."""

from collections.abc import Collection
from typing import NamedTuple

from coddl.core.pool.job import JobState
from coddl.core.pool.state import Pool


class FirstMove(NamedTuple):
    """A job that leaves some devices before it gets others."""

    job: JobState
    kept: tuple[int, ...]  # the slots that it goes on with meanwhile


def first_move(pool: Pool) -> FirstMove | None:
    """Name one of several jobs that wait for one another's devices; None if there are none."""
    stuck = {n for n in pool.unsettled if _is_stuck(pool, pool.jobs[n])}
    for first in sorted(stuck):
        seen, number = [first], _blocker(pool, pool.jobs[first], stuck)
        while number is not None and number not in seen:
            seen.append(number)
            number = _blocker(pool, pool.jobs[number], stuck)
        if number is not None:
            job = pool.jobs[number]
            kept = tuple(slot for slot in job.granted if slot in job.target)
            return FirstMove(job, kept)  # jobs that waited for it go on when it has left
    return None


def _is_stuck(pool: Pool, job: JobState) -> bool:
    return job.has_run and not job.stop and bool(job.target) and not pool.is_deaf(job)


def _blocker(pool: Pool, job: JobState, stuck: Collection[int]) -> int | None:
    """Name a job that has to move before this one can, and can't."""
    for slot in job.target:
        for owner in pool.slots[slot].owners:
            if owner != job.id and owner in stuck and slot in pool.jobs[owner].granted:
                return owner
    return None

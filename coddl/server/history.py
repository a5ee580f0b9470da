"""Jobs that have left memory, as those that look for one find them."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from coddl.core.pool.errors import NotFound
from coddl.core.pool.job import JobState
from coddl.server.history_rows import recorded_job
from coddl.server.journal import Journal
from coddl.server.store import HistoryQuery

AROUND_MAX: Final = 2_000  # jobs of an interval that are shown, the newest
DIGITS_MAX: Final = 18


class JobHistory:
    """Finds jobs in the history of a journal. Safe from any thread; each look is a query."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def find(self, job: str) -> JobState:
        """Return a job by its number, or the newest of that name; raises NotFound."""
        wanted = [HistoryQuery(name=job)]
        if job.isdecimal() and len(job) <= DIGITS_MAX:
            wanted.insert(0, HistoryQuery(job=int(job)))
        for each in wanted:
            if rows := self._journal.history(each, 1):
                return recorded_job(rows[0]).job
        raise NotFound(
            f'job "{job}" cannot be found',
            f"no job has that {'number' if job.isdecimal() else 'name'}",
            "coddl ls --all",
        )

    def page(self, wanted: HistoryQuery, limit: int) -> list[JobState]:
        """Return jobs by falling number."""
        return [recorded_job(row).job for row in self._journal.history(wanted, limit)]

    def merged_with(
        self, newer: Sequence[JobState], wanted: HistoryQuery, limit: int
    ) -> list[JobState]:
        """Return those jobs and jobs of the history, by falling number, up to a limit."""
        return list(islice(merged(iter(newer), self._newest(wanted, limit)), limit))

    def _newest(self, wanted: HistoryQuery, limit: int) -> Iterator[JobState]:
        """Yield jobs by falling number. Mostly none of them is as new as those in memory: the first
        is read alone.
        """
        count = 1
        while rows := self._journal.history(wanted, count):
            for row in rows:
                yield recorded_job(row).job
            wanted, count = wanted._replace(before=rows[-1].job), limit

    def around(self, since_s: float, until_s: float) -> Mapping[int, JobState]:
        """Return jobs that were there in an interval, the newest."""
        wanted = HistoryQuery(since_s=since_s, until_s=until_s)
        return {job.id: job for job in self.page(wanted, AROUND_MAX)}


def merged(first: Iterator[JobState], second: Iterator[JobState]) -> Iterator[JobState]:
    """Merge two series of jobs into one, by falling number; a job that is in both comes once."""
    one, other = next(first, None), next(second, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one.id >= other.id):
            assert one is not None
            other = next(second, None) if other is not None and other.id == one.id else other
            yield one
            one = next(first, None)
        else:
            yield other
            other = next(second, None)

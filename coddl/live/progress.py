"""What runs tell of themselves now and then. Soft: kept in memory, for people and for decisions."""

from collections.abc import Iterable
from typing import Final

from coddl.api.wire import RunProgress
from coddl.core.pool.records import RunProgressed
from coddl.core.pool.state import Pool

OVER_MAX: Final = 10_000  # jobs that are over whose last words are kept


class ProgressBoard:
    """The newest word of each job's newest run."""

    def __init__(self) -> None:
        self._runs: dict[int, RunProgress] = {}

    def hear(self, run: RunProgress) -> None:
        """Take in how a run is doing, unless it is a ghost's word."""
        told = run.progressed
        known = self._runs.get(told.job)
        if known is None or known.progressed.attempt <= told.attempt:
            self._runs[told.job] = run

    def of(self, job: int) -> RunProgress | None:
        """Give a job's last word."""
        return self._runs.get(job)

    def newest(self) -> Iterable[RunProgressed]:
        """Give what decisions want to know."""
        return [run.progressed for run in self._runs.values()]

    def forget_over(self, pool: Pool) -> None:
        """Drop jobs that are long over, if there are many."""
        if len(self._runs) > OVER_MAX + len(pool.active):
            self._runs = {job: run for job, run in self._runs.items() if job in pool.active}

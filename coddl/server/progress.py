"""Progress that runs report now and then; kept in memory only, for display and for decisions."""

from collections.abc import Iterable

from coddl.api.wire import RunProgress
from coddl.core.pool.records import RunReported
from coddl.core.pool.state import Pool


class LatestProgress:
    """The latest progress of each job's newest run."""

    def __init__(self) -> None:
        self._runs: dict[int, RunProgress] = {}

    def hear(self, run: RunProgress) -> None:
        """Record the progress of a run."""
        self._runs[run.progressed.job] = run

    def of(self, job: int) -> RunProgress | None:
        """Return the latest progress of a job, or None."""
        return self._runs.get(job)

    def newest(self, pool: Pool) -> Iterable[RunReported]:
        """Yield what decisions need, as reports of the nodes that run the jobs."""
        for job in pool.live_jobs():
            if job.id in self._runs and job.lead is not None:
                lead = pool.nodes[job.lead]
                yield RunReported(lead.name, lead.boot, self._runs[job.id].progressed)

    def forget(self, jobs: Iterable[int]) -> None:
        """Drop jobs that have left memory."""
        for job in jobs:
            self._runs.pop(job, None)

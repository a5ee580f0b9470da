"""Finds the jobs in memory by number or name, and lists them."""

from collections.abc import Iterable, Iterator

from coddl.core.pool.errors import Conflict
from coddl.core.pool.job import JobState
from coddl.core.pool.state import Pool


class JobNames:
    """Finds jobs by number or name."""

    def __init__(self, pool: Pool) -> None:
        self._by_name: dict[str, dict[int, None]] = {}
        self._names: dict[int, str] = {}
        for job in pool.jobs.values():
            self.add(job.id, job.spec.name)

    def add(self, job: int, name: str) -> None:
        """Take note of a new job."""
        self._names[job] = name
        self._by_name.setdefault(name, {})[job] = None

    def forget(self, jobs: Iterable[int]) -> None:
        """Drop jobs that have left memory."""
        for job in jobs:
            name = self._names.pop(job)
            numbers = self._by_name[name]
            del numbers[job]
            if not numbers:
                del self._by_name[name]

    def find(self, pool: Pool, job: str) -> JobState | None:
        """Return the job of that number; or of that name, the one that is not over before others.

        None: no job in memory has it. Raises Conflict where several that are not over have the
        name.
        """
        if job.isdecimal() and len(job) < 19 and int(job) in pool.jobs:
            return pool.jobs[int(job)]
        numbers = self._by_name.get(job, {})
        active = [number for number in numbers if number in pool.active]
        if len(active) > 1:
            *others, last = map(str, active)
            raise Conflict(
                f'"{job}" is ambiguous',
                f"jobs {', '.join(others)} and {last} have that name",
                f"the job's number, for example coddl describe {last}",
            )
        if active:
            return pool.jobs[active[0]]
        return pool.jobs[next(reversed(numbers))] if numbers else None


def newest_first(pool: Pool, before: int | None, only_active: bool) -> Iterator[JobState]:
    """Return the jobs in memory by falling number, from below one."""
    numbers = reversed(pool.active if only_active else pool.jobs)
    return (pool.jobs[job] for job in numbers if before is None or job < before)

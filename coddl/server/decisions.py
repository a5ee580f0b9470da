"""Decisions as the journal has them: what led to each, what it changed, and what it saw.

A decision records only what is new of its inputs. So what it saw is put together from its own
record and from those before it. Nothing is computed anew: that is what happened. (D3)
"""

from collections.abc import Mapping
from typing import Final

from coddl.api import rest_history as rest
from coddl.core.pool import records as r
from coddl.core.pool.errors import NotFound
from coddl.core.pool.job import JobState
from coddl.server.history import JobHistory
from coddl.server.journal import DecisionEntry, Journal
from coddl.server.store import HistoryQuery

LOOKED_BACK_MAX: Final = 2_000  # decisions that are read for what one of them saw
PAGE: Final = 200


class JobsThen:
    """The jobs of decisions: those in memory, and those that have left it since."""

    def __init__(self, history: JobHistory, jobs: Mapping[int, JobState]) -> None:
        self._history, self._jobs = history, dict(jobs)

    def name(self, job: int) -> str:
        """Return a job's name; one that is not known any more is called by its number."""
        if job not in self._jobs:
            self._jobs |= {each.id: each for each in self._history.page(HistoryQuery(job=job), 1)}
        return self._jobs[job].spec.name if job in self._jobs else f"job {job}"

    def at(self, at_s: float) -> set[int]:
        """Name the jobs that were there."""
        self._jobs = {**self._history.around(at_s, at_s), **self._jobs}
        return {job.id for job in self._jobs.values() if _was_there(job, at_s)}


def decisions_view(
    journal: Journal, jobs: JobsThen, before: int | None, limit: int
) -> rest.DecisionsView:
    """Show decisions, the newest first."""
    found = journal.decisions(limit + 1, before)
    items = [_decision_view(journal, jobs, entry) for entry in found[:limit]]
    return rest.DecisionsView(items=items, next=items[-1].number if len(found) > limit else None)


def decision_view(journal: Journal, jobs: JobsThen, number: int) -> rest.DecisionDetailView:
    """Show a decision and what it saw; raises NotFound."""
    found = journal.decisions(1, number + 1)
    if not found or found[0].seq != number:
        raise NotFound(
            f"decision {number} cannot be found",
            "the record of that number is not a decision",
            "the numbers that /decisions lists",
        )
    (entry,) = found
    shown = dict(_decision_view(journal, jobs, entry))
    return rest.DecisionDetailView(**shown, saw=_seen_view(journal, jobs, entry))


def _decision_view(journal: Journal, jobs: JobsThen, entry: DecisionEntry) -> rest.DecisionView:
    number, at_s, record = entry
    return rest.DecisionView(
        number=number,
        at_s=at_s,
        policy=record.policy,
        cause=record.why,
        changes=[
            rest.ShareChangeView(
                job=job,
                name=jobs.name(job),
                gpus_before=_held_before(journal, entry, job),
                gpus=len(target.slots),
                reason=target.reason,
            )
            for job, target in sorted(record.targets.items())
        ],
        waiting=record.left_waiting if isinstance(record, r.Decided) else None,
        trouble=record.trouble.sentence if isinstance(record, r.DecisionFailed) else None,
    )


def _held_before(journal: Journal, entry: DecisionEntry, job: int) -> int:
    """Return how many GPUs a job held when a decision changed that.

    A job that the policy was not asked about has no row: it held what was decided last.
    """
    for row in _rows(entry.record):
        if row.job == job:
            return row.gpus
    for _, _, record in journal.decisions(1, entry.seq, job):
        return len(record.targets[job].slots) if job in record.targets else 0
    return 0


def _seen_view(journal: Journal, jobs: JobsThen, entry: DecisionEntry) -> rest.SeenView | None:
    record = entry.record
    if isinstance(record, r.DecisionFailed):
        return None
    rows = _rows_seen(journal, jobs, entry)
    return rest.SeenView(
        now_s=entry.at_s,
        gpus_total=record.gpus,
        jobs=[_seen_job(jobs, record, rows[job]) for job in sorted(rows)],
    )


def _seen_job(jobs: JobsThen, record: r.Decided, row: r.DecisionRow) -> rest.SeenJobView:
    target, waiting = record.targets.get(row.job), record.waiting.get(row.job)
    reason = target.reason if target is not None else waiting.sentence if waiting else ""
    return rest.SeenJobView(
        job=row.job,
        name=jobs.name(row.job),
        gpus_min=row.gpus_min,
        gpus_max=row.gpus_max,
        gpus=row.gpus,
        gpus_after=len(target.slots) if target is not None else row.share,
        remaining_iterations=row.remaining,
        attained_gpu_s=row.attained_gpu_s,
        reason=reason,
    )


def _rows_seen(journal: Journal, jobs: JobsThen, entry: DecisionEntry) -> dict[int, r.DecisionRow]:
    """Return the newest row of each job that was there, up to a decision.

    A job that had to leave and has no row since was not part of the decision, e.g. suspended.
    """
    rows: dict[int, r.DecisionRow] = {}
    missing = jobs.at(entry.at_s)
    looked, before = 0, entry.seq + 1
    while missing and looked < LOOKED_BACK_MAX:
        page = journal.decisions(PAGE, before)
        for seq, _, record in page:
            found = {row.job: row for row in _rows(record) if row.job in missing}
            rows |= found
            left = {job for job, target in record.targets.items() if not target.slots}
            missing -= found.keys() | (left if seq != entry.seq else set())
        if len(page) < PAGE:
            break
        looked, before = looked + len(page), page[-1].seq
    return rows


def _was_there(job: JobState, at_s: float) -> bool:
    return job.submitted_s <= at_s and (job.ended_s is None or job.ended_s > at_s)


def _rows(record: r.Decided | r.DecisionFailed) -> tuple[r.DecisionRow, ...]:
    return record.rows if isinstance(record, r.Decided) else ()

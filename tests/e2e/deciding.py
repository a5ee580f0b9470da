"""What the journal says about a decision, and what the policy itself would say to the same rows."""

from collections.abc import Sequence
from dataclasses import dataclass

from coddl.core.pool.job import MeasuredSpeed
from coddl.core.pool.records import Decided
from coddl.core.pool.snapshot import PoolSnapshot, snapshot_of_pool
from coddl.core.pool.state import Pool as Fold
from coddl.core.registry import policy_from
from coddl.server.folding import JournalEntry
from tests.e2e.pool import COOL_DOWN_S, Pool


@dataclass(frozen=True, slots=True)
class Quiet:
    """A moment when all that was decided is so, and the decision was the policy's alone."""

    decided: Decided
    shares: dict[int, int]  # what every job holds
    by_policy: dict[int, int]  # what the policy gives to the rows it was asked about


def quiet(pool: Pool, *jobs: int) -> Quiet:
    """Wait until the pool is at rest with just these jobs running."""
    return pool.wait(f"a quiet moment for jobs {jobs}", lambda: _quiet(pool, jobs))


def folded(records: Sequence[JournalEntry]) -> Fold:
    """Fold records; which asserts that a slot is granted to nobody while it has an owner."""
    fold = Fold()
    for _, at_s, record in records:
        fold.apply(record, at_s)
    return fold


def _quiet(pool: Pool, jobs: Sequence[int]) -> Quiet | None:
    records = pool.records()
    views = {job["id"]: job for job in pool.get("/jobs", active=True)["items"]}
    if {job for job, view in views.items() if view["state"] == "RUNNING"} != set(jobs):
        return None
    now = folded(records)
    rows = {job: row for job in jobs if (row := now.jobs[job].row) is not None}
    is_so = len(rows) == len(jobs) and all(
        row.share == views[job]["gpus"] and row.share in row.step_s for job, row in rows.items()
    )
    newest = max(i for i, each in enumerate(records) if isinstance(each.record, Decided))
    sight = _sight(records[:newest], records[newest])
    if not is_so or _is_pinned(sight) or pool.last_seq() != records[-1].seq:
        return None
    decided = records[newest].record
    assert isinstance(decided, Decided)
    shares = policy_from(decided.policy)(sight.snapshot).gpus
    return Quiet(
        decided,
        {job: view["gpus"] for job, view in views.items()},
        {job.id: int(gpus) for job, gpus in zip(sight.jobs, shares, strict=True)},
    )


def _sight(before: Sequence[JournalEntry], noted: JournalEntry) -> PoolSnapshot:
    """Give the picture that a decision was made on; speeds are in its rows, as far as new."""
    fold, decided = folded(before), noted.record
    assert isinstance(decided, Decided)
    rows = {job.id: job.row for job in fold.live_jobs() if job.row is not None}
    for row in (rows | {row.job: row for row in decided.rows}).values():
        speeds = {gpus: MeasuredSpeed(step_s, 0) for gpus, step_s in row.step_s.items()}
        fold.jobs[row.job].step_s = speeds
    return snapshot_of_pool(fold, noted.at_s, decided.seed)


def _is_pinned(sight: PoolSnapshot) -> bool:
    """Tell whether not the policy but calm has decided for some job."""
    jobs = sight.snapshot.jobs
    is_cooling = sight.snapshot.now_s < jobs.changed_s + COOL_DOWN_S
    return bool(((jobs.gpus > 0) & (is_cooling | (jobs.settled == 0))).any())

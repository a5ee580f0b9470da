"""What keeps a journal short: jobs move to the history, snapshots are written, old records go.

It runs in its own thread, on its own fold of the journal, so the loop waits for nothing but
short commits. Each pass

1. folds the newest snapshot and the records since, into a recording;
2. stores the jobs that may be forgotten in the history, and then has the loop forget them;
3. stores a snapshot of what is left;
4. removes, in small batches, records that are old and behind the snapshot that the pass began with.

So whatever is removed is in the history or in two snapshots, and a pass may end anywhere: the next
one begins with what is stored. (ADR 24)
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from coddl.core.pool.forgetting import forgettable
from coddl.core.pool.recording import Recording
from coddl.core.pool.records import JobsForgotten
from coddl.server.folding import BrokenTail, UnreadableRecord, record_of, tail_of
from coddl.server.history_rows import history_row
from coddl.server.journal import jobs_of
from coddl.server.snapshots import LAYOUT, base_of, encoded_snapshot
from coddl.server.store import JournalStore, RecordJob, StoredSnapshot

BATCH: Final = 100  # jobs that are forgotten together, and records that are removed
FOLD_BATCH: Final = 20  # records between two rests


class Compacted(NamedTuple):
    """What came of a pass."""

    seq: int  # of the record after which there is a snapshot now
    forgotten: int  # jobs
    removed: int  # records


class Compactor:
    """Makes passes; for one thread, which need not be the control loop's."""

    def __init__(
        self,
        store: JournalStore,
        forget: Callable[[Sequence[int]], None],
        rest: Callable[[], None] = lambda: None,
        *,
        keep_jobs: int,
        keep_events_s: float,
        batch: int = BATCH,
    ) -> None:
        """`forget` has the control loop forget jobs, and returns when that is in the journal;
        `rest` is called between steps, and may raise to end a pass.
        """
        self._store, self._forget, self._rest = store, forget, rest
        self._keep_jobs, self._keep_events_s = keep_jobs, keep_events_s
        self._batch = batch

    def run(self, now_s: float) -> Compacted:
        """Make a pass; raises BrokenTail, and what `forget`, `rest` and the store raise."""
        base = base_of(self._store, self._rest)
        if base is None:
            raise BrokenTail("the journal was trimmed, and no snapshot of it can be read")
        recording = base.recording
        seq, at_s = self._follow(recording, base.seq, base.at_s)
        forgotten = 0
        while moving := forgettable(recording.pool, self._keep_jobs):
            self._move(recording, moving)
            seq, at_s = self._follow(recording, seq, at_s)
            if moving[0] in recording.pool.jobs:
                break  # the loop has not forgotten it
            forgotten += len(moving)
        if seq == base.seq:
            return Compacted(seq, forgotten, 0)
        body = encoded_snapshot(recording, at_s, self._rest)
        self._store.save_snapshot(StoredSnapshot(seq, LAYOUT, body), base.seq)
        return Compacted(seq, forgotten, self._trim(base.seq, now_s - self._keep_events_s))

    def _follow(self, recording: Recording, seq: int, at_s: float) -> tuple[int, float]:
        """Take in the records after one; give the number and the time of the last."""
        after = seq
        for seq, at_s, record in tail_of(self._store, after):
            recording.take(at_s, record)
            if isinstance(record, JobsForgotten):
                for job in record.jobs:
                    recording.jobs.pop(job, None)
            if seq % FOLD_BATCH == 0:
                self._rest()
        return seq, at_s

    def _move(self, recording: Recording, jobs: Sequence[int]) -> None:
        """Store jobs in the history; only then are they forgotten."""
        for at in range(0, len(jobs), self._batch):
            batch = jobs[at : at + self._batch]
            self._store.save_history([history_row(recording.jobs[job]) for job in batch])
            self._rest()
            self._forget(batch)

    def _trim(self, before: int, before_s: float) -> int:
        """Remove records before a number and a time; return how many."""
        after = first = max(0, self._store.first_seq() - 1)
        while True:
            page = self._store.lines(after, self._batch)
            lines = [line for line in page if line.seq < before and line.at_s < before_s]
            if not lines:
                return after - first
            links = [
                RecordJob(line.seq, job)
                for line in lines
                if not isinstance(record := record_of(line), UnreadableRecord)
                for job in jobs_of(record)
            ]
            after = lines[-1].seq
            self._store.trim(links, after)
            self._rest()

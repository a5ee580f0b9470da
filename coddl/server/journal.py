"""The journal: what has happened, in order, and the pool as the fold of it. (D3, ADR 9, ADR 24)

Records are stored as JSON under their kind (`records.kind_of`), and are read back unchanged. A
*snapshot* now and then makes a restart quick. Records behind the snapshots are removed when they
are old enough; what is left of them is in the snapshots and in the history. (`compaction`)
"""

import secrets
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from coddl import __version__
from coddl.core.pool import records as r
from coddl.core.pool.records import Record
from coddl.core.pool.state import Pool
from coddl.server.errors import JournalUnreadable
from coddl.server.folding import BrokenTail, JournalEntry, UnreadableRecord, record_of, tail_of
from coddl.server.snapshots import base_of
from coddl.server.store import (
    HistoryQuery,
    HistoryRow,
    JournalStore,
    RecordJob,
    StoredAnswer,
    StoredRecord,
)

SCHEMA: Final = 8  # of what bodies hold; grows when older versions could not read them any more
SNAPSHOT_EVERY: Final = 2_000  # records
# Records that are no events: a job has many, and shows what they come to.
QUIET: Final = frozenset({r.kind_of(r.LossMeasured)})
DECISIONS: Final = frozenset({r.kind_of(r.Decided), r.kind_of(r.DecisionFailed)})

_encoder: Final = msgspec.json.Encoder()


class ReadEntry(NamedTuple):
    """An entry to show: its record may be unreadable."""

    seq: int
    at_s: float
    record: Record | UnreadableRecord


class DecisionEntry(NamedTuple):
    """An entry whose record is a decision."""

    seq: int
    at_s: float
    record: r.Decided | r.DecisionFailed


class FoldedPool(NamedTuple):
    """The pool after record `seq`."""

    pool: Pool
    seq: int
    at_s: float  # of that record; no later event is earlier


def jobs_of(record: Record) -> Iterable[int]:
    """Name the jobs that a record concerns."""
    match record:
        case (
            r.Decided(targets=targets, waiting=waiting)
            | r.DecisionFailed(targets=targets, waiting=waiting)
        ):
            return sorted({*targets, *waiting})
        case (
            r.NodeDrained()
            | r.NodeUndrained()
            | r.NodeForgotten()
            | r.PolicyChosen()
            | r.JobsForgotten()
            | r.NodeJoined()
            | r.NodeLost()
            | r.EngineBounded()
            | r.NodeAcquired()
            | r.NodeLeft()
            | r.NodesWanted()
        ):
            return ()
        case _:
            return (record.job,)


class Journal:
    """Writes and reads records; raises JournalUnreadable at what a newer version has written."""

    def __init__(self, store: JournalStore, *, snapshot_every: int = SNAPSHOT_EVERY) -> None:
        self.store = store  # where it is; for what keeps it short (`compaction`)
        self._snapshot_every = snapshot_every
        self.pool_id = self._check_notes()  # identifies this pool
        self._seq = store.last_seq()
        self._snapshot_seq = self._seq

    @property
    def last_seq(self) -> int:
        """The number of the newest record."""
        return self._seq

    def append(
        self, records: Sequence[Record], answers: Sequence[StoredAnswer], at_s: float
    ) -> list[JournalEntry]:
        """Make records and answers durable together; raises JournalFull and keeps none."""
        entries = [
            JournalEntry(self._seq + 1 + i, at_s, record) for i, record in enumerate(records)
        ]
        lines = [
            StoredRecord(seq, at_s, r.kind_of(type(record)), _encoder.encode(record).decode())
            for seq, _, record in entries
        ]
        links = [RecordJob(seq, job) for seq, _, record in entries for job in jobs_of(record)]
        self.store.append(lines, links, answers)
        self._seq += len(entries)
        return entries

    def answer(self, key: str) -> StoredAnswer | None:
        """Find what an Idempotency-Key was answered."""
        return self.store.answer(key)

    def forget_answers(self, before_s: float) -> None:
        """Drop the answers that are older."""
        self.store.forget_answers(before_s)

    def read(self, after: int, limit: int, job: int | None = None) -> list[ReadEntry]:
        """Return the oldest events after a number; of a job if one is named."""
        lines = self.store.lines(after, limit, job, without=QUIET)
        return [self._seen(line) for line in lines]

    def newest(self, limit: int, job: int | None = None) -> list[ReadEntry]:
        """Return the newest events, in order; of a job if one is named."""
        return [self._seen(line) for line in self.store.newest(limit, job, without=QUIET)]

    def decisions(
        self, limit: int, before: int | None = None, job: int | None = None
    ) -> list[DecisionEntry]:
        """Return the newest decisions before a number, newest first; of one job if it is named.

        Those that can't be read are left out.
        """
        lines = self.store.newest(limit, job, only=DECISIONS, before=before)
        found = ((line, record_of(line)) for line in reversed(lines))
        return [
            DecisionEntry(line.seq, line.at_s, record)
            for line, record in found
            if isinstance(record, r.Decided | r.DecisionFailed)
        ]

    def history(self, wanted: HistoryQuery, limit: int) -> list[HistoryRow]:
        """Return jobs that have left memory, by falling number."""
        return self.store.history(wanted, limit)

    def begin(self) -> StoredRecord | None:
        """Return the oldest record that was not removed; None if none ever was."""
        lines = self.store.lines(0, 1)
        return lines[0] if lines and lines[0].seq > 1 else None

    def fold(self) -> FoldedPool:
        """Return the pool as the journal has it: the newest readable snapshot, and the tail.

        Nothing is appended in between: only one server has a journal at a time.
        """
        base = base_of(self.store)
        if base is None:
            raise self._unreadable("it was trimmed, and no snapshot of it can be read")
        pool, at_s, last = base.recording.pool, base.at_s, base.seq
        pool.forget_soft()
        self._snapshot_seq = base.seq
        try:
            for last, at_s, record in tail_of(self.store, base.seq):  # noqa: B007  # used below
                pool.apply(record, at_s)
        except BrokenTail as broken:
            raise self._unreadable(str(broken)) from None
        except Exception as error:
            raise self._unreadable(
                f"record {last} ({r.kind_of(type(record))}) does not follow from "
                f"those before it: "
                f"{error!r}"
            ) from error
        self._seq = last
        return FoldedPool(pool, last, at_s)

    def snapshot_is_due(self) -> bool:
        """Return whether enough has happened since the last snapshot."""
        return self._seq - self._snapshot_seq >= self._snapshot_every

    def note_snapshot(self, seq: int) -> None:
        """Take note that there is a snapshot of the pool after a record."""
        self._snapshot_seq = max(self._snapshot_seq, seq)

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def _seen(self, line: StoredRecord) -> ReadEntry:
        return ReadEntry(line.seq, line.at_s, record_of(line))

    def _check_notes(self) -> str:
        """Check which version wrote the journal, record this one, and return the pool's id."""
        notes = self.store.notes()
        if int(notes.get("schema", SCHEMA)) > SCHEMA:
            raise self._unreadable(f"its records follow schema {notes['schema']}, not {SCHEMA}")
        pool_id = notes.get("pool") or secrets.token_hex(8)
        ours = {"schema": str(SCHEMA), "version": __version__, "pool": pool_id}
        if notes != ours:
            self.store.note(ours)
        return pool_id

    def _unreadable(self, because: str) -> JournalUnreadable:
        wrote = self.store.notes().get("version", "unknown")
        return JournalUnreadable(
            "the journal cannot be read",
            f"{because}; coddl {wrote} wrote it, and this is coddl {__version__}",
            f"coddl {wrote} or newer, or another --state-dir",
        )

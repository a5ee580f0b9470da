"""The journal: what has happened, in order, and the pool as the fold of it. (D3, ADR 9)

Records are stored as JSON under their kind (`records.kind_of`), and are read back unchanged. A
*snapshot* of the folded pool now and then makes a restart quick; it is never needed, and is read by
the version that wrote it alone: another one may fold the same records to more, or to other things.
"""

import json
import secrets
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, get_args

import msgspec

from coddl import __version__
from coddl.core.pool import records as r
from coddl.core.pool.records import Record
from coddl.core.pool.state import Pool
from coddl.server.errors import JournalUnreadable
from coddl.server.store import JournalStore, RecordJob, StoredAnswer, StoredRecord, StoredSnapshot

SCHEMA: Final = 7  # of what bodies hold; grows when older versions could not read them any more
PAGE: Final = 1_000
SNAPSHOT_EVERY: Final = 2_000  # records
KINDS: Final[dict[str, type[Record]]] = {r.kind_of(kind): kind for kind in get_args(Record)}
# Records that are no events: a job has many, and shows what they come to.
QUIET: Final = frozenset({r.kind_of(r.LossMeasured)})
DECISIONS: Final = frozenset({r.kind_of(r.Decided), r.kind_of(r.DecisionFailed)})

# Of snapshots: what a pool is made of, so that none with other fields is read by halves.
LAYOUT: Final = zlib.crc32(json.dumps(msgspec.json.schema(Pool)).encode()) & 0x7FFFFFFF

_encoder: Final = msgspec.json.Encoder()
_decoders: Final = {name: msgspec.json.Decoder(kind) for name, kind in KINDS.items()}


class JournalEntry(NamedTuple):
    """A record with its number in the journal."""

    seq: int
    at_s: float
    record: Record


class UnreadableRecord(msgspec.Struct, frozen=True):
    """Stands for a record that can't be read."""

    kind: str
    because: str


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
        self._store = store
        self._snapshot_every = snapshot_every
        self.pool_id = self._check_notes()  # tells this pool from all others
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
        self._store.append(lines, links, answers)
        self._seq += len(entries)
        return entries

    def answer(self, key: str) -> StoredAnswer | None:
        """Find what an Idempotency-Key was answered."""
        return self._store.answer(key)

    def forget_answers(self, before_s: float) -> None:
        """Drop the answers that are older."""
        self._store.forget_answers(before_s)

    def read(self, after: int, limit: int, job: int | None = None) -> list[ReadEntry]:
        """Give the oldest events after a number; of a job if one is named."""
        lines = self._store.lines(after, limit, job, without=QUIET)
        return [self._seen(line) for line in lines]

    def newest(self, limit: int, job: int | None = None) -> list[ReadEntry]:
        """Give the newest events, in order; of a job if one is named."""
        return [self._seen(line) for line in self._store.newest(limit, job, without=QUIET)]

    def decisions(
        self, limit: int, before: int | None = None, job: int | None = None
    ) -> list[DecisionEntry]:
        """Give the newest decisions before a number, newest first; of those about a job, if named.

        Those that can't be read are left out.
        """
        lines = self._store.newest(limit, job, only=DECISIONS, before=before)
        found = ((line, record_of(line)) for line in reversed(lines))
        return [
            DecisionEntry(line.seq, line.at_s, record)
            for line, record in found
            if isinstance(record, r.Decided | r.DecisionFailed)
        ]

    def fold(self) -> FoldedPool:
        """Give the pool as the journal has it: the newest snapshot that can be read, and the tail.

        What was appended in between by nobody: one server has a journal at a time.
        """
        folded = self._pool_of_snapshot()
        pool, seq, at_s = folded
        for seq, at_s, record in self._tail(folded.seq):
            try:
                pool.apply(record, at_s)
            except Exception as error:
                raise self._unreadable(
                    f"record {seq} ({r.kind_of(type(record))}) does not follow from "
                    f"those before it: "
                    f"{error!r}"
                ) from error
        self._seq = seq
        return FoldedPool(pool, seq, at_s)

    def snapshot_is_due(self) -> bool:
        """Tell whether enough has happened since the last snapshot."""
        return self._seq - self._snapshot_seq >= self._snapshot_every

    def save_snapshot(self, pool: Pool, at_s: float) -> None:
        """Store a snapshot of the pool as it is after the newest record; raises JournalFull."""
        body = _encoder.encode(_SnapshotBody(__version__, at_s, pool))
        self._store.save_snapshot(StoredSnapshot(self._seq, LAYOUT, zlib.compress(body, 1)))
        self._snapshot_seq = self._seq

    def close(self) -> None:
        """Let go of the store."""
        self._store.close()

    def _tail(self, after: int) -> Iterator[JournalEntry]:
        while page := self._store.lines(after, PAGE, None):
            yield from map(self._noted, page)
            after = page[-1].seq

    def _pool_of_snapshot(self) -> FoldedPool:
        for snapshot in self._store.stored_snapshots():
            if snapshot.schema != LAYOUT or snapshot.seq > self._store.last_seq():
                continue
            try:
                body = msgspec.json.decode(zlib.decompress(snapshot.body), type=_SnapshotBody)
            except (zlib.error, msgspec.DecodeError):
                continue  # torn: the records have it all
            if body.version != __version__:
                continue
            self._snapshot_seq = snapshot.seq
            body.pool.forget_soft()
            return FoldedPool(body.pool, snapshot.seq, body.at_s)
        self._snapshot_seq = 0
        return FoldedPool(Pool(), 0, 0.0)

    def _noted(self, line: StoredRecord) -> JournalEntry:
        """Read a record that the pool is folded from: none can be left out."""
        record = record_of(line)
        if isinstance(record, UnreadableRecord):
            raise self._unreadable(record.because)
        return JournalEntry(line.seq, line.at_s, record)

    def _seen(self, line: StoredRecord) -> ReadEntry:
        return ReadEntry(line.seq, line.at_s, record_of(line))

    def _check_notes(self) -> str:
        """Check who wrote the journal, note that we do now, and give the pool's id."""
        notes = self._store.notes()
        if int(notes.get("schema", SCHEMA)) > SCHEMA:
            raise self._unreadable(f"its records follow schema {notes['schema']}, not {SCHEMA}")
        pool_id = notes.get("pool") or secrets.token_hex(8)
        ours = {"schema": str(SCHEMA), "version": __version__, "pool": pool_id}
        if notes != ours:
            self._store.note(ours)
        return pool_id

    def _unreadable(self, because: str) -> JournalUnreadable:
        wrote = self._store.notes().get("version", "unknown")
        return JournalUnreadable(
            "the journal cannot be read",
            f"{because}; coddl {wrote} wrote it, and this is coddl {__version__}",
            f"coddl {wrote} or newer, or another --state-dir",
        )


def record_of(line: StoredRecord) -> Record | UnreadableRecord:
    """Read a stored record."""
    if line.kind not in _decoders:
        because = f'record {line.seq} is a "{line.kind}", unknown to this version'
        return UnreadableRecord(line.kind, because)
    try:
        return _decoders[line.kind].decode(line.body)
    except msgspec.DecodeError as error:
        return UnreadableRecord(line.kind, f"record {line.seq} ({line.kind}): {error}")


class _SnapshotBody(msgspec.Struct, frozen=True):
    """What a snapshot holds."""

    version: str  # of coddl that wrote it
    at_s: float
    pool: Pool

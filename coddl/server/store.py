"""What a store of a journal promises: lines in order, whole batches or nothing. (ADR 9)

`store_sql` is the real one, `store_memory` its twin; both pass `coddl.testing.store_contract`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol


class StoredRecord(NamedTuple):
    """A record as it is stored; `body` is JSON."""

    seq: int
    at_s: float
    kind: str
    body: str


class RecordJob(NamedTuple):
    """Says that a record concerns a job."""

    seq: int
    job: int


class StoredAnswer(NamedTuple):
    """What a request with an Idempotency-Key was answered, and which request that was."""

    key: str
    request: str  # its hash
    response: str
    at_s: float


class StoredSnapshot(NamedTuple):
    """The state after `seq`, as bytes that only the version that wrote them can read."""

    seq: int
    schema: int  # names what the state is made of
    body: bytes


class HistoryRow(NamedTuple):
    """A job that has ended, as the history keeps it; `body` is all that happened to it."""

    job: int
    name: str
    user: str
    queue: str
    program: str
    signature: str  # of what it trained; empty: not reported
    phase: str  # in which it ended
    submitted_s: float
    started_s: float | None  # None: it never started
    ended_s: float
    iterations: int
    gpu_s: float
    body: bytes


class HistoryQuery(NamedTuple):
    """Which rows of the history are wanted."""

    job: int | None = None
    before: int | None = None  # jobs with a smaller number
    phases: tuple[str, ...] = ()  # none: all
    user: str | None = None
    name: str | None = None
    since_s: float | None = None  # jobs that ended then or later
    until_s: float | None = None  # jobs that were submitted by then


class JournalReader(Protocol):
    """A journal that is read. Safe from any thread."""

    def first_seq(self) -> int:
        """Return the number of the oldest line that is left; 0 if there is none."""

    def last_seq(self) -> int:
        """Return the number of the newest line; 0 if there is none."""

    def lines(
        self, after: int, limit: int, job: int | None = None, *, without: Collection[str] = ()
    ) -> list[StoredRecord]:
        """Return the oldest lines after a number, less some kinds; of a job if one is named."""

    def stored_snapshots(self) -> Iterator[StoredSnapshot]:
        """Return the stored snapshots, newest first."""

    def history(self, wanted: HistoryQuery, limit: int) -> list[HistoryRow]:
        """Return jobs of the history, by falling number."""

    def notes(self) -> Mapping[str, str]:
        """Return what is noted about the journal as a whole."""


class JournalStore(JournalReader, Protocol):
    """Where a journal is stored. Safe from any thread; one appends."""

    def append(
        self,
        lines: Sequence[StoredRecord],
        links: Sequence[RecordJob],
        answers: Sequence[StoredAnswer],
    ) -> None:
        """Make all of it durable, or raise JournalFull and keep none of it."""

    def newest(
        self,
        limit: int,
        job: int | None = None,
        *,
        without: Collection[str] = (),
        only: Collection[str] = (),
        before: int | None = None,
    ) -> list[StoredRecord]:
        """Return the newest lines before a number, in order; of a job if one is named.

        Less some kinds, or of some kinds only.
        """

    def answer(self, key: str) -> StoredAnswer | None:
        """Find what a key was answered."""

    def forget_answers(self, before_s: float) -> None:
        """Drop the answers that are older."""

    def save_snapshot(self, snapshot: StoredSnapshot, made_from: int | None = None) -> None:
        """Store a snapshot; drop all but the one it was made from, or the one before.

        Raises JournalFull.
        """

    def save_history(self, rows: Sequence[HistoryRow]) -> None:
        """Store jobs in the history, in place of rows with their numbers; raises JournalFull."""

    def trim(self, links: Sequence[RecordJob], through: int) -> None:
        """Remove the lines up to a number, and these links to them; raises JournalFull."""

    def note(self, notes: Mapping[str, str]) -> None:
        """Note something about the journal as a whole; raises JournalFull."""

    def close(self) -> None:
        """Close the store."""

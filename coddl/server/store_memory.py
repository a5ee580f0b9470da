"""A journal in memory: for tests and trials. It can simulate a full disk."""

import threading
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice

from coddl.server.errors import JournalFull
from coddl.server.store import (
    HistoryQuery,
    HistoryRow,
    RecordJob,
    StoredAnswer,
    StoredRecord,
    StoredSnapshot,
)


class MemoryStore:
    """Keeps what it is given for as long as it lives."""

    def __init__(self) -> None:
        self.is_full = False
        self._lines: list[StoredRecord] = []
        self._by_job: dict[int, list[int]] = {}
        self._answers: dict[str, StoredAnswer] = {}
        self._snapshots: list[StoredSnapshot] = []
        self._history: dict[int, HistoryRow] = {}
        self._notes: dict[str, str] = {}
        self._lock = threading.Lock()

    def append(
        self,
        lines: Sequence[StoredRecord],
        links: Sequence[RecordJob],
        answers: Sequence[StoredAnswer],
    ) -> None:
        """Keep all of it, or raise JournalFull."""
        self._check_room()
        seqs = [self.last_seq(), *(line.seq for line in lines)]
        if seqs != sorted(set(seqs)):
            raise ValueError(f"lines out of order: {seqs}")
        with self._lock:
            self._lines += lines
            for link in links:
                self._by_job.setdefault(link.job, []).append(link.seq)
            self._answers |= {answer.key: answer for answer in answers}

    def lines(
        self, after: int, limit: int, job: int | None = None, *, without: Collection[str] = ()
    ) -> list[StoredRecord]:
        """Return the oldest lines after a number, less some kinds; of a job if one is named."""
        with self._lock:
            if job is None:
                start = bisect_right(self._lines, after, key=lambda line: line.seq)
                found: Iterator[StoredRecord] = islice(self._lines, start, None)
            else:
                seqs = self._by_job.get(job, [])
                found = map(self._line, seqs[bisect_right(seqs, after) :])
            return list(islice((line for line in found if line.kind not in without), limit))

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
        with self._lock:
            if job is None:
                found = reversed(self._lines)
            else:
                found = map(self._line, reversed(self._by_job.get(job, [])))
            older = (line for line in found if before is None or line.seq < before)
            kept = (each for each in older if not only or each.kind in only)
            kept = (each for each in kept if each.kind not in without)
            return list(islice(kept, max(limit, 0)))[::-1]

    def first_seq(self) -> int:
        """Return the number of the oldest line that is left; 0 if there is none."""
        with self._lock:
            return self._lines[0].seq if self._lines else 0

    def last_seq(self) -> int:
        """Return the number of the newest line; 0 if there is none."""
        return self._lines[-1].seq if self._lines else 0

    def answer(self, key: str) -> StoredAnswer | None:
        """Find what a key was answered."""
        return self._answers.get(key)

    def forget_answers(self, before_s: float) -> None:
        """Drop the answers that are older."""
        self._check_room()
        with self._lock:
            self._answers = {k: a for k, a in self._answers.items() if a.at_s >= before_s}

    def stored_snapshots(self) -> Iterator[StoredSnapshot]:
        """Return the stored snapshots, newest first."""
        return reversed(self._snapshots[:])

    def save_snapshot(self, snapshot: StoredSnapshot, made_from: int | None = None) -> None:
        """Store a snapshot; drop all but the one it was made from, or the one before.

        Raises JournalFull.
        """
        self._check_room()
        others = [each for each in self._snapshots if each.seq != snapshot.seq]
        kept = [each for each in others if each.seq == made_from] or others[-1:]
        self._snapshots = [*kept, snapshot]

    def history(self, wanted: HistoryQuery, limit: int) -> list[HistoryRow]:
        """Return jobs of the history, by falling number."""
        with self._lock:
            rows = sorted(self._history.values(), reverse=True)
        return list(islice((row for row in rows if _is_wanted(row, wanted)), limit))

    def save_history(self, rows: Sequence[HistoryRow]) -> None:
        """Store jobs in the history, in place of rows with their numbers; raises JournalFull."""
        self._check_room()
        with self._lock:
            self._history |= {row.job: row for row in rows}

    def trim(self, links: Sequence[RecordJob], through: int) -> None:
        """Remove the lines up to a number, and these links to them; raises JournalFull."""
        self._check_room()
        with self._lock:
            count = bisect_right(self._lines, through, key=lambda line: line.seq)
            self._lines = self._lines[count:]
            for seq, job in links:
                self._by_job[job] = [each for each in self._by_job.get(job, []) if each != seq]

    def notes(self) -> Mapping[str, str]:
        """Return what is noted about the journal as a whole."""
        return dict(self._notes)

    def note(self, notes: Mapping[str, str]) -> None:
        """Note something about the journal as a whole; raises JournalFull."""
        self._check_room()
        self._notes |= notes

    def close(self) -> None:
        """Close the store; there is nothing to release."""

    def _line(self, seq: int) -> StoredRecord:
        return self._lines[bisect_right(self._lines, seq, key=lambda line: line.seq) - 1]

    def _check_room(self) -> None:
        if self.is_full:
            raise JournalFull("the journal cannot be written to", "it is set to be full", "room")


def _is_wanted(row: HistoryRow, wanted: HistoryQuery) -> bool:
    return (
        (wanted.job is None or row.job == wanted.job)
        and (wanted.before is None or row.job < wanted.before)
        and (not wanted.phases or row.phase in wanted.phases)
        and (wanted.user is None or row.user == wanted.user)
        and (wanted.name is None or row.name == wanted.name)
        and (wanted.since_s is None or row.ended_s >= wanted.since_s)
        and (wanted.until_s is None or row.submitted_s <= wanted.until_s)
    )

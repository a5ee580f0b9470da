"""The server's disk: what is committed stays, whatever becomes of the process.

It can be full, slow, and be the moment at which the process is killed: before a commit, so that
nothing of it is kept, or right after it, so that no effect follows. What a crash leaves of the
newest snapshot may be its first half.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal

from coddl.server.errors import JournalFull
from coddl.server.store import (
    HistoryQuery,
    HistoryRow,
    RecordJob,
    StoredAnswer,
    StoredRecord,
    StoredSnapshot,
)
from coddl.server.store_memory import MemoryStore
from coddl.testing.full_system.virtual_time import SimulatedProcess

Moment = Literal["before a commit", "after a commit"]


class ProcessKilled(BaseException):
    """The process is no more: nothing of the stack below is to be run."""


class Disk:
    """What outlives the processes of the server."""

    def __init__(self, pool_id: str) -> None:
        self.store = MemoryStore()
        self.store.note({"pool": pool_id})
        self.is_full = False
        self.slow_s = 0.0  # that a commit takes
        self.kills_at: Moment | None = None

    def tear(self) -> None:
        """Leave half of the newest snapshot, as a crash may."""
        newest = next(self.store.stored_snapshots(), None)
        if newest is not None:
            torn = newest.body[: len(newest.body) // 2]
            self.store.save_snapshot(newest._replace(body=torn))


class ServerDisk:
    """The disk, as one process of the server sees it; a `JournalStore`."""

    def __init__(
        self,
        disk: Disk,
        process: SimulatedProcess,
        on_commit: Callable[[Sequence[StoredRecord]], None],
        decision_s: float = 0.0,
    ) -> None:
        """`on_commit` hears of records as soon as they are safe; a decision takes `decision_s`."""
        self._disk, self._process = disk, process
        self._on_commit = on_commit
        self._decision_s = decision_s

    def append(
        self,
        lines: Sequence[StoredRecord],
        links: Sequence[RecordJob],
        answers: Sequence[StoredAnswer],
    ) -> None:
        """Keep all of it, or raise JournalFull."""
        disk = self._disk
        self._begin()
        decisions = sum(line.kind == "Decided" for line in lines)
        if (takes_s := disk.slow_s + decisions * self._decision_s) > 0:
            self._process.block(takes_s)
        disk.store.append(lines, links, answers)
        self._on_commit(lines)
        self._end()

    def forget_answers(self, before_s: float) -> None:
        """Drop the answers that are older."""
        self._check()
        self._disk.store.forget_answers(before_s)

    def save_snapshot(self, snapshot: StoredSnapshot, made_from: int | None = None) -> None:
        """Store a snapshot; drop all but the one it was made from, or the one before.

        Raises JournalFull.
        """
        self._begin()
        self._disk.store.save_snapshot(snapshot, made_from)
        self._end()

    def save_history(self, rows: Sequence[HistoryRow]) -> None:
        """Store jobs in the history, in place of rows with their numbers; raises JournalFull."""
        self._begin()
        self._disk.store.save_history(rows)
        self._end()

    def trim(self, links: Sequence[RecordJob], through: int) -> None:
        """Remove the lines up to a number, and these links to them; raises JournalFull."""
        self._begin()
        self._disk.store.trim(links, through)
        self._end()

    def note(self, notes: Mapping[str, str]) -> None:
        """Note something about the journal as a whole; raises JournalFull."""
        self._check()
        self._disk.store.note(notes)

    def lines(
        self, after: int, limit: int, job: int | None = None, *, without: Collection[str] = ()
    ) -> list[StoredRecord]:
        """Give the oldest lines after a number, less some kinds; of a job if one is named."""
        return self._disk.store.lines(after, limit, job, without=without)

    def newest(
        self,
        limit: int,
        job: int | None = None,
        *,
        without: Collection[str] = (),
        only: Collection[str] = (),
        before: int | None = None,
    ) -> list[StoredRecord]:
        """Give the newest lines before a number, in order."""
        return self._disk.store.newest(limit, job, without=without, only=only, before=before)

    def first_seq(self) -> int:
        """Give the number of the oldest line that is left; 0 if there is none."""
        return self._disk.store.first_seq()

    def history(self, wanted: HistoryQuery, limit: int) -> list[HistoryRow]:
        """Give jobs of the history, by falling number."""
        return self._disk.store.history(wanted, limit)

    def last_seq(self) -> int:
        """Give the number of the newest line; 0 if there is none."""
        return self._disk.store.last_seq()

    def answer(self, key: str) -> StoredAnswer | None:
        """Find what a key was answered."""
        return self._disk.store.answer(key)

    def stored_snapshots(self) -> Iterator[StoredSnapshot]:
        """Give the stored snapshots, newest first."""
        return self._disk.store.stored_snapshots()

    def notes(self) -> Mapping[str, str]:
        """Give what is noted about the journal as a whole."""
        return self._disk.store.notes()

    def close(self) -> None:
        """Let go of it."""

    def _check(self) -> None:
        """Raise if nothing can be written: a dead process writes nothing, either."""
        if not self._process.is_alive:
            raise ProcessKilled
        if self._disk.is_full:
            raise JournalFull("the journal cannot be written to", "the disk is full", "room")

    def _begin(self) -> None:
        """Begin a commit, if the process lives to do so."""
        self._check()
        if self._disk.kills_at == "before a commit":
            self._kill()

    def _end(self) -> None:
        """End a commit, and with it the process, if that is the plan."""
        if self._disk.kills_at == "after a commit":
            self._kill()

    def _kill(self) -> None:
        self._disk.kills_at = None
        self._process.kill()
        raise ProcessKilled

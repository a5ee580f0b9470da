"""What every store of a journal promises: inherit StoreContract, give it your store."""

import pytest

from coddl.server.store import (
    HistoryQuery,
    HistoryRow,
    JournalStore,
    RecordJob,
    StoredAnswer,
    StoredRecord,
    StoredSnapshot,
)


def line(seq: int, kind: str = "JobHeld") -> StoredRecord:
    """Make a line that can be told from others."""
    return StoredRecord(seq, seq + 0.25, kind, f'{{"job":{seq},"by":"ü"}}')


def row(job: int, ended_s: float = 9.5, **changes: object) -> HistoryRow:
    """Make a row of the history that can be told from others."""
    words = ("bert", "ann", "default", "train.py", "f00d", "succeeded")
    made = HistoryRow(job, *words, 1.25, None, ended_s, 1 << 40, 0.1, bytes([job % 256, 0, 255]))
    return made._replace(**changes)  # type: ignore[arg-type]  # as a test wants it


class StoreContract:
    """The promises. A subclass has a fixture `store` that gives an empty one.

    class TestMine(StoreContract):
        @pytest.fixture
        def store(self):
            return Mine()
    """

    @pytest.fixture
    def store(self) -> JournalStore:
        """The store under test."""
        raise NotImplementedError("give the contract a store: a fixture named `store`")

    def test_an_empty_store_has_nothing(self, store: JournalStore) -> None:
        assert store.first_seq() == store.last_seq() == 0
        assert store.lines(0, 10) == store.newest(10) == []
        assert list(store.stored_snapshots()) == []
        assert store.notes() == {}
        assert store.answer("a") is None

    def test_lines_come_back_in_order_and_unchanged(self, store: JournalStore) -> None:
        store.append([line(1), line(2)], [], [])
        store.append([line(3)], [], [])
        assert store.lines(0, 10) == [line(1), line(2), line(3)]
        assert store.lines(1, 1) == [line(2)]
        assert store.newest(2) == [line(2), line(3)]
        assert store.newest(0) == []
        assert store.last_seq() == 3

    def test_a_job_has_its_own_lines(self, store: JournalStore) -> None:
        links = [RecordJob(1, 7), RecordJob(2, 7), RecordJob(2, 8), RecordJob(4, 7)]
        store.append([line(seq) for seq in (1, 2, 3, 4)], links, [])
        assert store.lines(0, 10, 7) == [line(1), line(2), line(4)]
        assert store.lines(1, 1, 7) == [line(2)]
        assert store.newest(2, 7) == [line(2), line(4)]
        assert store.newest(5, 8) == [line(2)]
        assert store.lines(0, 10, 9) == []

    def test_some_kinds_can_be_left_out(self, store: JournalStore) -> None:
        lines = [line(seq, "Quiet" if seq % 2 else "JobHeld") for seq in range(1, 7)]
        store.append(lines, [RecordJob(seq, 7) for seq in range(2, 6)], [])
        assert [each.seq for each in store.lines(0, 2, without=["Quiet"])] == [2, 4]
        assert [each.seq for each in store.newest(2, without=["Quiet"])] == [4, 6]
        assert [each.seq for each in store.lines(2, 9, 7, without=["Quiet"])] == [4]
        assert [each.seq for each in store.newest(9, 7, without=["Quiet"])] == [2, 4]

    def test_the_newest_of_some_kinds_before_a_number(self, store: JournalStore) -> None:
        lines = [line(seq, "Decided" if seq % 2 else "JobHeld") for seq in range(1, 8)]
        store.append(lines, [RecordJob(seq, 7) for seq in range(2, 7)], [])
        assert [each.seq for each in store.newest(2, only=["Decided"])] == [5, 7]
        assert [each.seq for each in store.newest(2, only=["Decided"], before=5)] == [1, 3]
        assert [each.seq for each in store.newest(9, 7, only=["Decided"], before=5)] == [3]
        assert [each.seq for each in store.newest(2, before=4)] == [2, 3]

    def test_an_answer_is_kept_with_the_lines_it_is_about(self, store: JournalStore) -> None:
        answer = StoredAnswer("key", "hash", '{"id":1}', 12.5)
        store.append([line(1)], [RecordJob(1, 1)], [answer])
        assert store.answer("key") == answer
        assert store.answer("other") is None

    def test_old_answers_are_forgotten(self, store: JournalStore) -> None:
        store.append(
            [], [], [StoredAnswer("old", "h", "r", 10.0), StoredAnswer("new", "h", "r", 20.0)]
        )
        store.forget_answers(15.0)
        assert store.answer("old") is None
        assert store.answer("new") is not None

    def test_two_pictures_are_kept_newest_first(self, store: JournalStore) -> None:
        for seq in (3, 5, 9):
            store.save_snapshot(StoredSnapshot(seq, 1, bytes([seq, 0, 255])))
        kept = list(store.stored_snapshots())
        assert kept == [
            StoredSnapshot(9, 1, b"\x09\x00\xff"),
            StoredSnapshot(5, 1, b"\x05\x00\xff"),
        ]

    def test_the_picture_that_another_was_made_from_is_kept(self, store: JournalStore) -> None:
        for seq, made_from in ((3, None), (5, None), (9, 3)):
            store.save_snapshot(StoredSnapshot(seq, 1, b"a"), made_from)
        assert [each.seq for each in store.stored_snapshots()] == [9, 3]

    def test_a_picture_of_the_same_moment_replaces_the_old_one(self, store: JournalStore) -> None:
        store.save_snapshot(StoredSnapshot(3, 1, b"a"))
        store.save_snapshot(StoredSnapshot(5, 1, b"b"))
        store.save_snapshot(StoredSnapshot(5, 2, b"c"))
        assert list(store.stored_snapshots()) == [
            StoredSnapshot(5, 2, b"c"),
            StoredSnapshot(3, 1, b"a"),
        ]

    def test_notes_are_replaced_one_by_one(self, store: JournalStore) -> None:
        store.note({"schema": "1", "version": "0.1"})
        store.note({"version": "0.2"})
        assert store.notes() == {"schema": "1", "version": "0.2"}

    def test_a_batch_that_fails_leaves_nothing(self, store: JournalStore) -> None:
        """The second line has a number that is taken: whatever a store makes of that."""
        store.append([line(1)], [], [])
        answer = StoredAnswer("key", "hash", "r", 1.0)
        with pytest.raises(Exception, match=r".+"):
            store.append([line(2), line(1)], [RecordJob(2, 5)], [answer])
        assert store.lines(0, 10) == [line(1)]
        assert store.lines(0, 10, 5) == []
        assert store.answer("key") is None
        store.append([line(2)], [RecordJob(2, 5)], [answer])
        assert store.last_seq() == 2

    def test_jobs_of_the_history_come_back_newest_first_and_unchanged(
        self, store: JournalStore
    ) -> None:
        rows = [row(3), row(5, started_s=2.5, name="ü"), row(8)]
        store.save_history(rows[:2])
        store.save_history(rows[2:])
        assert store.history(HistoryQuery(), 10) == rows[::-1]
        assert store.history(HistoryQuery(), 1) == [rows[2]]
        assert store.history(HistoryQuery(before=8), 1) == [rows[1]]
        assert store.history(HistoryQuery(job=3), 9) == [rows[0]]
        assert store.history(HistoryQuery(job=4), 9) == []

    def test_jobs_of_the_history_can_be_chosen(self, store: JournalStore) -> None:
        rows = [
            row(1, 10.0, phase="failed"),
            row(2, 20.0, user="ben"),
            row(3, 30.0, name="lstm", submitted_s=25.0),
        ]
        store.save_history(rows)
        wanted = {
            HistoryQuery(phases=("failed", "cancelled")): [1],
            HistoryQuery(user="ben"): [2],
            HistoryQuery(name="bert"): [2, 1],
            HistoryQuery(since_s=20.0): [3, 2],
            HistoryQuery(until_s=24.0): [2, 1],
            HistoryQuery(since_s=15.0, until_s=20.0, name="bert"): [2],
        }
        found = {each: [row.job for row in store.history(each, 9)] for each in wanted}
        assert found == wanted

    def test_a_job_that_is_stored_again_replaces_its_row(self, store: JournalStore) -> None:
        store.save_history([row(1), row(2)])
        store.save_history([row(2, name="again"), row(3)])
        assert [each.name for each in store.history(HistoryQuery(), 9)] == ["bert", "again", "bert"]

    def test_old_lines_are_removed_with_their_links(self, store: JournalStore) -> None:
        links = [RecordJob(seq, job) for seq in (1, 2, 3) for job in (7, 8)]
        store.append([line(seq) for seq in (1, 2, 3)], links, [])
        store.trim([link for link in links if link.seq < 3], 2)
        assert (store.first_seq(), store.last_seq()) == (3, 3)
        assert store.lines(0, 10) == store.newest(10) == [line(3)]
        assert store.lines(0, 10, 7) == store.newest(10, 8) == [line(3)]
        store.trim([], 2)
        assert store.lines(0, 10) == [line(3)]
        store.append([line(4)], [RecordJob(4, 7)], [])
        assert store.lines(0, 10, 7) == [line(3), line(4)]

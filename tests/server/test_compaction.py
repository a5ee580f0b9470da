"""What a journal is shortened to tells the same, wherever the shortening ends."""

import base64
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import count, groupby
from pathlib import Path
from typing import Any

import pytest

from coddl.core.pool import records as r
from coddl.core.pool.recording import Recording, TimedRecord, recorded
from coddl.core.pool.state import Pool
from coddl.server.compaction import Compacted, Compactor
from coddl.server.errors import JournalUnreadable
from coddl.server.folding import BrokenTail
from coddl.server.journal import Journal
from coddl.server.journal_reading import recording_of
from coddl.server.store import (
    HistoryQuery,
    HistoryRow,
    JournalStore,
    StoredRecord,
    StoredSnapshot,
)
from coddl.server.store_memory import MemoryStore
from coddl.server.store_sql import SqlStore, sqlite_url
from coddl.sim.recorded_workload import recorded_workload
from coddl.sim.whatif import what_if
from tests.journals import demo_records

RECORDS = demo_records()
NOW_S = RECORDS[-1].at_s + 1.0
WRITES = ("append", "save_history", "save_snapshot", "trim")


@pytest.fixture(params=["memory", "sql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JournalStore]:
    made = MemoryStore() if request.param == "memory" else fresh_sql(tmp_path / "journal.db")
    yield made
    made.close()


def fresh_sql(path: Path) -> SqlStore:
    return SqlStore(sqlite_url(path))


class Pass:
    """A journal, and passes of a compactor over it; `keep_jobs` that have ended stay in memory."""

    def __init__(self, store: JournalStore, *, keep_jobs: int = 1) -> None:
        self.store, self.journal = store, Journal(store)
        rules: dict[str, Any] = {"keep_jobs": keep_jobs, "keep_events_s": 0.0, "batch": 30}
        self.compactor = Compactor(store, self.forget, **rules)

    def write(self, records: Sequence[TimedRecord]) -> None:
        for at_s, together in groupby(records, key=lambda each: each.at_s):
            self.journal.append([record for _, record in together], [], at_s)

    def forget(self, jobs: Sequence[int]) -> None:
        self.journal.append([r.JobsForgotten(tuple(jobs))], [], NOW_S)

    def run(self) -> Compacted:
        return self.compactor.run(NOW_S)

    def run_in_pieces(self, pieces: int) -> None:
        """Write the records of the demo, with a pass after each piece."""
        size = -(-len(RECORDS) // pieces)
        for at in range(0, len(RECORDS), size):
            self.write(RECORDS[at : at + size])
            self.run()


def pool_of(store: JournalStore) -> Pool:
    pool = Journal(store).fold().pool
    pool.touched.clear()
    return pool


def without_env(recording: Recording) -> Recording:
    """Give a recording less what the history leaves out."""
    for known in recording.jobs.values():
        known.job.spec.launch.env.clear()  # type: ignore[attr-defined]  # it is a dict
    return recording


def test_a_trimmed_journal_records_the_same_of_each_job(store: JournalStore) -> None:
    Pass(store).run_in_pieces(7)
    assert store.first_seq() > 1
    assert len(store.history(HistoryQuery(), 99)) > 3
    found, whole = without_env(recording_of(store)), without_env(recorded(RECORDS))
    assert list(found.jobs) == list(whole.jobs)
    assert found.jobs == whole.jobs
    for name in ("capacity", "policies", "outline", "kinds", "cool_downs_ms"):
        assert getattr(found, name) == getattr(whole, name)


def test_what_if_answers_the_same_for_a_trimmed_journal() -> None:
    def answer(recording: Recording) -> dict[str, Any]:
        data = what_if(recorded_workload(recording), ["fifo"]).as_data()
        assert data["runs"]
        del data["until_s"]  # jobs were forgotten after the last of them
        return data

    passes = Pass(MemoryStore(), keep_jobs=0)
    passes.run_in_pieces(5)
    assert answer(recording_of(passes.store)) == answer(recorded(RECORDS))


def test_a_trimmed_journal_folds_to_the_same_pool(store: JournalStore) -> None:
    passes = Pass(store, keep_jobs=2)
    passes.run_in_pieces(4)
    whole = MemoryStore()
    Pass(whole).write(RECORDS)
    expected = pool_of(whole)
    expected.apply(r.JobsForgotten(tuple(expected.jobs.keys() - pool_of(store).jobs.keys())), NOW_S)
    assert pool_of(store) == expected
    assert len(expected.ended) == 2
    assert expected.next_job == 8


class Killed(Exception):
    """The process is gone."""


class DyingStore:
    """A store whose process dies at one of its writes, before or after it is done.

    It tells a twin, which lives on, of all that is appended.
    """

    def __init__(self, store: JournalStore) -> None:
        self.store, self.writes_left, self.is_done = store, 1 << 30, False
        self.twin = MemoryStore()

    def __getattr__(self, name: str) -> Callable[..., object]:
        method: Callable[..., object] = getattr(self.store, name)
        return self._dying(name, method) if name in WRITES else method

    def _dying(self, name: str, method: Callable[..., object]) -> Callable[..., object]:
        def write(*values: Any) -> object:  # Any: as the store takes them
            self.writes_left -= 1
            if self.writes_left < 0 and not self.is_done:
                raise Killed
            found = method(*values)
            if name == "append":
                self.twin.append(*values)
            if self.writes_left < 0:
                raise Killed
            return found

        return write


def begun(dying: DyingStore) -> None:
    """Write the demo with a pass in its middle, so that the next one trims."""
    passes = Pass(dying)  # type: ignore[arg-type]  # it has all methods of one
    passes.write(RECORDS[: len(RECORDS) // 2])
    passes.run()
    passes.write(RECORDS[len(RECORDS) // 2 :])


def begun_stores(folder: Path, *, is_sql: bool) -> Iterator[DyingStore]:
    """Give such stores, without end."""
    first = DyingStore(fresh_sql(folder / "first.db"))
    begun(first)
    first.close()
    for at in count():
        if is_sql:
            path = shutil.copy(folder / "first.db", folder / f"{at}.db")
            dying = DyingStore(fresh_sql(Path(path)))
            dying.twin.append(first.twin.lines(0, 9999), [], [])
        else:
            begun(dying := DyingStore(MemoryStore()))
        yield dying


@pytest.mark.parametrize("is_done", [False, True], ids=["before a write", "after a write"])
@pytest.mark.parametrize("is_sql", [False, True], ids=["memory", "sql"])
def test_a_pass_may_die_at_any_write(tmp_path: Path, *, is_sql: bool, is_done: bool) -> None:
    for at, dying in zip(range(100), begun_stores(tmp_path, is_sql=is_sql), strict=False):
        dying.writes_left, dying.is_done = at, is_done
        real = dying.store
        try:
            Pass(dying).run()  # type: ignore[arg-type]  # it has all methods of a store
        except Killed:
            assert pool_of(real) == pool_of(dying.twin)
            Pass(real).run()
            assert len(pool_of(real).ended) == 1
            assert len(recording_of(real).jobs) == 7
        else:
            assert at > 5  # writes that it could die at
            return
        finally:
            real.close()
    pytest.fail("the pass never ends")


def test_a_journal_whose_snapshots_are_all_torn_says_so_once_it_was_trimmed() -> None:
    passes = Pass(MemoryStore())
    passes.run_in_pieces(4)
    for each in list(passes.store.stored_snapshots()):
        passes.store.save_snapshot(StoredSnapshot(each.seq, each.schema, each.body[:100]))
    with pytest.raises(JournalUnreadable, match="no snapshot of it can be read"):
        Journal(passes.store).fold()
    with pytest.raises(BrokenTail):
        recording_of(passes.store)
    with pytest.raises(BrokenTail):
        passes.run()


def test_the_snapshot_before_the_last_is_enough() -> None:
    passes = Pass(MemoryStore())
    passes.run_in_pieces(6)
    before = pool_of(passes.store)
    newest = next(passes.store.stored_snapshots())
    passes.store.save_snapshot(newest._replace(body=newest.body[:100]))
    assert pool_of(passes.store) == before


def test_a_snapshot_that_cannot_be_read_drives_out_none_that_can() -> None:
    passes = Pass(MemoryStore())
    pieces = [RECORDS[at : at + 40] for at in range(0, len(RECORDS), 40)]
    for number, piece in enumerate(pieces):
        passes.write(piece)
        passes.run()
        if number >= len(pieces) - 2:  # twice in a row
            newest = next(passes.store.stored_snapshots())
            passes.store.save_snapshot(newest._replace(body=newest.body[:100]))
    whole = Pass(MemoryStore())
    whole.write(RECORDS)
    assert pool_of(passes.store).slots == pool_of(whole.store).slots


def test_a_pass_without_news_stores_nothing() -> None:
    passes = Pass(MemoryStore())
    passes.run_in_pieces(3)
    kept = list(passes.store.stored_snapshots())
    assert passes.run().forgotten == 0
    assert list(passes.store.stored_snapshots()) == kept


def test_a_trimmed_journal_of_an_older_version_comes_up() -> None:
    """Snapshots and rows are read by all later versions; this is how the first one wrote them."""
    told = json.loads((Path(__file__).parent / "journals" / "schema-8.json").read_text())
    store = MemoryStore()
    lines = ([*head, json.dumps(body)] for *head, body in told["records"])
    store.append([StoredRecord._make(each) for each in lines], [], [])
    store.note({"schema": "8", "version": "0.1.0"})
    for each in reversed(told["snapshots"]):
        body = base64.b64decode(each["body"])
        store.save_snapshot(StoredSnapshot(each["seq"], each["layout"] ^ 1, body))
    rows = ([*columns, base64.b64decode(body)] for *columns, body in told["history"])
    store.save_history([HistoryRow._make(each) for each in rows])
    assert store.first_seq() > 1
    folded = Journal(store).fold()
    assert (len(folded.pool.jobs), folded.pool.next_job) == (2, 8)
    found, whole = without_env(recording_of(store)), without_env(recorded(RECORDS))
    assert [known.work_done for known in found.jobs.values()] == [
        known.work_done for known in whole.jobs.values()
    ]
    assert found.jobs.keys() == whole.jobs.keys()

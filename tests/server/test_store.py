"""Both stores keep the contract; what only a database does is below."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from coddl.server.errors import JournalFull, JournalUnreadable
from coddl.server.store import JournalStore
from coddl.server.store_memory import MemoryStore
from coddl.server.store_sql import SqlStore, sqlite_url
from coddl.testing.store_contract import StoreContract, line


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> JournalStore:
        return MemoryStore()


class TestSqlStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[JournalStore]:
        store = SqlStore(sqlite_url(tmp_path / "100% new journal?#.db"))
        yield store
        store.close()


def test_a_full_memory_store_keeps_nothing() -> None:
    store = MemoryStore()
    store.is_full = True
    with pytest.raises(JournalFull):
        store.append([line(1)], [], [])
    assert store.last_seq() == 0


def test_what_was_appended_is_there_after_opening_it_again(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "journal.db")
    first = SqlStore(url)
    first.append([line(1)], [], [])
    first.close()
    second = SqlStore(url)
    assert second.newest(1) == [line(1)]
    second.close()


def test_every_batch_reaches_the_disk_before_it_counts(tmp_path: Path) -> None:
    store = SqlStore(sqlite_url(tmp_path / "journal.db"))
    with store._engine.connect() as connection:
        modes = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous")
        ]
    assert modes == ["wal", 2]  # 2: FULL
    store.close()


def test_tables_of_a_newer_version_are_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    SqlStore(sqlite_url(path)).close()
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.close()
    with pytest.raises(JournalUnreadable, match="knows them up to 0002"):
        SqlStore(sqlite_url(path))


def test_a_file_that_is_no_database_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"this is no database, and never was one\n" * 100)
    with pytest.raises(JournalUnreadable, match="not a database"):
        SqlStore(sqlite_url(path))


def test_a_database_without_room_says_so_keeps_nothing_and_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    store = SqlStore(sqlite_url(tmp_path / "journal.db"))
    large = line(2)._replace(body='"' + "x" * 200_000 + '"')
    store.append([line(1)], [], [])
    with store._engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(JournalFull, match="full"):
        store.append([large], [], [])
    assert store.lines(0, 10) == [line(1)]
    with store._engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
    store.append([large], [], [])
    assert store.last_seq() == 2
    store.close()

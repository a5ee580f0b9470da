"""Lines of jobs: numbered, bounded, readable while they are written."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coddl.api.wire import LogLine
from coddl.server.logs import LogQuery, LogReader, LogStore, set_aside
from coddl.server.node_leases import NodeLeases


def lines(*texts: str, at_s: float = 0.0, rank: int | None = 0) -> list[LogLine]:
    return [LogLine(at_s, 1, 0, rank, "stdout", text) for text in texts]


class Shelf(LogStore):
    """A store that closes its readers with itself."""

    def __init__(self, folder: Path, file_bytes_max: int = 400) -> None:
        super().__init__(folder, file_bytes_max=file_bytes_max)
        self._readers: list[LogReader] = []

    def read(self, job: int, wanted: LogQuery) -> LogReader:
        """Give a reader."""
        self._readers.append(super().read(job, wanted))
        return self._readers[-1]

    def close(self) -> None:
        """Let go of all."""
        super().close()
        for reader in self._readers:
            reader.close()


Reopened = Callable[[], Shelf]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Shelf]:
    with contextlib.closing(Shelf(tmp_path)) as shelf:
        yield shelf


@pytest.fixture
def reopened(tmp_path: Path) -> Iterator[Reopened]:
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(contextlib.closing(Shelf(tmp_path)))


def texts(reader: LogReader) -> list[str]:
    return [kept.line.text for kept in reader.more()]


def test_lines_come_back_numbered(store: LogStore) -> None:
    store.append(1, lines("a", "b"))
    store.append(2, lines("x"))
    store.append(1, lines("c"))
    found = store.read(1, LogQuery()).more()
    assert [(kept.number, kept.line.text) for kept in found] == [(1, "a"), (2, "b"), (3, "c")]


def test_numbers_go_on_after_a_restart(store: LogStore, reopened: Reopened) -> None:
    store.append(1, lines("a", "b"))
    store.close()
    again = reopened()
    again.append(1, lines("c"))
    assert again.read(1, LogQuery()).more()[-1].number == 3


def test_numbers_go_on_after_a_restart_just_after_a_change_of_files(
    store: LogStore, reopened: Reopened, tmp_path: Path
) -> None:
    store.append(1, lines(*"abcdefghij"))
    (tmp_path / "1.jsonl").rename(tmp_path / "1.1.jsonl")
    again = reopened()
    again.append(1, lines("k"))
    assert again.read(1, LogQuery()).more()[-1].number == 11


def test_files_are_bounded_and_the_newest_lines_stay(store: LogStore, tmp_path: Path) -> None:
    for i in range(100):
        store.append(1, lines(f"line {i}"))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 1_000
    assert len(list(tmp_path.iterdir())) == 2
    found = store.read(1, LogQuery()).last(1_000)
    assert found[-1].line.text == "line 99"
    numbers = [kept.number for kept in found]
    assert numbers == list(range(numbers[0], 101))


def test_a_reader_sees_every_line_across_a_change_of_files(store: LogStore) -> None:
    reader = store.read(1, LogQuery())
    seen: list[str] = texts(reader)
    assert seen == []
    for i in range(30):
        store.append(1, lines(f"{i}"))
        if i % 3 == 0:
            seen += texts(reader)
    seen += texts(reader)
    assert seen == [f"{i}" for i in range(30)]


WANTED = {
    "after a number": (LogQuery(after=2), ["c", "d"]),
    "of a rank": (LogQuery(rank=1), ["c"]),
    "since a moment": (LogQuery(since_s=5.0), ["d"]),
    "all": (LogQuery(), ["a", "b", "c", "d"]),
}


@pytest.mark.parametrize(("wanted", "want"), WANTED.values(), ids=WANTED.keys())
def test_one_sees_the_lines_one_asks_for(
    store: LogStore, wanted: LogQuery, want: list[str]
) -> None:
    store.append(1, [*lines("a", "b"), *lines("c", rank=1), *lines("d", at_s=9.0, rank=None)])
    assert texts(store.read(1, wanted)) == want


def test_the_last_lines_are_the_last_that_are_wanted(store: LogStore) -> None:
    store.append(1, [*lines("a", "b"), *lines("x", rank=1)])
    assert [kept.line.text for kept in store.read(1, LogQuery(rank=0)).last(1)] == ["b"]


def test_pages_follow_one_another(store: LogStore) -> None:
    store.append(1, lines(*"abcdef"))
    reader = store.read(1, LogQuery())
    pages = [[kept.line.text for kept in reader.more(4)] for _ in range(3)]
    assert pages == [["a", "b", "c", "d"], ["e", "f"], []]


def test_a_line_that_a_crash_has_torn_is_skipped_and_the_next_are_whole(
    store: LogStore, reopened: Reopened, tmp_path: Path
) -> None:
    store.append(1, lines("a", "b"))
    store.close()
    path = tmp_path / "1.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    again = reopened()
    again.append(1, lines("c"))
    assert texts(again.read(1, LogQuery())) == ["a", "c"]


def test_a_line_that_is_being_written_is_given_when_it_is_whole(
    store: LogStore, tmp_path: Path
) -> None:
    store.append(1, lines("a"))
    whole = (tmp_path / "1.jsonl").read_bytes()
    path = tmp_path / "5.jsonl"
    path.write_bytes(whole[:10])
    reader = store.read(5, LogQuery())
    assert texts(reader) == []
    with path.open("ab") as file:
        file.write(whole[10:])
    assert texts(reader) == ["a"]


def test_many_jobs_may_print_at_once(store: LogStore) -> None:
    for _ in range(2):
        for job in range(100):
            store.append(job, lines(f"of {job}"))
    assert all(texts(store.read(job, LogQuery())) == [f"of {job}"] * 2 for job in range(100))


def test_a_lease_runs_from_the_last_beat() -> None:
    leases = NodeLeases(10.0)
    leases.renew("a", 0.0)
    leases.renew("b", 3.0)
    leases.renew("a", 5.0)
    assert leases.next_end_s() == 13.0
    assert leases.run_out(12.9) == []
    assert leases.run_out(13.0) == ["b"]
    leases.end("b")
    assert leases.left_s("b", 13.0) is None
    assert leases.left_s("a", 13.0) == 2.0


def test_lines_of_jobs_that_a_lost_journal_knew_are_not_those_of_new_ones(tmp_path: Path) -> None:
    old = LogStore(tmp_path / "logs")
    old.append(1, lines("of another job 1"))
    old.close()
    set_aside(tmp_path / "logs", tmp_path / "before")
    new = LogStore(tmp_path / "logs")
    assert new.read(1, LogQuery()).last(10) == []
    assert (tmp_path / "before" / "1.jsonl").exists()
    set_aside(tmp_path / "none", tmp_path / "before")  # a first start has nothing to move

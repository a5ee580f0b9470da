"""What jobs print: kept in files, sent in batches."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coddl.agent import logs
from coddl.agent.logs import LogSpool
from coddl.api.wire import LogLine


@pytest.fixture
def book(tmp_path: Path) -> Iterator[LogSpool]:
    book = LogSpool(tmp_path)
    yield book
    book.close()


def line(text: str) -> LogLine:
    return LogLine(1_000_000_000.5, 2, 0, 0, "stdout", text)


def sent(book: LogSpool) -> dict[int, list[str]]:
    return {batch.job: [each.text for each in batch.lines] for batch in book.take()}


def test_lines_are_sent_once_in_their_order_job_by_job(book: LogSpool) -> None:
    for job, text in ((1, "a"), (2, "b"), (1, "c")):
        book.add(job, line(text))
    assert sent(book) == {1: ["a", "c"], 2: ["b"]}
    assert sent(book) == {}


def test_every_line_is_in_the_file_of_its_job(book: LogSpool) -> None:
    book.add(7, line("hello"))
    book.close()
    assert book.path(7).read_text() == "2001-09-09T01:46:40.500+00:00 a2 w0 stdout hello\n"


def test_what_is_printed_too_fast_is_dropped_and_a_line_says_so(tmp_path: Path) -> None:
    book = LogSpool(tmp_path, waiting_max=2)
    for text in "abcde":
        book.add(1, line(text))
    assert sent(book) == {
        1: ["3 lines were not sent to the server; the log on the node has them", "d", "e"]
    }
    book.close()
    assert len(book.path(1).read_text().splitlines()) == 5


def test_long_lines_make_small_batches(book: LogSpool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "BATCH_CHARS_MAX", 10)
    for text in ("12345678", "12345678", "9"):
        book.add(1, line(text))
    assert sent(book) == {1: ["12345678", "12345678"]}
    assert sent(book) == {1: ["9"]}


def test_what_could_not_be_sent_comes_first_the_next_time(book: LogSpool) -> None:
    book.add(1, line("a"))
    book.add(1, line("b"))
    (batch,) = book.take()
    book.add(1, line("c"))
    book.put_back(batch)
    assert sent(book) == {1: ["a", "b", "c"]}


def test_a_file_is_cut_when_it_is_large(tmp_path: Path) -> None:
    book = LogSpool(tmp_path, file_bytes_max=200)
    for number in range(21):
        book.add(1, line(f"{number}"))
    book.close()
    kept = list(tmp_path.iterdir())
    assert sorted(path.name for path in kept) == ["1.log", "1.log.1"]
    assert sum(path.stat().st_size for path in kept) < 600


def test_a_line_without_an_end_is_cut(book: LogSpool) -> None:
    book.add(1, line("x" * 20_000))
    (text,) = sent(book)[1]
    assert text.endswith("x… (20,000 characters)")


def test_many_jobs_do_not_use_up_the_files(book: LogSpool) -> None:
    for job in range(logs.OPEN_MAX + 5):
        book.add(job, line("a"))
        book.add(0, line("b"))  # its file is closed at times, and opened again
    book.close()
    assert len(book.path(0).read_text().splitlines()) == logs.OPEN_MAX + 6


def test_a_disk_that_refuses_ends_nothing(tmp_path: Path) -> None:
    book = LogSpool(tmp_path / "logs")
    (tmp_path / "logs" / "1.log").mkdir()
    book.add(1, line("a"))
    assert sent(book) == {1: ["a"]}

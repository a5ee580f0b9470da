"""What jobs print: a file of JSON lines for each, cut off when it grows too large.

A job has at most two files, the newer being written to; a reader goes through both and then waits
for more at the end, whatever is renamed under it.
"""

import errno
import io
import os
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from coddl.api.wire import LogLine

FILE_BYTES_MAX: Final = 16 << 20
OPEN_MAX: Final = 64
PAGE_LINES: Final = 1_000


class StoredLogLine(msgspec.Struct, frozen=True, array_like=True):
    """A line with its number, which grows within a job."""

    number: int
    line: LogLine


class LogQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Filter for the lines of a request."""

    after: int = 0
    since_s: float | None = None
    rank: int | None = None

    def has(self, kept: StoredLogLine) -> bool:
        """Return whether a line is among them."""
        return (
            kept.number > self.after
            and (self.since_s is None or kept.line.at_s >= self.since_s)
            and (self.rank is None or kept.line.rank == self.rank)
        )


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(StoredLogLine)


def set_aside(folder: Path, to: Path) -> None:
    """Move lines of jobs that a lost journal knew: new jobs will have their numbers."""
    if next(folder.glob("*.jsonl"), None) is not None:
        folder.rename(to)


class LogStore:
    """Keeps lines of jobs. One thread writes; any may read."""

    def __init__(self, folder: Path, *, file_bytes_max: int = FILE_BYTES_MAX) -> None:
        self._folder = folder
        self._file_bytes_max = file_bytes_max
        self._open: OrderedDict[int, _Writer] = OrderedDict()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def append(self, job: int, lines: Sequence[LogLine]) -> None:
        """Keep lines; raises OSError if there is no room, and has lost them then."""
        writer = self._open.pop(job, None) or _Writer(*self._paths(job), self._file_bytes_max)
        self._open[job] = writer
        while len(self._open) > OPEN_MAX:
            self._open.popitem(last=False)[1].close()
        writer.write(lines)

    def has(self, job: int) -> bool:
        """Return whether there are lines of a job."""
        return any(path.exists() for path in self._paths(job))

    def read(self, job: int, wanted: LogQuery) -> "LogReader":
        """Return a reader of a job's lines, from the oldest that is wanted."""
        return LogReader(*self._paths(job), wanted)

    def close(self) -> None:
        """Close the files."""
        for writer in self._open.values():
            writer.close()
        self._open.clear()

    def _paths(self, job: int) -> tuple[Path, Path]:
        return self._folder / f"{job}.jsonl", self._folder / f"{job}.1.jsonl"


class _Writer:
    """Writes a job's newer file."""

    def __init__(self, path: Path, older: Path, bytes_max: int) -> None:
        self._path, self._older, self._bytes_max = path, older, bytes_max
        self._number = max(_last_number(older), _last_number(path))
        self._is_torn: bool  # the file ends within a line
        self._file = self._reopened()

    def write(self, lines: Sequence[LogLine]) -> None:
        if self._file.tell() > self._bytes_max:
            self._file.close()
            os.replace(self._path, self._older)
            self._file = self._reopened()
        kept = [StoredLogLine(self._number + 1 + i, line) for i, line in enumerate(lines)]
        self._number += len(kept)
        data = b"\n" * self._is_torn + b"".join(_encoder.encode(each) + b"\n" for each in kept)
        self._is_torn = True  # unless all of it is written
        if self._file.write(data) != len(data):
            raise OSError(errno.ENOSPC, "no space left for all lines", str(self._path))
        self._is_torn = False

    def close(self) -> None:
        self._file.close()

    def _reopened(self) -> io.FileIO:
        file = io.FileIO(os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600), "r+")
        self._is_torn = False
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            self._is_torn = file.read(1) != b"\n"  # by a crash
        return file


class LogReader:
    """Gives a job's lines, and later those that have come since."""

    def __init__(self, path: Path, older: Path, wanted: LogQuery) -> None:
        self._path, self._wanted = path, wanted
        # The newer first: if it is renamed in between, we see it twice rather than never.
        newer = _opened(path)
        self._files = [file for file in (_opened(older), newer) if file is not None]
        self._seen = wanted.after
        self._rest = b""

    def more(self, limit: int = PAGE_LINES) -> list[StoredLogLine]:
        """Return the next wanted lines, up to a limit; none: there are none now."""
        found: list[StoredLogLine] = []
        for kept in self._lines():
            self._seen = kept.number
            if self._wanted.has(kept):
                found.append(kept)
            if len(found) >= limit:
                break
        return found

    def last(self, count: int) -> list[StoredLogLine]:
        """Return the last lines that are wanted, of all that there are now."""
        newest: deque[StoredLogLine] = deque(maxlen=count)
        while page := self.more():
            newest.extend(page)
        return list(newest)

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()
        self._files = []

    def _lines(self) -> Iterator[StoredLogLine]:
        while self._files or self._find_next():
            while line := self._files[0].readline():
                self._rest += line
                if not self._rest.endswith(b"\n"):
                    break  # it is being written
                whole, self._rest = self._rest, b""
                if (kept := _kept(whole)) is not None and kept.number > self._seen:
                    yield kept
            if not self._leave_finished():
                return

    def _leave_finished(self) -> bool:
        """Go on to the next file if this one will not grow any more."""
        if len(self._files) == 1:
            return self._find_next()  # then this one is read once more, and is at its end for sure
        self._files.pop(0).close()
        self._rest = b""
        return True

    def _find_next(self) -> bool:
        """Open the file that has taken the place of the last one, if one has."""
        newer = _opened(self._path)
        if newer is None:
            return False
        if self._files and os.path.sameopenfile(newer.fileno(), self._files[-1].fileno()):
            newer.close()
            return False
        self._files.append(newer)
        return True


def _opened(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None


def _kept(line: bytes) -> StoredLogLine | None:
    try:
        return _decoder.decode(line)
    except msgspec.DecodeError:
        return None  # torn by a crash


def _last_number(path: Path) -> int:
    """Find the number of a file's last whole line; 0 if there is none."""
    file = _opened(path)
    if file is None:
        return 0
    with file:
        size = file.seek(0, os.SEEK_END)
        block = 1 << 16
        while True:
            start = max(0, size - block)
            file.seek(start)
            for line in reversed(file.read().splitlines()):
                if (kept := _kept(line)) is not None:
                    return kept.number
            if start == 0:
                return 0
            block *= 2

"""What jobs print on this node: every line into a file, and in batches to the server.

Lines come from the threads that hear them. What can't be sent fast enough is dropped, oldest first,
and a line says how much; the file has it.
"""

import contextlib
import threading
from collections import Counter, deque
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

import msgspec

from coddl.api.wire import LogLine, Logs

WAITING_MAX: Final = 10_000  # lines that may wait for the server
BATCH_MAX: Final = 1_000
BATCH_CHARS_MAX: Final = 1 << 20  # a server hangs up at messages that are too large
FILE_BYTES_MAX: Final = 8 << 20  # and as much again in the file before it
FILES_MAX: Final = 500
OPEN_MAX: Final = 64
LINE_CHARS_MAX: Final = 16_384
OURS: Final = "coddl"  # the stream of what we say ourselves


@dataclass(slots=True)
class _LogFile:
    file: IO[bytes]
    bytes_: int

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.file.close()


class LogSpool:
    """The lines of all jobs here. For any thread."""

    def __init__(
        self,
        folder: Path,
        *,
        waiting_max: int = WAITING_MAX,
        file_bytes_max: int = FILE_BYTES_MAX,
    ) -> None:
        self._folder = folder
        self._waiting_max = waiting_max
        self._file_bytes_max = file_bytes_max
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, LogLine]] = deque()
        self._dropped: Counter[int] = Counter()
        self._files: dict[int, _LogFile] = {}  # the one opened last is last
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, job: int, line: LogLine) -> None:
        """Keep a line."""
        if len(line.text) > LINE_CHARS_MAX:
            text = f"{line.text[:LINE_CHARS_MAX]}… ({len(line.text):,} characters)"
            line = msgspec.structs.replace(line, text=text)
        with self._lock:
            self._write(job, line)
            self._waiting.append((job, line))
            if len(self._waiting) > self._waiting_max:
                self._dropped[self._waiting.popleft()[0]] += 1

    def take(self) -> list[Logs]:
        """Give what is to be sent now, at most a batch; told once, and forgotten."""
        with self._lock:
            lines: dict[int, list[LogLine]] = {}
            count = chars = 0
            while self._waiting and count < BATCH_MAX and chars < BATCH_CHARS_MAX:
                job, line = self._waiting.popleft()
                count, chars = count + 1, chars + len(line.text)
                lines.setdefault(job, []).extend([*self._gap(job, line), line])
            for each in self._files.values():
                with contextlib.suppress(OSError):
                    each.file.flush()
        return [Logs(job=job, lines=tuple(said)) for job, said in lines.items()]

    def take_all(self, job: int) -> list[Logs]:
        """Give all that a job has printed, in batches; told once, and forgotten."""
        with self._lock:
            mine = [line for other, line in self._waiting if other == job]
            self._waiting = deque(each for each in self._waiting if each[0] != job)
            gap = self._gap(job, mine[0]) if mine else []
        batches: list[list[LogLine]] = [gap]
        chars = 0
        for line in mine:
            if len(batches[-1]) >= BATCH_MAX or chars >= BATCH_CHARS_MAX:
                batches.append([])
                chars = 0
            batches[-1].append(line)
            chars += len(line.text)
        return [Logs(job=job, lines=tuple(lines)) for lines in batches if lines]

    def _gap(self, job: int, line: LogLine) -> list[LogLine]:
        """Say, before a line, what is missing there."""
        if not (missing := self._dropped.pop(job, 0)):
            return []
        text = f"{missing:,} lines were not sent to the server; the log on the node has them"
        return [LogLine(line.at_s, line.attempt, -1, None, OURS, text)]

    def put_back(self, batch: Logs) -> None:
        """Keep a batch that could not be sent for the next time."""
        with self._lock:
            self._waiting.extendleft((batch.job, line) for line in reversed(batch.lines))
            while len(self._waiting) > self._waiting_max:
                self._dropped[self._waiting.popleft()[0]] += 1

    def close(self) -> None:
        """Let go of the files."""
        with self._lock:
            for opened in self._files.values():
                opened.close()
            self._files.clear()

    def path(self, job: int) -> Path:
        """Name the file of a job; the one before it ends in `.1`."""
        return self._folder / f"{job}.log"

    def _write(self, job: int, line: LogLine) -> None:
        at = datetime.fromtimestamp(line.at_s, UTC).isoformat(timespec="milliseconds")
        who = "-" if line.worker < 0 else f"w{line.worker}"
        text = f"{at} a{line.attempt} {who} {line.stream} {line.text}\n"
        data = text.encode(errors="replace")
        # A full disk must not end a training: the server still gets the line.
        with contextlib.suppress(OSError):
            opened = self._opened(job)
            opened.file.write(data)
            opened.bytes_ += len(data)
            if opened.bytes_ > self._file_bytes_max:
                self._files.pop(job).close()
                self.path(job).replace(self.path(job).with_suffix(".log.1"))

    def _opened(self, job: int) -> _LogFile:
        if job not in self._files:
            if len(self._files) >= OPEN_MAX:
                self._files.pop(next(iter(self._files))).close()
            file = self.path(job).open("ab")
            self._files[job] = _LogFile(file, file.tell())
            if not file.tell():
                self._make_room()
        return self._files[job]

    def _make_room(self) -> None:
        """Remove the files that were written longest ago, if there are many."""
        found = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in found[:-FILES_MAX]:
            path.unlink(missing_ok=True)

"""Writes what happened when as a trace that ui.perfetto.dev and chrome://tracing open."""

import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor.worker_record import WorkerRecord

SUPERVISOR: Final = 1
FIRST_WORKER: Final = 100  # workers get this plus their number: pids may repeat, numbers don't

Span = Sequence[Any]  # name, thread, start_ns, duration_ns, then perhaps args; as JSON brings it


class TraceEvents:
    """A file of trace events, written as they come; whole once closed."""

    def __init__(self, path: Path, tell: Callable[[TrainingError], None]) -> None:
        self._path = path
        self._is_lost = False
        self._tell = tell  # of the first thing that could not be written; then training goes on
        try:
            self._file = path.open("w", encoding="utf-8")
        except OSError as error:
            raise self._refused(error) from None
        self._write("[")
        self._separator = "\n"
        self._threads: dict[tuple[int, str], int] = {}
        self._name_process(SUPERVISOR, "supervisor")

    def begin_worker(self, record: WorkerRecord, now_s: float) -> None:
        """Name a worker's track, and show how long it took to come to its loop."""
        worker, slot, started_s = record.number, record.slot.number, record.started_s
        self._name_process(FIRST_WORKER + worker, f"worker {worker} (slot {slot})")
        took_ns = int((now_s - started_s) * 1e9)
        span = (f"start worker {worker}", f"slot {slot}", int(started_s * 1e9), took_ns)
        self.spans(None, [span])

    def spans(self, worker: int | None, spans: Sequence[Span]) -> None:
        """Add what a worker (or, without one, the supervisor) did."""
        process = SUPERVISOR if worker is None else FIRST_WORKER + worker
        for name, thread, start_ns, duration_ns, *args in spans:
            self._add(
                {"ph": "X", "name": name, "pid": process, "tid": self._thread(process, thread)}
                | {"ts": start_ns / 1e3, "dur": duration_ns / 1e3}
                | ({"args": args[0]} if args else {})
            )

    def phase(self, generation: int, name: str, start_s: float, end_s: float) -> None:
        """Add a phase of a generation; those of several may overlap."""
        about = {"cat": "generation", "id": generation, "name": name, "pid": SUPERVISOR, "tid": 0}
        for kind, at_s in (("b", start_s), ("e", end_s)):
            self._add({"ph": kind, "ts": at_s * 1e6, **about})

    def close(self) -> None:
        """Finish the file."""
        self._write("\n]\n")
        with contextlib.suppress(OSError):
            self._file.close()

    def _thread(self, process: int, name: str) -> int:
        key = (process, name)
        if key not in self._threads:
            self._threads[key] = len(self._threads) + 1
            self._add_name("thread_name", process, self._threads[key], name)
        return self._threads[key]

    def _name_process(self, process: int, name: str) -> None:
        self._add_name("process_name", process, 0, name)

    def _add_name(self, kind: str, process: int, thread: int, name: str) -> None:
        self._add({"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}})

    def _add(self, event: dict[str, object]) -> None:
        self._write(self._separator + json.dumps(event))
        self._separator = ",\n"

    def _write(self, text: str) -> None:
        if self._is_lost:
            return
        try:
            self._file.write(text)
        except OSError as error:
            self._is_lost = True
            self._tell(self._refused(error))

    def _refused(self, error: OSError) -> TrainingError:
        return TrainingError(
            f"--trace {self._path} can't be written", f"{error.strerror}", "--trace trace.json"
        )

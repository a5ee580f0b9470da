"""Metrics that jobs report over time: a file of JSON lines per job, next to its logs.

Samples are soft: nothing is decided on them, and a crash loses the last seconds. A job has a sample
whenever its training is a hundredth further: some 230 while its steps grow tenfold, however long it
trains, so that no file grows large and thousands of jobs cost little. Files are written in a thread
of their own.
"""

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec
import structlog

from coddl.api.wire import RunProgress

FURTHER: Final = 0.01  # by which part of its steps a training must be further for another sample
WRITE_EVERY_S: Final = 2.0
FILE_BYTES_MAX: Final = 1 << 20  # a larger one loses every second sample
NAMES_MAX: Final = 64  # of metrics in a sample
NAME_MAX: Final = 100  # characters

T = TypeVar("T")

log = structlog.get_logger(__name__)


class MetricSample(msgspec.Struct, frozen=True, array_like=True):
    """A job's metrics at one moment."""

    at_s: float
    step: int
    values: dict[str, float | None]  # by name; None: it was NaN or infinite


class MetricPoint(NamedTuple):
    """A value of one metric."""

    step: int
    at_s: float
    value: float | None


class _Told(NamedTuple):
    at_s: float
    run: RunProgress


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(MetricSample)


class MetricLog:
    """Keeps samples of jobs. `hear` and `end` are for one thread, and never wait; any may read."""

    def __init__(self, folder: Path, *, file_bytes_max: int = FILE_BYTES_MAX) -> None:
        self._folder, self._file_bytes_max = folder, file_bytes_max
        self._sampled: dict[int, int] = {}  # by job: the step of its last sample
        self._newest: dict[int, _Told] = {}  # by job: what was reported since
        self._unwritten: dict[int, list[_Told]] = {}
        self._queue = threading.Lock()  # for `_unwritten`
        self._files = threading.Lock()
        self._is_over = threading.Event()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._writer = threading.Thread(target=self._write_on, name="metrics", daemon=True)
        self._writer.start()

    def hear(self, run: RunProgress, at_s: float) -> None:
        """Take in what a run tells, and keep it if the training is further."""
        job, step = run.progressed.job, run.progressed.step
        last = self._sampled.get(job)
        if last is not None and last <= step < last + max(1.0, FURTHER * last):
            self._newest[job] = _Told(at_s, run)
            return
        self._newest.pop(job, None)
        self._sampled[job] = step
        self._put(job, _Told(at_s, run))

    def end(self, job: int) -> None:
        """Keep the last that a run has told."""
        self._sampled.pop(job, None)
        if (told := self._newest.pop(job, None)) is not None:
            self._put(job, told)

    def series(self, job: int, most: int) -> dict[str, list[MetricPoint]]:
        """Return at most `most` points of each metric, the first and the last among them.

        What was trained again counts as it went the last time.
        """
        self._write()
        return {name: evenly(points, most) for name, points in _points(self._read(job)).items()}

    def close(self) -> None:
        """Write what is left."""
        self._is_over.set()
        self._writer.join()
        for job in list(self._newest):
            self.end(job)
        self._write()

    def _put(self, job: int, told: _Told) -> None:
        with self._queue:
            self._unwritten.setdefault(job, []).append(told)

    def _write_on(self) -> None:
        while not self._is_over.wait(WRITE_EVERY_S):
            self._write()

    def _write(self) -> None:
        with self._files:
            with self._queue:
                unwritten, self._unwritten = self._unwritten, {}
            for job, told in unwritten.items():
                try:
                    self._append(job, told)
                except OSError as error:
                    log.warning("metrics_lost", job=job, samples=len(told), because=str(error))

    def _append(self, job: int, told: Iterable[_Told]) -> None:
        lines = [_encoder.encode(sample_of(each.run, each.at_s)) for each in told]
        flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        with open(os.open(self._path(job), flags, 0o600), "wb") as file:
            # It begins with an end of line: a crash may have torn the last one.
            file.write(b"".join(b"\n" + line for line in lines))
            is_large = file.seek(0, os.SEEK_END) > self._file_bytes_max
        if is_large:
            self._thin(job)

    def _thin(self, job: int) -> None:
        samples = self._read(job)
        kept = [*samples[:-1:2], *samples[-1:]]
        draft = self._path(job).with_suffix(".draft")
        draft.write_bytes(b"".join(b"\n" + _encoder.encode(each) for each in kept))
        os.replace(draft, self._path(job))

    def _read(self, job: int) -> list[MetricSample]:
        try:
            lines = self._path(job).read_bytes().splitlines()
        except FileNotFoundError:
            return []
        return [sample for line in lines if line and (sample := _sample(line)) is not None]

    def _path(self, job: int) -> Path:
        return self._folder / f"{job}.jsonl"


def sample_of(run: RunProgress, at_s: float) -> MetricSample:
    """Return a run's report as a sample: what its script logged, and what was measured."""
    logged: dict[str, float | None] = {**run.metrics, **dict.fromkeys(run.not_finite)}
    values = {name: logged[name] for name in sorted(logged) if len(name) <= NAME_MAX}
    values = dict(list(values.items())[:NAMES_MAX])
    measured = {"step_s": run.progressed.step_s, "samples_per_s": run.samples_per_s}
    values |= {name: value for name, value in measured.items() if value > 0.0}
    return MetricSample(at_s, run.progressed.step, values)


def _points(samples: Iterable[MetricSample]) -> Mapping[str, list[MetricPoint]]:
    """Put samples together by metric. Of equal values in a row, the first and the last stay:
    a metric keeps its value until it is logged again.
    """
    last_way: list[MetricSample] = []
    for sample in samples:
        while last_way and last_way[-1].step >= sample.step:
            last_way.pop()  # the training went on from an older state
        last_way.append(sample)
    found: dict[str, list[MetricPoint]] = {}
    for sample in last_way:
        for name, value in sample.values.items():
            points = found.setdefault(name, [])
            if len(points) > 1 and points[-2].value == points[-1].value == value:
                points.pop()
            points.append(MetricPoint(sample.step, sample.at_s, value))
    return found


def evenly(items: Sequence[T], most: int) -> list[T]:
    """Return the first, the last, and as many between them as there may be, evenly by number."""
    count = min(most, len(items))
    return [items[at * (len(items) - 1) // max(1, count - 1)] for at in range(count)]


def _sample(line: bytes) -> MetricSample | None:
    try:
        return _decoder.decode(line)
    except msgspec.DecodeError:
        return None  # torn by a crash

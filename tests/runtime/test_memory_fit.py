"""Which slices fit in memory, as far as is known. Tables; no processes."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor.changes import Since
from coddl.runtime.supervisor.job import Job
from coddl.runtime.supervisor.job_status import RETIRED, JobStatus
from coddl.runtime.supervisor.memory_fit import (
    GIB,
    BatchSplit,
    MemoryFit,
    RememberedLimit,
    SizeLimit,
)
from coddl.runtime.supervisor.resize_schedule import ResizeSchedule
from coddl.runtime.supervisor.size_limits import SizeLimiter
from coddl.runtime.supervisor.worker_history import WorkerHistory
from coddl.runtime.supervisor.worker_record import WorkerRecord
from coddl.runtime.wire import Message

BATCH = BatchSplit(64, 64)
MICRO_BATCHES = BatchSplit(64, 64, micro_batch=16)
NO_LIMIT = SizeLimit()


def memory_fit(
    *peaks_gib: tuple[int, float],
    size: int = 2,
    device_gib: float = 79.0,
    exchange_gib: float = 0.0,
) -> MemoryFit:
    """Give what follows from peaks, by samples, when groups down to a size have trained."""
    known = MemoryFit()
    for samples, peak_gib in peaks_gib:
        known.measured(
            samples=samples,
            peak_bytes=int(peak_gib * GIB),
            exchange_bytes=int(exchange_gib * GIB),
            device_bytes=int(device_gib * GIB),
        )
    known.trained(size)
    return known


PREDICTED = {
    "one size tells nothing": (memory_fit((32, 70.0)), 1),
    "the line stays below what the GPU has": (memory_fit((16, 20.0), (32, 36.0)), 1),
    "the line ends above it": (memory_fit((16, 27.0), (32, 48.0)), 2),
    "of several sizes the outer ones count": (memory_fit((16, 27.0), (22, 90.0), (32, 48.0)), 2),
    "by so little that it may be noise": (memory_fit((16, 26.0), (32, 44.0)), 1),
    "neighbours are too close to tell": (memory_fit((21, 30.0), (22, 31.5), size=3), 1),
    "not on two workers either": (memory_fit((8, 20.0), (16, 42.0), size=4), 3),
    "a larger slice that needed less": (memory_fit((16, 40.0), (32, 30.0)), 1),
    "the worst of the small and the best of the large": (
        memory_fit((16, 27.0), (16, 30.0), (32, 48.0), (32, 44.0)),
        1,
    ),
    "the larger of two GPUs": (memory_fit((16, 27.0), (32, 48.0), device_gib=100.0), 1),
    "it has trained there": (memory_fit((16, 27.0), (32, 48.0), size=1), 1),
    "it has trained on two": (memory_fit((8, 20.0), (16, 42.0), size=2), 2),
    "alone it does not exchange": (memory_fit((16, 27.0), (32, 48.0), exchange_gib=8.0), 1),
}


@pytest.mark.parametrize(("known", "least"), PREDICTED.values(), ids=PREDICTED.keys())
def test_what_a_larger_slice_needs_follows_from_two_sizes(known: MemoryFit, least: int) -> None:
    assert known.limit(BATCH).workers_min == least


def test_a_prediction_says_what_it_rests_on() -> None:
    limit = memory_fit((16, 27.5), (32, 48.6)).limit(BATCH)
    because = "a slice of 64 samples would need about 90.8 GiB of the GPU's 79 GiB"
    assert limit == SizeLimit(2, f"{because} (measured at 16 and 32)", "predicted", 64)


def test_what_only_a_group_needs_is_left_out_for_a_worker_alone() -> None:
    known = memory_fit((8, 20.0), (16, 38.0), size=4, device_gib=68.0, exchange_gib=10.0)
    # 32 samples need 28 + 2 * 18 GiB; in a group, 10 more.
    assert known.limit(BatchSplit(32, 32)).workers_min == 1
    assert known.limit(BatchSplit(64, 64)).workers_min == 3


def test_a_slice_that_ran_out_counts_for_more_than_any_that_trained() -> None:
    known = memory_fit((16, 20.0), (32, 36.0), size=1)
    known.ran_out(64)
    because = "a slice of 64 samples does not fit in memory"
    assert known.limit(BATCH) == SizeLimit(2, because, "tried", 64)
    known.ran_out(22)
    assert known.limit(BATCH).workers_min == 4
    known.ran_out(64)  # a repeat
    assert known.limit(BATCH).workers_min == 4
    known.ran_out(1)
    assert known.limit(BATCH).workers_min is None


SHARED = {
    "the same batch": (BatchSplit(64, 64), 2),
    "half of it": (BatchSplit(32, 32), 1),
    "twice as much": (BatchSplit(128, 128), 3),
    "in passes that are small enough": (BatchSplit(64, 64, 32), 1),
    "in passes that are not": (BatchSplit(256, 256, 100), 5),
    "no size is enough": (BatchSplit(512, 4), 1),
}


@pytest.mark.parametrize(("batch_split", "least"), SHARED.values(), ids=SHARED.keys())
def test_what_another_job_found_counts_for_a_batch_of_its_own(
    batch_split: BatchSplit, least: int
) -> None:
    known = MemoryFit()
    known.remember(RememberedLimit(model=7, samples=64, job=3))
    known.remember(RememberedLimit(model=7, samples=80, job=4))
    assert known.limit(batch_split).workers_min == least


def test_what_another_job_found_says_so_and_gives_way_to_what_has_trained() -> None:
    known = MemoryFit()
    known.remember(RememberedLimit(model=7, samples=64, job=3))
    because = "a slice of 64 samples does not fit in memory, as job 3 found"
    assert known.limit(BATCH) == SizeLimit(2, because, "remembered", 64)
    known.trained(1)
    assert known.limit(BATCH) == NO_LIMIT


def test_passes_of_a_micro_batch_are_what_runs_out() -> None:
    known = MemoryFit()
    known.ran_out(16)
    limit = known.limit(MICRO_BATCHES)
    assert limit.because == "a pass of 16 samples does not fit in memory"
    assert limit.workers_min == 3  # 22 samples in two passes of 11


def test_peaks_are_shown() -> None:
    known = memory_fit((32, 2.0), (16, 1.0), (32, 3.0))
    for update_bytes in (2 * GIB, GIB, 0):
        known.measured(
            samples=16,
            peak_bytes=GIB,
            exchange_bytes=0,
            device_bytes=0,
            update_bytes=update_bytes,
        )
    assert known.as_data() == {
        "peak_bytes": {16: GIB, 32: 3 * GIB},
        "update_bytes": {16: 2 * GIB},
        "device_bytes": 79 * GIB,
    }


def test_a_profile_has_passes_and_updates() -> None:
    told, limits = supervisor(1)
    for samples, update_gib in ((64, 5.0), (32, 4.5)):
        limits.on_stepped(measured(samples, samples / 8, update_gib))
    profile = told.job_status.profiled({"is": "profile"})["profile"]
    assert profile["memory"] == [
        {"samples": 32, "peak_bytes": 4 * GIB},
        {"samples": 64, "peak_bytes": 8 * GIB},
    ]
    assert profile["update_memory"] == [
        {"samples": 32, "peak_bytes": int(4.5 * GIB)},
        {"samples": 64, "peak_bytes": 5 * GIB},
    ]


# What becomes of it.


@dataclass
class Recorder:
    """A supervisor that only takes note of what it is told to do."""

    job_status: JobStatus
    is_hosted: bool = False
    told: list[Message] = field(default_factory=list)
    done: list[object] = field(default_factory=list)

    def tell(self, event: Message) -> None:
        self.told.append(event)

    def fail(self, error: TrainingError, code: int) -> None:
        self.done.append((error.what, code))

    def stop(self, code: int) -> None:
        self.done.append(code)

    def set_workers(self, workers: int, since: Since = "decision") -> None:
        self.done.append((workers, since))


def supervisor(
    size: int, *limits: RememberedLimit, hosted: bool = False, **fields: Any
) -> tuple[Recorder, SizeLimiter]:
    at = Path("train.py")
    job = Job(name="job", script=at, argv=(), cwd=at, env={}, folder=at, limits=limits, **fields)
    about = {"parts": 64, "workers_max": 64, "model": 7}
    job_status = JobStatus(job, lambda: 0.0, target=size, about=about)
    job_status.coordinator.members = tuple(range(size))
    recorder = Recorder(job_status, hosted)
    return recorder, SizeLimiter(recorder)


def measured(samples: int, peak_gib: float, update_gib: float = 0.0) -> Message:
    peak = {"samples": samples, "peak_bytes": int(peak_gib * GIB), "exchange_bytes": 0}
    update = {"update_bytes": int(update_gib * GIB)}
    return {"is": "stepped", "memory": {**peak, **update, "device_bytes": 79 * GIB}}


def test_a_prediction_is_told_once_and_stops_nothing() -> None:
    told, limits = supervisor(4)
    limits.on_stepped(measured(16, 27.5))
    limits.on_stepped({"is": "stepped"})
    told.job_status.coordinator.members = (0, 1)
    limits.on_stepped(measured(32, 48.6))
    limits.on_stepped(measured(32, 48.6))
    (event,) = told.told
    assert (event["is"], event["workers_min"], event["evidence"]) == ("memory", 2, "predicted")
    assert told.job_status.limit.workers_min == 2
    assert told.done == []


def test_a_slice_that_runs_out_after_a_prediction_is_told_still() -> None:
    told, limits = supervisor(4)
    for samples, peak_gib in ((16, 27.5), (32, 48.6)):
        told.job_status.coordinator.members = tuple(range(64 // samples))
        limits.on_stepped(measured(samples, peak_gib))
    told.job_status.target = 1
    limits.on_out_of_memory(WorkerRecord(WorkerHistory(0, 0), "", 0.0, 0.0), 64)
    assert [(e["workers_min"], e["evidence"]) for e in told.told] == [
        (2, "predicted"),
        (2, "tried"),
    ]
    assert told.done == [(2, "decision")]


def test_a_job_that_ran_out_goes_where_it_is_expected_to_fit() -> None:
    told, limits = supervisor(4)
    for samples, peak_gib in ((8, 20.0), (16, 42.0)):
        limits.on_stepped(measured(samples, peak_gib))
    told.job_status.target = 1
    limits.on_out_of_memory(WorkerRecord(WorkerHistory(0, 0), "", 0.0, 0.0), 64)
    assert [(e["workers_min"], e["evidence"]) for e in told.told] == [
        (3, "predicted"),
        (2, "tried"),
        (3, "predicted"),
    ]
    assert told.done == [(4, "decision")]


def test_a_planned_resize_to_a_size_that_does_not_fit_is_left_out() -> None:
    told, _ = supervisor(2, resizes=((5, 1), (9, 3)))
    told.job_status.memory_fit.ran_out(64)
    schedule = ResizeSchedule(told)
    schedule.stepped(5)
    (problem,) = told.told
    assert problem["what"] == "job can't run on 1 workers"
    assert problem["because"] == "a slice of 64 samples does not fit in memory"
    schedule.stepped(9)
    assert told.done == [(3, "schedule")]


@pytest.mark.parametrize(
    ("model", "size", "least", "done"),
    [(7, 1, [2], [RETIRED]), (7, 2, [2], []), (8, 1, [], [])],
    ids=["too few", "enough", "another model"],
)
def test_a_job_does_not_begin_with_slices_that_another_one_ran_out_with(
    model: int, size: int, least: list[int], done: list[int]
) -> None:
    told, limits = supervisor(size, RememberedLimit(model, 64, 3), hosted=True)
    limits.on_prepared()
    assert [event["workers_min"] for event in told.told] == least
    assert told.done == done

"""Time and memory of a pass as functions of its samples."""

from dataclasses import replace

import pytest

from coddl.core.speed.profile import SliceMemory, SliceTime, TrainingProfile
from coddl.core.speed.slices import fitted_line, pass_times, passes_needed, peak_bytes

PROFILE = TrainingProfile("cpu", 32, (SliceTime(8, 0.5, 1.0),), 0.0, 0.0, 0.0, ())
GB = 10**9

LINES: dict[str, tuple[list[tuple[float, float]], tuple[float, float]]] = {
    "two points": ([(1, 3.0), (3, 7.0)], (1.0, 2.0)),
    "one size has no fixed part": ([(4, 2.0), (4, 4.0)], (0.0, 0.75)),
    "no cost falls with samples": ([(1, 5.0), (2, 3.0)], (4.0, 0.0)),
    "no fixed part is below zero": ([(1, 1.0), (2, 3.0)], (0.0, 7 / 5)),
}


@pytest.mark.parametrize(("points", "want"), LINES.values(), ids=LINES.keys())
def test_a_line_is_fitted(points: list[tuple[float, float]], want: tuple[float, float]) -> None:
    assert fitted_line(points) == pytest.approx(want)


def test_relative_errors_count_small_slices_as_much_as_large_ones() -> None:
    points = [(1, 1.1), (10, 9.9), (1000, 1050.0)]
    plain, relative = fitted_line(points), fitted_line(points, relative=True)
    assert abs(relative.at(1) / 1.1 - 1) < abs(plain.at(1) / 1.1 - 1)


def test_forward_and_backward_are_fitted_apart() -> None:
    profile = replace(PROFILE, slices=(SliceTime(8, 0.5, 1.0), SliceTime(16, 0.9, 2.0)))
    times = pass_times(profile)
    assert times.forward == pytest.approx((0.1, 0.05, 0.0))
    assert times.backward == pytest.approx((0.0, 0.125, 0.0))
    assert times.at(32) == pytest.approx(1.7 + 4.0)


LAUNCHED: dict[str, tuple[tuple[SliceTime, ...], dict[int, float]]] = {
    "one size: as little as the host takes, no less": (
        (SliceTime(64, 1.0, 2.0, 0.2, 0.3),),
        {64: 3.0, 32: 1.5, 8: 0.5, 1: 0.5},
    ),
    "a pass that is all launching takes as long with fewer samples": (
        (SliceTime(64, 1.0, 2.0, 1.0, 1.9),),
        {64: 3.0, 8: 3.0},
    ),
    "a size that is all launching tells nothing of a sample": (
        (SliceTime(8, 0.5, 0.5, 0.5, 0.5), SliceTime(64, 1.0, 2.0, 0.5, 0.5)),
        {64: 3.0, 48: 2.25, 8: 1.0, 1: 1.0},
    ),
    "launches of one half are hidden behind the other half's computing": (
        (SliceTime(64, 1.0, 4.0, 0.5, 0.5),),
        {32: 2.5, 16: 1.25, 8: 1.0},
    ),
    "a size of which the host's time is not known": (
        (SliceTime(32, 0.5, 1.0), SliceTime(64, 1.0, 2.0, 0.2, 0.3)),
        {64: 3.0, 32: 1.5, 1: 0.5},
    ),
}


@pytest.mark.parametrize(("slices", "want"), LAUNCHED.values(), ids=LAUNCHED.keys())
def test_a_pass_takes_no_less_than_the_host(
    slices: tuple[SliceTime, ...], want: dict[int, float]
) -> None:
    times = pass_times(replace(PROFILE, slices=slices))
    assert {samples: times.at(samples) for samples in want} == pytest.approx(want)


MEMORY = (SliceMemory(8, 10 * GB), SliceMemory(16, 18 * GB))  # 2 GB, and 1 GB a sample
PASSES: dict[str, tuple[tuple[SliceMemory, ...], int, float, int | None]] = {
    "it fits whole": (MEMORY, 16, 18.1, 1),
    "it fits in two": (MEMORY, 16, 10.1, 2),
    "six at a time": (MEMORY, 16, 8.1, 3),
    "one at a time": (MEMORY, 16, 3.1, 16),
    "not even one": (MEMORY, 16, 2.9, None),
    "nothing was measured": ((), 16, 0.001, 1),
    "no samples": (MEMORY, 0, 2.5, 1),
    "one size: all but the state is of samples": (MEMORY[:1], 16, 10.1, 2),
}


@pytest.mark.parametrize(
    ("memory", "samples", "device_gb", "want"), PASSES.values(), ids=PASSES.keys()
)
def test_a_slice_takes_passes(
    memory: tuple[SliceMemory, ...], samples: int, device_gb: float, want: int | None
) -> None:
    profile = replace(PROFILE, memory=memory, state_bytes=2 * GB)
    assert passes_needed(profile, samples, device_gb * GB) == want


UPDATES = (SliceMemory(8, 12 * GB), SliceMemory(16, 13 * GB))  # 11 GB, and 1/8 GB a sample
PEAKS: dict[str, tuple[tuple[SliceMemory, ...], tuple[SliceMemory, ...], dict[int, int]]] = {
    "passes alone": (MEMORY, (), {1: 3, 8: 10, 32: 34}),
    "with few samples it is the update": (MEMORY, UPDATES[:1], {1: 12, 8: 12, 9: 12, 32: 34}),
    "which may keep something of each sample": (MEMORY, UPDATES, {0: 11, 8: 12, 32: 34}),
    "one size: nothing of an update is of samples": (MEMORY[:1], UPDATES[:1], {1: 12, 16: 18}),
}


@pytest.mark.parametrize(("memory", "updates", "want"), PEAKS.values(), ids=PEAKS.keys())
def test_a_peak_is_that_of_the_pass_or_of_the_update(
    memory: tuple[SliceMemory, ...], updates: tuple[SliceMemory, ...], want: dict[int, int]
) -> None:
    profile = replace(PROFILE, memory=memory, update_memory=updates, state_bytes=2 * GB)
    peak = peak_bytes(profile)
    assert peak is not None
    assert {n: peak.at(n) for n in want} == pytest.approx({n: gb * GB for n, gb in want.items()})


@pytest.mark.parametrize(
    ("device_gb", "want"), {18.1: 1, 13.1: 2, 12.1: 2, 11.6: 4, 11.1: None}.items()
)
def test_no_pass_is_too_small_for_its_update(device_gb: float, want: int | None) -> None:
    profile = replace(PROFILE, memory=MEMORY, update_memory=UPDATES)
    assert passes_needed(profile, 16, device_gb * GB) == want

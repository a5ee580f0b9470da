"""Loaders through changes of the group: no sample is lost, and their processes are kept."""

import os
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.runtime.elastic import PATIENCE_S, Elastic

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

BATCH = 12
PROCESSES = ("--loader-workers", "2")


def lines(folder: Path, file: str) -> dict[int, list[list[str]]]:
    """Give the words that each worker wrote down."""
    return {
        int(path.name.rpartition("-")[2]): [line.split() for line in path.read_text().splitlines()]
        for path in folder.glob(f"{file}-*")
    }


def check_batches(folder: Path, epochs: int = 2, steps: int = 100) -> None:
    """Fail unless all workers together had every sample once per epoch, in whole batches."""
    had: dict[tuple[int, int], list[int]] = {}
    for passes in lines(folder, "batches").values():
        for row in passes:
            epoch, step, *samples = map(int, row)
            had.setdefault((epoch, step), []).extend(samples)
    assert sorted(had) == [(epoch, step) for epoch in range(epochs) for step in range(steps)]
    for place, batch in had.items():
        assert len(batch) == BATCH, f"{place} has {sorted(batch)}"
    for number in range(epochs):
        counts = Counter(n for (epoch, _), batch in had.items() if epoch == number for n in batch)
        assert set(counts.values()) == {1}, "a sample was used twice"
        assert len(counts) == steps * BATCH


LOADERS = {
    "with processes": ("samples", *PROCESSES),
    "with persistent processes": ("samples", *PROCESSES, "--persistent"),
    "with processes that overtake each other": ("samples", *PROCESSES, "--out-of-order"),
    "with accumulation": ("samples", *PROCESSES, "--accumulate", "3"),
    "of batches that the dataset makes": ("batches",),
    "of batches that processes make": ("batches", *PROCESSES),
    "of a stream": ("stream",),
    "of a stream that processes read": ("stream", "--loader-workers", "1"),
    "of a stream that keeps a state": ("stateful",),
}


@pytest.mark.parametrize("args", LOADERS.values(), ids=LOADERS.keys())
def test_every_sample_is_used_once_through_resizes(tmp_path: Path, args: tuple[str, ...]) -> None:
    with Elastic(tmp_path, "feeding.py", *args, workers=1) as job:
        for step, workers in ((10, 2), (40, 3), (102, 1), (110, 2)):
            job.wait_step(step)
            job.ask("resize", workers=workers)
        job.finish()
    check_batches(tmp_path)
    assert job.sizes() == [1, 2, 3, 1, 2]


def test_short_epochs_end_where_a_change_was_expected(tmp_path: Path) -> None:
    args = ("samples", *PROCESSES, "--epochs", "40", "--steps", "3")
    with Elastic(tmp_path, "feeding.py", *args, workers=1) as job:
        for step, workers in ((4, 2), (25, 3), (50, 1), (75, 2)):
            job.wait_step(step)
            job.ask("resize", workers=workers)
        job.finish()
    check_batches(tmp_path, epochs=40, steps=3)


def test_workers_that_stay_keep_their_loader_processes(tmp_path: Path) -> None:
    with Elastic(tmp_path, "feeding.py", "samples", *PROCESSES, workers=1) as job:
        for step, workers in ((5, 2), (20, 3), (40, 1)):
            job.wait_step(step)
            job.ask("resize", workers=workers)
        job.finish()
    assert len(lines(tmp_path, "processes")[0]) == 2 * 2, "more than two per epoch"


@pytest.mark.parametrize("kept", [(), ("--persistent",)], ids=["by epoch", "persistent"])
def test_a_worker_starts_its_loader_processes_before_it_joins(
    tmp_path: Path, kept: tuple[str, ...]
) -> None:
    args = ("samples", *PROCESSES, "--epochs", "1", *kept)
    with Elastic(tmp_path, "feeding.py", *args, workers=1) as job:
        job.wait_step(5)
        job.ask("resize", workers=2)
        job.finish()
    assert [joined for _, joined in lines(tmp_path, "processes")[1]] == ["False"] * 2


def test_the_first_batch_is_loaded_before_the_group_changes(tmp_path: Path) -> None:
    args = ("samples", *PROCESSES, "--epochs", "1", "--linger")
    with Elastic(tmp_path, "feeding.py", *args, workers=1) as job:
        job.wait_step(5)
        job.ask("resize", workers=2)
        job.finish()
    assert (tmp_path / "lingered").exists()
    check_batches(tmp_path, epochs=1)


def test_processes_of_an_epoch_that_is_over_are_not_used(tmp_path: Path) -> None:
    """The script tells its dataset of each epoch, which processes started before don't hear."""
    args = ("samples", *PROCESSES, "--epochs", "3", "--steps", "30")
    env = {"HOLD": "1:before-arrived", "FIRST_JOINER": "1"}
    with Elastic(tmp_path, "feeding.py", *args, workers=1, env=env) as job:
        job.wait_step(2)
        job.ask("resize", workers=2, wait=False)
        job.wait_step(40)
        assert (tmp_path / "held").exists()
        (tmp_path / "go").touch()
        job.wait(lambda event: event["is"] == "resized" and event["to"] == 2)
        job.finish()
    check_batches(tmp_path, epochs=3, steps=30)
    assert [joined for _, joined in lines(tmp_path, "processes")[1]][2:4] == ["True"] * 2


def test_a_growth_that_is_cancelled_leaves_no_loader_process(tmp_path: Path) -> None:
    env = {"HOLD": "1:before-arrived", "FIRST_JOINER": "1"}
    args = ("samples", *PROCESSES, "--epochs", "1")
    with Elastic(tmp_path, "feeding.py", *args, workers=1, env=env) as job:
        job.wait_step(2)
        job.ask("resize", workers=2, wait=False)
        deadline_s = time.monotonic() + PATIENCE_S
        while not (tmp_path / "held").exists():
            assert time.monotonic() < deadline_s, job.story()
            time.sleep(0.05)
        started = [int(pid) for pid, _ in lines(tmp_path, "processes")[1]]
        assert len(started) == 2
        job.ask("resize", workers=1)
        job.settle(1)
        assert not [pid for pid in started if os.path.exists(f"/proc/{pid}")]
        job.finish()
    check_batches(tmp_path, epochs=1)


@pytest.mark.parametrize(("kind", "reads"), [("stream", True), ("stateful", False)])
def test_a_stream_that_keeps_a_state_is_not_read_from_the_start(
    tmp_path: Path, kind: str, reads: bool
) -> None:
    with Elastic(tmp_path, "feeding.py", kind, "--epochs", "1", workers=1) as job:
        job.wait_step(20)
        job.ask("resize", workers=2)
        job.finish()
    check_batches(tmp_path, epochs=1)
    rehearsed, later = BATCH, 10 * BATCH
    numbers = [int(number) for (number,) in lines(tmp_path, "read")[1]][rehearsed:]
    assert any(number < later for number in numbers) == reads


def test_a_stream_that_keeps_a_state_is_read_on_after_a_suspension(tmp_path: Path) -> None:
    with Elastic(tmp_path, "feeding.py", "stateful", "--epochs", "1", workers=2) as job:
        job.wait_step(20)
        job.ask("suspend")
        job.ask("resume", workers=1)
        job.finish()
    check_batches(tmp_path, epochs=1)
    last = max(lines(tmp_path, "read").items())[1]
    assert int(last[0][0]) >= 20 * BATCH, "it was read from the start"

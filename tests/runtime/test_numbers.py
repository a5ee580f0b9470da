"""The number of workers never changes the mathematics: default mode, up to the order of sums."""

from pathlib import Path

import pytest

from tests.runtime.elastic import Elastic, alone, line_of

pytest.importorskip("torch")
pytestmark = pytest.mark.slow


def weights(printed: str) -> list[float]:
    return [float(word) for word in line_of(printed, "weights").split()[1:]]


def trace(printed: str) -> list[tuple[int, float, float, float]]:
    lines = [line.split()[1:] for line in printed.splitlines() if line.startswith("trace ")]
    return [(int(step), float(loss), float(lr), float(norm)) for step, loss, lr, norm in lines]


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_rate_clipping_and_loss_are_those_of_one_worker(tmp_path: Path, workers: int) -> None:
    args = ("--trace", "--epochs", "2")
    lone = alone("net.py", *args)
    with Elastic(tmp_path, "net.py", *args, workers=workers) as job:
        printed = job.finish()
    mine, theirs = trace(printed), trace(lone)
    assert [(step, lr) for step, _, lr, _ in mine] == [(step, lr) for step, _, lr, _ in theirs]
    for column, tolerance in ((1, 2e-3), (3, 2e-2)):  # loss; norm of the gradient
        expected = [row[column] for row in theirs]
        assert [row[column] for row in mine] == pytest.approx(expected, rel=tolerance)
    assert weights(printed) == pytest.approx(weights(lone), abs=5e-3)


def test_strict_traces_are_equal_to_the_last_digit(tmp_path: Path) -> None:
    args = ("--trace", "--strict", "--epochs", "2")
    lone = trace(alone("net.py", *args))
    for workers in (2, 3):
        with Elastic(tmp_path / f"{workers}", "net.py", *args, workers=workers) as job:
            assert trace(job.finish()) == lone


KINDS = {"two-losses": 1e-3, "gan": 1e-3, "compiled": 1e-3, "scaled": 1e-3, "edited": 1e-3}


@pytest.mark.parametrize(("kind", "tolerance"), KINDS.items())
def test_other_ways_to_train_are_resized_without_a_trace(
    tmp_path: Path, kind: str, tolerance: float
) -> None:
    args = ("--kind", kind)
    lone = alone("mixed.py", *args)
    pace_s = "0.3" if kind == "compiled" else "0.1"  # joiners compile before they join
    with Elastic(tmp_path, "mixed.py", *args, "--pace-s", pace_s, workers=1) as job:
        job.wait_step(2)
        for size in (3, 2):
            job.ask("resize", workers=size)
        printed = job.finish()
    assert weights(printed) == pytest.approx(weights(lone), abs=tolerance)
    if kind == "compiled":
        assert line_of(printed, "graphs") == "graphs 1", "a resize must not compile anew"


def test_fused_training_is_resized_too(tmp_path: Path) -> None:
    args = ("--kind", "fused")
    lone = alone("mixed.py", *args)
    with Elastic(tmp_path, "mixed.py", *args, "--pace-s", "0.3", workers=1) as job:
        job.wait_step(2)
        job.ask("resize", workers=3)
        assert weights(job.finish()) == pytest.approx(weights(lone), abs=1e-3)


def test_loader_processes_hand_out_the_same_samples_through_resizes(tmp_path: Path) -> None:
    (tmp_path / "lone").mkdir()
    with Elastic(tmp_path / "lone", "ledger.py", "--pace-s", "0") as job:
        lone = line_of(job.finish(), "ledger")
    args = ("--loader-workers", "1", "--pace-s", "0.05")
    with Elastic(tmp_path, "ledger.py", *args, workers=1) as job:
        job.wait_step(2)
        for size in (3, 2, 4, 1):
            job.ask("resize", workers=size)
        assert line_of(job.finish(), "ledger") == lone


def test_a_slower_worker_gets_fewer_virtual_nodes(tmp_path: Path) -> None:
    args = ("--strict", "--epochs", "40", "--pace-s", "0.004")
    with Elastic(tmp_path, "net.py", *args, workers=2, env={"SLOW": "1:0.03"}) as job:
        change = job.wait(lambda e: e["is"] == "rebalanced")
        owned = {each["worker"]: each["virtual_nodes"] for each in job.status()["workers"]}
        assert change["members"] == [0, 1]
        assert owned[0] > owned[1] >= 1
        assert sum(owned.values()) == 8

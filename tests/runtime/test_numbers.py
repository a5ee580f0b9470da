"""The number of workers never changes what is optimised."""

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


@pytest.mark.parametrize("workers", [2, 3])
def test_rate_clipping_and_loss_are_those_of_one_worker(tmp_path: Path, workers: int) -> None:
    args = ("--exact", "--trace", "--epochs", "2")
    lone = alone("net.py", *args)
    with Elastic(tmp_path, "net.py", *args, workers=workers) as job:
        printed = job.finish()
    mine, theirs = trace(printed), trace(lone)
    assert [(step, lr) for step, _, lr, _ in mine] == [(step, lr) for step, _, lr, _ in theirs]
    for column in (1, 3):  # loss; norm of the gradient
        expected = [row[column] for row in theirs]
        assert [row[column] for row in mine] == pytest.approx(expected, rel=2e-3)
    assert weights(printed) == pytest.approx(weights(lone), abs=2e-3)


def test_resizes_do_not_show_in_the_loss(tmp_path: Path) -> None:
    args = ("--exact", "--trace", "--epochs", "4")
    lone = trace(alone("net.py", *args))
    with Elastic(tmp_path, "net.py", *args, "--pace-s", "0.03", workers=1) as job:
        for step, size in ((3, 3), (12, 2), (25, 4), (40, 1)):
            job.wait_step(step)
            job.ask("resize", workers=size)
        mine = trace(job.finish())
    assert [row[0] for row in mine] == list(range(64))
    assert [row[1] for row in mine] == pytest.approx([row[1] for row in lone], rel=5e-3)


def test_strict_traces_are_equal_to_the_last_digit(tmp_path: Path) -> None:
    args = ("--trace", "--strict", "--epochs", "2")
    lone = trace(alone("net.py", *args))
    for workers in (2, 3):
        with Elastic(tmp_path / f"{workers}", "net.py", *args, workers=workers) as job:
            assert trace(job.finish()) == lone


@pytest.mark.parametrize("mode", ["--exact", "--strict"])  # the latter with BatchNorm's buffers
def test_a_tracked_object_may_contain_the_model(tmp_path: Path, mode: str) -> None:
    args = (mode, "--track-model", "--epochs", "4")
    lone = alone("net.py", *args)
    with Elastic(tmp_path, "net.py", *args, "--pace-s", "0.02", workers=1) as job:
        job.wait_step(3)
        job.ask("resize", workers=2)
        printed = job.finish()
    assert not any(event["is"] == "problem" for event in job.events), job.story()
    assert weights(printed) == pytest.approx(weights(lone), abs=5e-3)


def test_loader_processes_hand_out_the_same_samples_through_resizes(tmp_path: Path) -> None:
    (tmp_path / "lone").mkdir()
    with Elastic(tmp_path / "lone", "ledger.py", "--strict", "--pace-s", "0") as job:
        lone = line_of(job.finish(), "ledger")
    args = ("--strict", "--loader-workers", "1", "--pace-s", "0.05")
    with Elastic(tmp_path, "ledger.py", *args, workers=1) as job:
        job.wait_step(2)
        for size in (3, 2, 4, 1):
            job.ask("resize", workers=size)
        assert line_of(job.finish(), "ledger") == lone


def test_a_slower_worker_gets_fewer_virtual_nodes(tmp_path: Path) -> None:
    args = ("--strict", "--epochs", "40", "--pace-s", "0.004")
    with Elastic(tmp_path, "net.py", *args, workers=2, env={"SLOW": "1:0.03"}) as job:
        change = job.wait(lambda e: e["is"] == "rebalanced")
        owned = {each["worker"]: each["share"] for each in job.status()["workers"]}
        assert change["members"] == [0, 1]
        assert owned[0] > owned[1] >= 1
        assert sum(owned.values()) == 8


def test_a_slower_worker_gets_a_smaller_slice(tmp_path: Path) -> None:
    args = ("--epochs", "60", "--pace-s", "0.004")
    with Elastic(tmp_path, "net.py", *args, workers=2, env={"SLOW": "1:0.03"}) as job:
        change = job.wait(lambda e: e["is"] == "rebalanced")
        owned = {each["worker"]: each["share"] for each in job.status()["workers"]}
        assert change["members"] == [0, 1]
        assert owned[0] > owned[1] >= 1
        assert sum(owned.values()) == 64

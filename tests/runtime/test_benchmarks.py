"""Benchmarks run and report what they promise; what they measure is not tested."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import inspection_cost, loss_length, pool, retention, slices, submit
from benchmarks.plain import interval, summary
from benchmarks.resize import resize_by_restart, resize_elastic

ROOT = Path(__file__).parents[2]
FIELDS = {"ratio", "ci95", "added_us", "plain_step_ms", "noise", "noise_ci95", "pairs"}


def plain(*arguments: str) -> dict[str, Any]:
    """Run the smallest comparison on the CPU."""
    script = [sys.executable, str(ROOT / "benchmarks" / "plain.py"), "--json", "--device", "cpu"]
    command = [*script, "--only", "mlp, 0", "--pairs", "2", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("--workers", "1"), "mlp, 0 loaders, 1 worker against plain"),
        (("--workers", "1", "--under", "run"), "mlp, 0 loaders, 1 worker against plain"),
        (("--workers", "2"), "mlp, 0 loaders, 2 workers against DDP"),
    ],
    ids=["by python", "under a supervisor", "two workers"],
)
def test_plain_compares_a_prepared_script_with_a_plain_one(
    arguments: tuple[str, ...], name: str
) -> None:
    found = plain(*arguments)
    assert [*found["cases"]] == [name]
    result = found["cases"][name]
    assert set(result) >= FIELDS
    assert result["pairs"] == 2
    assert result["ratio"] > 0
    assert result["ci95"][0] <= result["ratio"] <= result["ci95"][1]
    assert found["machine"]["device"] == "cpu"


def test_a_ratio_is_of_blocks_in_the_same_round() -> None:
    rounds = [
        {"prepared": [2.2, 2.0], "plain": [2.0, 2.0], "control": [2.0, 2.0]},
        {"prepared": [4.4, 1.0], "plain": [4.0, 1.0], "control": [4.0, 1.0]},
    ]
    found = summary(rounds, steps=10)
    assert found["ratio"] == pytest.approx(1.1)
    assert found["added_us"] == pytest.approx(30_000)
    assert found["plain_step_ms"] == pytest.approx(300)
    assert found["noise"] == found["cpu_ratio"] == 1.0


def test_the_cost_of_inspection_is_a_ratio_of_blocks_in_the_same_run() -> None:
    found = inspection_cost.measure("mlp", "cpu", pairs=3, updates=30)
    assert found["pairs"] == 3
    assert found["ci95"][0] <= found["ratio"] <= found["ci95"][1]
    assert min(found["cpu_ratio"], found["best_ratio"], found["updates_per_s"]) > 0


@pytest.mark.slow
def test_passes_of_other_sizes_are_predicted_and_measured() -> None:
    words = ["--device", "cpu", "--batch", "8", "--steps", "20", "--runs", "2"]
    found = slices.measure("mlp", slices.parsed(words))
    assert sorted(found["sizes"]) == [1, 2, 3, 4, 8]
    for kind, sizes in {
        "held_out": [1, 3, 4],
        "other_process": [1, 3, 4],
        "from_whole": [1, 2, 3, 4],
    }.items():
        assert sorted(found[kind]) == sizes
        assert all(each["time"] > -1.0 for each in found[kind].values())
    assert all(len(each["times"]) == 2 for each in found["held_out"].values())
    assert all(sorted(each) == [1, 2, 3, 4, 8] for each in found["runs"])
    assert all(each["forward_s"] > 0.0 for each in found["sizes"].values())


def test_lengths_are_predicted_at_each_part_of_a_training() -> None:
    runs = loss_length.measure("logistic", seed=5, steps_max=2_000)
    assert [run["rule"] for run in runs] == list(loss_length.RULES)
    told, unknown, _ = runs
    assert 11 * told["epoch_steps"] <= told["steps"] <= unknown["steps"] <= 2_000
    assert list(told["at"]) == ["20%", "40%", "60%", "80%"]
    assert abs(told["at"]["80%"]["error"]) < 0.5
    found = loss_length.summary(runs)
    assert found["epochs told"]["trainings"] == 1
    assert found["epochs told"]["80%"]["mean"] == abs(told["at"]["80%"]["error"])


def test_a_training_has_converged_when_its_loss_hardly_falls() -> None:
    """1/(k/64 + 1) falls by 0.05 in ten epochs of 64 steps after 19 of them."""
    steps = np.arange(1.0, 3_000.0)
    losses = 1.0 / (steps / 64 + 1)
    end = loss_length.converged_at(losses, 64)
    assert end is not None
    assert 19 * 64 < end < 20 * 64
    assert loss_length.converged_at(losses[: end - 10], 64) is None


def test_the_interval_of_a_median_leaves_out_a_lone_outlier() -> None:
    low, high = interval([1.0] * 20 + [50.0])
    assert (low, high) == (1.0, 1.0)


@pytest.mark.slow
def test_resize_accounts_for_each_resize_and_each_restart() -> None:
    [account], steps = resize_elastic(sizes=(1, 2))
    assert (account["from"], account["to"]) == (1, 2)
    assert account["serving_s"] > 0
    assert len(steps) > 0
    [pause_s], _ = resize_by_restart(sizes=(1, 2))
    assert pause_s > 0


@pytest.mark.slow
def test_retention_measures_small_pools() -> None:
    found = retention.measure(jobs=1_600, events=2_500, submits=3, active=200)
    assert found["pool"]["aged"]["submit_s_p99"] > 0.0
    assert set(found["pool"]["ratio"]) >= {"rss_mb", "submit_s_p99", "list_s_p50"}
    assert found["restart"]["events"] >= 2_500
    assert 0 < found["restart"]["events_after_snapshot"] < 2_500
    assert found["pass"]["loop_late_s_max"] < found["pass"]["pass_s"]


def test_pool_measures_submits_to_a_small_pool() -> None:
    found = pool.measure(nodes=3, devices=2, jobs=8, submits=2)
    assert found["active_jobs"] == 8 + 2 * 2 - 1  # two come in each round; one has ended meanwhile
    assert found["submit_over_bare_p50"] > 0


@pytest.mark.slow
def test_submit_measures_the_wait_for_a_first_step() -> None:
    found = submit.measure(jobs=1)
    assert found["jobs"] == len(found["first_step_s_all"]) == 1
    assert found["ratio"] > 0

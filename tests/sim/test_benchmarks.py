"""Every benchmark starts, and those of the simulator give what they promise on a small workload."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coddl.traces.files import write_trace
from coddl.traces.generators import poisson

ROOT = Path(__file__).parents[2]
ALL = sorted(path.stem for path in (ROOT / "benchmarks").glob("[!_]*.py"))


def benchmark(name: str, *arguments: object) -> str:
    """Run a benchmark in a process of its own; give what it prints."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def result(name: str, *arguments: object) -> dict[str, Any]:
    """Run a benchmark for a program."""
    found: dict[str, Any] = json.loads(benchmark(name, *arguments, "--json"))
    return found


@pytest.mark.parametrize("name", ALL)
def test_every_benchmark_starts(name: str) -> None:
    assert "usage:" in benchmark(name, "--help")


@pytest.mark.slow
def test_simulate_compares_every_policy_that_the_oracle_knows(tmp_path: Path) -> None:
    found = result("simulate", "--data", tmp_path / "nothing", "--jobs", 60)
    assert {"afs-l", "afs-p", "tiresias-l"} <= set(found["policies"])
    assert all(each["jobs_per_s"] > 0 for each in found["policies"].values())


@pytest.mark.slow
def test_decide_gives_the_shares_of_its_uncompiled_twin() -> None:
    size = ("--jobs", 20, "--nodes", 10, "--gpus-max", 8, "--repeats", 2)
    found = result("decide", *size, "--placement", "consolidate")
    assert found["shares_equal_twin"]
    assert found["seconds_seated"] > 0


@pytest.mark.slow
def test_philly_runs_policies_with_placement(tmp_path: Path) -> None:
    write_trace(poisson(jobs=30, gpus=16, load=1.0, seed=1), tmp_path / "jobs.csv.gz")
    found = result("philly", "--data", tmp_path, "--policy", "afs-l", "--jobs", 0, "--gpus", 16)
    assert (found["jobs"], found["finished"]) == (30, 30)
    assert 0 < found["locality"] <= 1


@pytest.mark.slow
def test_heartbeats_are_renewed_and_counted() -> None:
    found = result("heartbeats", "--agents", 3, "--seconds", 1)
    assert found["beats"] >= 3
    assert found["round_trip_s_p99"] >= found["round_trip_s_p50"] > 0


@pytest.mark.slow
def test_results_print_the_section_of_an_experiment(tmp_path: Path) -> None:
    for folder in ("philly", "t4_placements", "k80_p100_v100"):
        (tmp_path / folder).mkdir()
    page = benchmark("results", tmp_path, "gandiva-time-slicing")
    assert "`coddl reproduce gandiva-time-slicing`" in page
    assert "| published | ours |" in page

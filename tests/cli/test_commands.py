"""What the commands print."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coddl.core.registry import POLICIES
from tests.cli.conftest import Coddl

KEYS = {"policy", "vc", "gpus", "jobs", "avg_jct_s", "p50_jct_s", "p95_jct_s", "p99_jct_s",
        "makespan_s", "avg_wait_s", "utilization", "gpu_hours", "rho_max", "rho_mean",
        "reallocations", "cancelled_preparations", "events", "wall_s"}  # fmt: skip


def test_simulate_needs_no_argument(coddl: Coddl) -> None:
    code, out, _ = coddl("simulate")
    assert code == 0
    rows = [line for line in out.splitlines() if "x  " in line]
    assert len(rows) == 8
    assert rows[0].split()[0] == "afs-l"  # the best comes first
    assert "1.00x" in rows[0]
    assert "*" in rows[0]


def test_what_goes_wrong_is_shown_where_it_does(coddl: Coddl) -> None:
    words = ("simulate", "--policy", "srtf", "--first", "60")
    _, plain, _ = coddl(*words)
    _, failing, _ = coddl(*words, "--failures", "philly")
    assert "failed" not in plain
    assert all(each in failing for each in ("failed", "killed", "lost"))
    assert all(" 60 jobs" in each for each in (plain, failing))  # those that fail are among them


@pytest.mark.parametrize("flag", [("-o", "json"), ("--json",)])
def test_simulate_for_a_program(coddl: Coddl, flag: tuple[str, ...]) -> None:
    code, out, _ = coddl(
        "simulate", "--policy", "afs-l", "--policy", "fifo", "--gpus", "32,64", *flag
    )
    results = json.loads(out)["results"]
    assert code == 0
    assert [(row["policy"], row["gpus"]) for row in results] == [
        ("afs-l", 32), ("fifo", 32), ("afs-l", 64), ("fifo", 64)]  # fmt: skip
    assert set(results[0]) >= KEYS
    assert results[0]["jobs"] == 200
    assert results[0]["vc"] is None


def test_nodes_that_come_and_go_are_told_with_reasons(coddl: Coddl) -> None:
    words = ("simulate", "--policy", "fifo", "--first", "60", "--gpus-per-node", "8")
    _, table, _ = coddl(*words, "--nodes", "8", "--nodes", "1..8", "--node-start-s", "60")
    assert all(each in table for each in ("(8x8)", "(1..8x8)", "held", "nodes"))
    _, out, _ = coddl(*words, "--nodes", "1..8", "--node-idle-s", "60", "--json")
    told = json.loads(out)
    [row], changes = told["results"], told["node_changes"]
    assert row["gpu_hours"] <= row["gpu_hours_held"]
    assert 1 <= row["avg_nodes"] < 8
    assert {change["cluster"] for change in changes} == {"1..8x8"}
    assert any("not needed for 60 s" in change["because"] for change in changes)
    _, plain, _ = coddl("simulate", "--policy", "fifo", "--first", "60")
    assert "held" not in plain


def test_each_queue_has_a_cluster_of_its_own(coddl: Coddl, tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text(
        "vc,submitted_s,model,iterations,gpus_requested\na,0,vgg16,10,1\nb,0,vgg16,10,1\nb,1,vgg16,10,1\n"
    )
    _, out, _ = coddl("simulate", trace, "--vc", "all", "--policy", "afs-l", "--json")
    assert [(row["vc"], row["jobs"]) for row in json.loads(out)["results"]] == [("a", 1), ("b", 2)]
    _, out, _ = coddl("simulate", trace, "--vc", "b", "--policy", "afs-l", "--json")
    assert [row["jobs"] for row in json.loads(out)["results"]] == [2]


def test_seeds_give_means_with_intervals(coddl: Coddl) -> None:
    words = ("simulate", "poisson", "--seeds", "3", "--load", "0.5,1.5", "--policy", "afs-p")
    rows = json.loads(coddl(*words, "--json").out)["results"]
    assert [row["load"] for row in rows] == [0.5, 1.5]
    assert rows[0]["seeds"] == 3
    assert rows[0]["ci95"]["avg_jct_s"] > 0
    assert rows[0]["avg_jct_s"] < rows[1]["avg_jct_s"]
    assert "±" in coddl(*words).out


def test_oversize_jobs_are_left_out_or_cut_down(coddl: Coddl, tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("submitted_s,model,iterations,gpus_requested\n0,vgg16,9,8\n0,vgg16,9,1\n")
    for how, jobs in (("skip", 1), ("clamp", 2)):
        words = ("simulate", trace, "--gpus", "4", "--policy", "srtf", "--json", "--oversize", how)
        assert json.loads(coddl(*words).out)["results"][0]["jobs"] == jobs


def test_jobs_csv_tells_how_each_job_fared(coddl: Coddl, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    _, out, _ = coddl("simulate", "--policy", "afs-l", "--json", "--jobs-csv", path)
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 200
    mean = sum(float(row["jct_s"]) for row in rows) / 200
    assert mean == pytest.approx(json.loads(out)["results"][0]["avg_jct_s"])


def test_jobs_csv_tells_runs_apart_by_placement_and_cluster(coddl: Coddl, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    where = (
        "--cluster",
        "2x8",
        "--cluster",
        "4x4",
        "--placement",
        "spread",
        "--placement",
        "consolidate",
    )
    assert (
        coddl("simulate", "--first", "5", "--policy", "srtf", *where, "--jobs-csv", path).code == 0
    )
    with path.open() as file:
        keys = [(row["cluster"], row["placement"], row["job"]) for row in csv.DictReader(file)]
    assert len(set(keys)) == len(keys) == 2 * 2 * 5


def test_a_report_opens_without_a_network(coddl: Coddl, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    assert coddl("simulate", "--policy", "afs-l", "--policy", "srtf", "--report", path).code == 0
    page = path.read_text()
    assert page.startswith("<!doctype html>") or page.startswith("<!DOCTYPE html>")
    assert 'src="http' not in page
    assert 'href="http' not in page


def test_policies_lists_all_and_shows_one(coddl: Coddl) -> None:
    out = coddl("policies").out
    assert all(name in out for name in POLICIES)
    settings = coddl("policies", "afs-p").out
    assert re.search(
        r"^  lease_h=2 +hours that a turn lasts: .* \(a number above 0\)$", settings, re.M
    )
    shown = json.loads(coddl("policies", "tiresias-l", "--json").out)
    assert "threshold_gpu_h" in {parameter["name"] for parameter in shown[0]["parameters"]}
    assert coddl("policies", "nosuch").code == 2


def test_trace_make_and_info(coddl: Coddl, tmp_path: Path) -> None:
    for kind, jobs in (("poisson", 50), ("poster", 512), ("tiresias", 240)):
        path = tmp_path / f"{kind}.csv.gz"
        assert coddl("trace", "make", kind, "--out", path, "--jobs", 50).code == 0
        assert json.loads(coddl("trace", "info", path, "--json").out)["jobs"] == jobs
    assert "tiresias" in coddl("trace", "info", path).out
    assert coddl("trace", "make", "poisson", "--out", tmp_path / "no" / "x.csv").code == 2
    assert coddl("trace", "make", "poisson", "--out", tmp_path / "x.csv", "--jobs", 0).code == 2


def test_help_and_version(coddl: Coddl) -> None:
    assert "simulate" in coddl("--help").out
    assert "Examples" in coddl("simulate", "--help").out
    assert coddl("--version").out.startswith("coddl ")


def test_importing_the_package_imports_nothing_else() -> None:
    code = (
        "import sys, coddl; print(sorted({'numpy', 'numba', 'typer', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_does_not_wait_for_the_compiler() -> None:
    code = (
        "import sys; sys.argv = ['coddl', '--help']\n"
        "from coddl.cli.main import app\n"
        "try:\n    app()\nexcept SystemExit:\n    pass\n"
        "sys.exit(bool({'numpy', 'numba'} & set(sys.modules)))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode
        == 0
    )


def test_ctrl_c_prints_what_is_finished_so_far(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\nfrom pathlib import Path\n"
        "from coddl.core.registry import policy_from\n"
        "afs, going = policy_from('afs-l'), Path(__file__).with_name('going')\n"
        "def slow(snapshot):\n"
        "    time.sleep(0.002)\n"
        "    if snapshot.jobs.id[0] > 20:\n        going.touch()\n"
        "    return afs(snapshot)\n"
    )
    words = [
        "simulate",
        "poisson",
        "--gpus",
        "64",
        "--seeds",
        "40",
        "--policy",
        f"{tmp_path}/slow.py:slow",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "coddl.cli.main", *words, "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until_s = time.monotonic() + 90
    while not (tmp_path / "going").exists() and time.monotonic() < until_s:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "jobs finished" in err
    assert json.loads(out)["results"][0]["jobs"] > 0

"""The command line against a real pool: what it does, shows, and exits with."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.netns import why_not
from tests.e2e.pool import NODES, Pool
from tests.e2e.training import Training

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]

STEPS = 400


def test_jobs_are_moved_about_by_hand(tmp_path: Path) -> None:
    with Pool(tmp_path) as pool:
        training = Training(pool, "bert", steps=STEPS, pace_s=0.05, gpus="2..4")
        pool.wait_size(training.job, 4)
        pool.cli("resize", "bert", "3")
        assert pool.wait_size(training.job, 3)["gpus_max"] == 3
        ranks = {line for line in pool.cli("logs", "bert").splitlines() if "of job" in line}
        assert {rank for rank in range(4) if any(f"rank {rank} of" in each for each in ranks)} == {
            *range(4)
        }

        pool.cli("suspend", "bert")
        pool.wait_job(training.job, "rest", lambda view: view["state"] == "SUSPENDED")
        assert json.loads(pool.cli("explain", "bert", "-o", "json"))["code"] == "Held"
        made = len(training.diary())
        pool.cli("resume", "bert")
        training.go_on()
        assert training.diary()[: made + 1] == list(range(made + 1)), "it went on where it was"

        node = training.lead
        pool.cli("drain", node)
        pool.wait_job(training.job, "moving away", lambda view: node not in view["nodes"])
        pool.wait("nobody on it", lambda: not pool.sitters_on(node))
        pool.wait_job(training.job, "another lead", lambda view: view["lead"] != node)
        training.go_on()
        pool.cli("drain", node, "--undo")
        pool.cli("resize", "bert", "6")
        assert node in pool.wait_size(training.job, 6)["nodes"]
        assert sorted(set(training.diary())) == training.diary(), "no step was made twice"

        pool.cli("cancel", "bert")
        pool.wait_end(training.job, "CANCELLED")
        pool.cli("wait", "bert", code=103)


def test_submit_waits_and_tells_how_it_ended(tmp_path: Path) -> None:
    app = tmp_path / "app"
    app.mkdir()
    (app / "train.py").write_text("print('as submitted')\n")
    python = ["--", sys.executable, "-c"]
    with Pool(tmp_path) as pool, ThreadPoolExecutor(1) as beside:
        slow = ["submit", "--wait", "--name", "slow", *python, "import time; time.sleep(600)"]
        cancelled = beside.submit(lambda: pool.cli(*slow, cwd=app, code=103))
        pool.cli("submit", "--wait", *python, "raise SystemExit(3)", cwd=app, code=100)
        names = {job["name"]: job for job in pool.get("/jobs")["items"]}
        pool.wait_job(names["slow"]["id"], "its start", lambda view: view["state"] == "RUNNING")

        for node in NODES:
            pool.cli("drain", node)
        queued = int(pool.cli("submit", "--parsable", "train.py", cwd=app))
        assert pool.job(queued)["code"] == "Resources"
        (app / "train.py").write_text("print('as changed since')\n")
        for node in NODES:
            pool.cli("drain", node, "--undo")
        pool.wait_end(queued)
        assert pool.cli("logs", str(queued)).count("as submitted") == 1
        assert "fine" in pool.cli("submit", "--wait", "--name", "fine", "train.py", cwd=app)

        pool.cli("cancel", "slow")
        cancelled.result()

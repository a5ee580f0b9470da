"""The command line against a real pool: what it does, shows, and exits with."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.pool import NODES, Pool
from tests.e2e.training import Training

pytestmark = pytest.mark.slow

STEPS = 400
PYTHON = ("--", sys.executable, "-c")


def test_a_pool_is_run_by_hand(tmp_path: Path) -> None:
    app = tmp_path / "app"
    app.mkdir()
    slow = ["submit", "--wait", "--name", "slow", *PYTHON, "import time; time.sleep(600)"]
    with Pool(tmp_path) as pool, ThreadPoolExecutor(1) as beside:
        cancelled = beside.submit(lambda: pool.cli(*slow, cwd=app, code=103))
        check_jobs_are_moved_about(pool)
        pool.cli("submit", "--wait", *PYTHON, "raise SystemExit(3)", cwd=app, code=100)
        check_a_queued_job_runs_what_was_submitted(pool, app)
        check_a_deadline_moves_what_can_not_be_resized(pool)
        pool.cli("cancel", "slow")
        cancelled.result()


def check_jobs_are_moved_about(pool: Pool) -> None:
    training = Training(pool, "bert", steps=STEPS, pace_s=0.05, gpus="2..4")
    pool.wait_size(training.job, 4)
    pool.cli("resize", "bert", "3")
    assert pool.wait_size(training.job, 3)["gpus_max"] == 3
    lines = pool.cli("logs", "bert")
    told = [f"worker {number} of job {training.job}, rank None" in lines for number in range(4)]
    assert told == [True] * 4

    pool.cli("suspend", "bert")
    pool.wait_job(training.job, "rest", lambda view: view["state"] == "SUSPENDED")
    assert json.loads(pool.cli("explain", "bert", "-o", "json"))["code"] == "Held"
    pool.cli("resume", "bert")
    training.go_on()

    node = training.lead
    pool.cli("drain", node)
    pool.wait_job(training.job, "another lead", lambda view: view["lead"] not in (node, None))
    pool.wait("nobody on it", lambda: training.job not in {s.job for s in pool.sitters_on(node)})
    assert node not in training.view["nodes"]
    training.go_on()
    pool.cli("drain", node, "--undo")
    pool.cli("resize", "bert", "5")
    assert node in pool.wait_size(training.job, 5)["nodes"]
    made = training.diary()
    assert made == list(range(len(made))), "no step was lost, and none made twice"

    pool.cli("cancel", "bert")
    pool.wait_end(training.job, "CANCELLED")
    pool.cli("wait", "bert", code=103)


def check_a_deadline_moves_what_can_not_be_resized(pool: Pool) -> None:
    slow = next(job["id"] for job in json.loads(pool.cli("ls", "--json")) if job["name"] == "slow")
    (node,) = pool.job(slow)["nodes"]
    pool.cli("drain", node, "--within", "4s")
    pool.wait_job(slow, "another node", lambda view: view["nodes"] and node not in view["nodes"])
    assert slow not in {sitter.job for sitter in pool.sitters_on(node)}
    assert f"node {node} leaves" in pool.cli("events", str(slow))
    pool.cli("drain", node, "--undo")


def check_a_queued_job_runs_what_was_submitted(pool: Pool, app: Path) -> None:
    (app / "train.py").write_text("print('as submitted')\n")
    for node in NODES:
        pool.cli("drain", node)
    queued = int(pool.cli("submit", "--parsable", "train.py", cwd=app))
    assert pool.job(queued)["state"] == "PENDING"
    (app / "train.py").write_text("print('as changed since')\n")
    for node in NODES:
        pool.cli("drain", node, "--undo")
    pool.wait_end(queued)
    assert "as submitted" in pool.cli("logs", str(queued))
    pool.cli("submit", "--wait", "--name", "newer", "train.py", cwd=app)
    assert "as changed since" in pool.cli("logs", "newer")

"""An emulated pool: the real server and agents, around trainings that are only computed."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coddl
from coddl.api.client import Client, RequestRefused, find
from coddl.core.pool.decision import POOL_STABILITY
from tests.agent.pool import wait_until
from tests.e2e.pool import environment

SCALE = 60.0
SPEEDS = """model,global_batch,gpus,step_s
net,64,1,1.0
net,64,2,0.6
net,64,4,0.4
"""
# About five minutes of the pool's time, in which jobs share and resize 4 GPUs.
JOBS = """submitted_s,model,iterations,gpus_requested
0,net,300,2
20,net,200,1
40,net,250,2
80,net,150,1
"""
# What a pool may be slower by: a job sees a handful of decisions, each of which takes a real server
# and real agents some milliseconds, or up to a second altogether where the machine is busy.
OFF_S = 2.0 * SCALE


def run_coddl(*words: str) -> str:
    """Run a command of ours; give what it printed."""
    command = [sys.executable, "-m", "coddl", *words]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trace, and the speeds of its model beside it."""
    folder = tmp_path_factory.mktemp("emulated")
    (folder / "jobs.csv").write_text(JOBS)
    (folder / "step_times.csv").write_text(SPEEDS)
    return folder


@pytest.fixture(scope="module")
def state(folder: Path) -> Iterator[Path]:
    """The state folder of an emulated pool of 2 nodes with 2 GPUs."""
    state = folder / "state"
    words = ["--emulate", "2x2", "--speeds", str(folder / "step_times.csv"), "--policy", "afs-l"]
    words += ["--time-scale", str(SCALE), "--reconfigure", "concurrent:1,0.1"]
    run_coddl("up", *words, "--port", "0", "--state-dir", str(state))
    yield state
    run_coddl("down", "--cancel-jobs", "--state-dir", str(state))


@contextlib.contextmanager
def replaying(folder: Path, state: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Replay the trace in the background."""
    command = [sys.executable, "-m", "coddl", "replay", str(folder / "jobs.csv"), "-o", "json"]
    with subprocess.Popen(
        [*command, "--state-dir", str(state), *words],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process


def test_jobs_take_as_long_as_simulated(folder: Path, state: Path) -> None:
    found = json.loads(
        run_coddl("replay", str(folder / "jobs.csv"), "-o", "json", "--state-dir", str(state))
    )
    assert found["succeeded"] == found["submitted"] == 4
    study = coddl.simulate(
        folder / "jobs.csv",
        "afs-l",
        gpus=4,
        cool_down_s=POOL_STABILITY.cool_down_s,
        reserve_s=POOL_STABILITY.reserve_s,
        reconfigure="concurrent:1,0.1",
    )
    (run,) = study.runs
    live_s = np.array([job["jct_s"] for job in found["jobs"]])
    simulated_s = run.finish_s - run.trace.submitted_s
    assert live_s == pytest.approx(simulated_s, abs=OFF_S)
    assert live_s.sum() > 0.95 * simulated_s.sum()  # nothing is faster than its curve
    assert any(job["resizes"] for job in found["jobs"])


def test_nothing_is_lost_when_the_server_is_killed(folder: Path, state: Path) -> None:
    with Client(find("", str(state), env={})) as client, replaying(folder, state) as replay:
        before = {job["id"] for job in client.get("/jobs")["items"]}

        def training() -> list[dict[str, Any]]:
            jobs = client.get("/jobs", active=True)["items"]
            return [job for job in jobs if job["id"] not in before and job["step"] > 10]

        wait_until(lambda: len(training()) >= 2, "two jobs that train")
        os.kill(json.loads((state / "server.json").read_text())["pid"], signal.SIGKILL)
        told, _ = replay.communicate()
    assert replay.returncode == 0
    found = json.loads(told)
    assert found["succeeded"] == found["submitted"] == 4
    assert not any(job["restarts"] for job in found["jobs"])  # they trained on meanwhile


def test_time_goes_on_where_it_was(state: Path) -> None:
    """Records of one server and the next are in order: the pool's clock is one."""
    with contextlib.closing(sqlite3.connect(state / "journal.db")) as journal:
        times_s = [at_s for (at_s,) in journal.execute("SELECT at_s FROM records ORDER BY seq")]
    assert times_s == sorted(times_s)
    with Client(find("", str(state), env={})) as client:
        pool = client.get("/pool")
    assert pool["time_scale"] == SCALE
    assert pool["now_s"] > times_s[-1]
    assert pool["now_s"] > time.time()  # it is ahead, and further with every second


def test_a_job_that_does_not_say_what_it_trains_is_refused(state: Path) -> None:
    with Client(find("", str(state), env={})) as client:
        before = client.get("/jobs", limit=1)["items"]
        for request in ({"script": "train.py"}, {"command": ["python3", "train.py"]}):
            with pytest.raises(RequestRefused, match="does not say which model it trains"):
                client.submit(request)
        assert client.get("/jobs", limit=1)["items"] == before


def test_a_job_of_an_unknown_model_fails_and_says_why(state: Path) -> None:
    with Client(find("", str(state), env={})) as client:
        words = ["--model", "none-such", "--iterations", "100.0"]
        job = client.submit({"command": ["emulated", *words]})

        def view() -> dict[str, Any]:
            found: dict[str, Any] = client.get(f"/jobs/{job['id']}")
            return found

        wait_until(lambda: view()["state"] == "FAILED", "its end")
        trouble = view()["trouble"]
    assert "none-such" in trouble["because"]

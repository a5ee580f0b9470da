"""A pool of `coddl up` that follows a plug-in: it decides, it fails, and no training notices."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.pool import LOOK_EVERY_S, PATIENCE_S, SCRIPTS, environment

pytestmark = pytest.mark.slow

SLOTS = 4
# In plain Python: the newest job gets all it can use, older ones what is left. Fails while a file
# `broken` lies beside it.
NEWEST = '''
from pathlib import Path

import numpy as np

from coddl.core.allocation import Allocation, because

BROKEN = Path(__file__).with_name("broken")


def newest(snapshot):
    """The newest job first."""
    if BROKEN.exists():
        raise RuntimeError("out of ideas")
    jobs, free = snapshot.jobs, snapshot.cluster.gpus_total
    shares = np.zeros(jobs.size, np.int64)
    spare = free - jobs.gpus_min.sum()
    for row in np.argsort(-jobs.id, kind="stable"):
        more = max(0, min(spare, jobs.gpus_max[row] - jobs.gpus_min[row]))
        share = jobs.gpus_min[row] + more
        if share <= free:
            shares[row], free, spare = share, free - share, spare - more
    return Allocation(shares, because(shares == 0, "Priority", "newer jobs hold the GPUs"))
'''


class UpPool:
    """A pool of this machine, as its operator sees it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.plugin = folder, folder / "mine" / "newest.py"
        self.plugin.parent.mkdir()
        self.plugin.write_text(NEWEST)
        self.broken = self.plugin.with_name("broken")
        self.spots = folder / "spots"
        self.spots.mkdir()

    def coddl(self, *words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "coddl", *map(str, words)],
            env=environment(CODDL_STATE_DIR=str(self.folder / "state"), NO_COLOR="1"),
            cwd=SCRIPTS,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
        )
        assert done.returncode == code, f"{words}: {done.stdout}\n{done.stderr}"
        return done

    def up(self, *words: object) -> str:
        """Start it; give what it noted."""
        started = ("up", "--port", 0, "--slots", SLOTS, "--cool-down", 1)
        return self.coddl(*started, *words).stderr

    def submit(self, name: str) -> None:
        """Hand in a training that lasts until it is cancelled."""
        pace = self.folder / "pace"
        pace.write_text("0.005")
        options = ("--name", name, "--gpus", "1..3", "--env", f"E2E_SPOTS={self.spots}")
        self.coddl("submit", *options, "train.py", "--steps", 100_000, "--pace", pace)

    def job(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.coddl("describe", name, "-o", "json").stdout)
        return found

    def wait(self, what: str, condition: Callable[[], object]) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < until_s, f"never came: {what}"
            time.sleep(LOOK_EVERY_S)

    def wait_size(self, name: str, gpus: int) -> None:
        def is_so() -> bool:
            job = self.job(name)
            return (job["state"], job["gpus"]) == ("RUNNING", gpus)

        self.wait(f"{name} with {gpus}", is_so)

    def wait_steps(self, name: str) -> None:
        begun = self.job(name)["step"]
        self.wait(f"steps of {name}", lambda: self.job(name)["step"] > begun + 3)

    def kill_server(self) -> None:
        """Kill the server, and wait until another one decides."""
        about = self.folder / "state" / "server.json"
        before = json.loads(about.read_text())["pid"]
        os.kill(before, signal.SIGKILL)
        self.wait("another server", lambda: json.loads(about.read_text())["pid"] != before)
        self.wait("its agent", lambda: "UP" in self.coddl("nodes").stdout)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[UpPool]:
    pool = UpPool(tmp_path)
    try:
        yield pool
    finally:
        pool.coddl("down", "--cancel-jobs")


def test_a_plug_in_decides_for_a_pool_and_is_loaded_again_with_its_server(pool: UpPool) -> None:
    pool.up("--plugin", pool.plugin, "--policy", "newest.py:newest")
    assert "newest.py:newest" in pool.coddl("policies").stdout
    pool.submit("old")
    pool.wait_size("old", 3)
    pool.submit("new")
    pool.wait_size("new", 3)  # none of ours gives the newer of two equal jobs three times as much
    pool.wait_size("old", 1)
    pool.kill_server()
    pool.coddl("cancel", "new")
    pool.wait_size("old", 3)
    assert "decision by newest.py:newest (new was stopped)" in pool.coddl("events").stdout


def test_a_plug_in_that_fails_stops_no_training_and_is_told(pool: UpPool) -> None:
    pool.up("--plugin", pool.plugin, "--policy", "newest.py:newest")
    pool.submit("first")
    pool.wait_size("first", 3)
    pool.broken.touch()
    pool.submit("second")
    told = pool.coddl("policy").stderr
    assert "policy newest.py:newest failed: RuntimeError: out of ideas (newest.py, line" in told
    assert pool.job("second")["code"] == "PolicyFailed"
    assert "decision failed (second submitted)" in pool.coddl("events").stdout
    pool.wait_steps("first")
    pool.kill_server()
    pool.wait_steps("first")
    assert (pool.job("first")["gpus"], pool.job("first")["attempt"]) == (3, 1)
    pool.coddl("policy", "max-min")
    pool.wait_size("second", 2)
    pool.wait_size("first", 2)
    assert pool.coddl("policy").stderr == ""
    pool.coddl("policy", "newest.py:newest", code=2)  # it still fails, as a trial shows
    pool.broken.unlink()
    pool.coddl("policy", "newest.py:newest")
    pool.wait_size("second", 3)
    pool.coddl("down")
    noted = pool.up()
    assert "the server was started without the plug-in newest.py" in noted
    assert pool.job("second")["code"] == "PolicyFailed"
    pool.coddl("policy", "max-min")
    pool.wait_size("second", 2)

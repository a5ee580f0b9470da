"""A pool of `coddl up` that follows a plug-in: it decides, it fails, and no training notices."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.up_pool import UpPool

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


class PluginPool(UpPool):
    """A pool with a plug-in of its operator's."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.plugin = folder / "mine" / "newest.py"
        self.plugin.parent.mkdir()
        self.plugin.write_text(NEWEST)
        self.broken = self.plugin.with_name("broken")

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


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[PluginPool]:
    pool = PluginPool(tmp_path)
    try:
        yield pool
    finally:
        pool.coddl("down", "--cancel-jobs")


def test_a_plug_in_decides_for_a_pool_and_is_loaded_again_with_its_server(pool: PluginPool) -> None:
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


@pytest.mark.matrix
def test_a_plug_in_that_fails_stops_no_training_and_is_told(pool: PluginPool) -> None:
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

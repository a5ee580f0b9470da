"""A pool whose nodes come and go with its jobs: the engine of this machine, real agents, a real
training.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.pool import SCRIPTS, environment
from tests.e2e.up_pool import UpPool

pytestmark = pytest.mark.slow

STEPS = 300


class ScaledPool(UpPool):
    """A pool of 0 to 3 nodes with two slots each."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.pace, self.diary = folder / "pace", folder / "diary"

    def submit(self, result: Path, pace_s: float) -> None:
        """Hand in a training that gives the same bits on any number of workers."""
        self.pace.write_text(str(pace_s))
        options = ("--name", "bert", "--gpus", "1..6", "--env", f"E2E_SPOTS={self.spots}")
        script = ("train.py", "--strict", "--steps", STEPS, "--pace", self.pace)
        self.coddl("submit", *options, *script, "--diary", self.diary, "--result", result)

    def nodes(self) -> list[str]:
        return [node["name"] for node in json.loads(self.coddl("nodes", "-o", "json").stdout)]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[ScaledPool]:
    pool = ScaledPool(tmp_path)
    pool.coddl(
        *("up", "--port", 0, "--nodes", "0..3", "--slots", 2),
        *("--idle", "3s", "--cool-down", 1),
    )
    try:
        yield pool
    finally:
        pool.coddl("down", "--cancel-jobs")


def lone(folder: Path) -> str:
    """Give the weights of the training without a pool."""
    result = folder / "lone.hash"
    words = ("train.py", "--strict", "--steps", str(STEPS), "--result", str(result))
    env = environment(E2E_SPOTS=str(folder / "spots"))
    subprocess.run([sys.executable, *words], cwd=SCRIPTS, env=env, check=True, timeout=300)
    return result.read_text()


def test_nodes_come_with_the_work_and_go_with_it(pool: ScaledPool, tmp_path: Path) -> None:
    assert pool.nodes() == []
    assert "0 nodes wanted" in pool.coddl("nodes").stdout
    result = tmp_path / "bert.hash"
    pool.submit(result, 0.02)
    pool.wait_size("bert", 6)
    before = pool.nodes()
    assert len(before) == 3
    pool.kill_server()
    pool.wait_steps("bert")
    assert pool.nodes() == before, "what the engine has brought is known again"
    pool.pace.write_text("0.0")
    pool.coddl("wait", "bert")
    assert result.read_text() == lone(tmp_path)
    made = [int(line) for line in pool.diary.read_text().split()]
    assert made == list(range(STEPS)), "no step was lost, and none made twice"
    pool.wait("all nodes to be given back", lambda: not pool.nodes())
    said = pool.coddl("events", "--tail", 500).stdout
    assert "drained by scaling: fewer nodes are needed" in said
    assert "left for good: local no longer has it" in said

"""A pool whose nodes an engine brings, and a training that gives the same bits on any of them."""

import json
import subprocess
import sys
from pathlib import Path

from tests.e2e.pool import SCRIPTS, environment
from tests.e2e.up_pool import UpPool

STEPS = 400


class ScaledPool(UpPool):
    """A pool without nodes of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.pace, self.diary = folder / "pace", folder / "diary"
        self.gpus = "1..6"  # that its training may have

    def submit(self, result: Path, pace_s: float) -> None:
        """Hand in a training that gives the same bits on any number of workers."""
        self.pace.write_text(str(pace_s))
        self.coddl("submit", *self.training(result))

    def training(self, result: Path) -> tuple[object, ...]:
        """Give the words that describe it to `coddl submit`."""
        options = ("--name", "bert", "--gpus", self.gpus, "--env", f"E2E_SPOTS={self.spots}")
        script = ("train.py", "--strict", "--steps", STEPS, "--pace", self.pace)
        return (*options, *script, "--diary", self.diary, "--result", result)

    def nodes(self) -> list[str]:
        return [node["name"] for node in json.loads(self.coddl("nodes", "-o", "json").stdout)]


def lone(folder: Path) -> str:
    """Give the weights of the training without a pool."""
    result = folder / "lone.hash"
    words = ("train.py", "--strict", "--steps", str(STEPS), "--result", str(result))
    env = environment(E2E_SPOTS=str(folder / "spots"))
    subprocess.run([sys.executable, *words], cwd=SCRIPTS, env=env, check=True, timeout=300)
    return result.read_text()

"""A pool whose nodes an engine brings, and a training that gives the same bits on any of them."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.e2e.pool import SCRIPTS, environment
from tests.e2e.training import completed
from tests.e2e.up_pool import UpPool

STEPS = 400
GPUS: Final = 2  # of each machine, where an engine has several


class ScaledPool(UpPool):
    """A pool without nodes of its own."""

    def __init__(self, folder: Path, env: Mapping[str, str] | None = None) -> None:
        super().__init__(folder, env)
        self.pace, self.diary = folder / "pace", folder / "diary"
        self.gpus = "1..6"  # that its training may have
        self.batch = 12

    def submit(self, result: Path, pace_s: float) -> None:
        """Hand in a training that gives the same bits on any number of workers."""
        self.pace.write_text(str(pace_s))
        self.coddl("submit", *self.training(result))

    def training(self, result: Path) -> tuple[object, ...]:
        """Give the words that describe it to `coddl submit`."""
        options = ("--name", "bert", "--gpus", self.gpus, "--env", f"E2E_SPOTS={self.spots}")
        script = ("train.py", "--strict", "--steps", STEPS, "--global-batch", self.batch)
        files = ("--pace", self.pace, "--diary", self.diary, "--result", result)
        return (*options, *script, *files)

    def nodes(self) -> list[str]:
        return [node["name"] for node in json.loads(self.coddl("nodes", "-o", "json").stdout)]

    def made(self) -> list[int]:
        """Give the steps of the training as they were made."""
        return [int(line) for line in self.diary.read_text().split()]


def submit(pool: ScaledPool, gpus: int = 2 * GPUS, pace_s: float = 0.2) -> Path:
    """Hand in a training that lasts until `check_end`, and wait until it has so many GPUs."""
    result = pool.folder / "bert.hash"
    pool.submit(result, pace_s)
    pool.wait_size("bert", gpus)
    pool.wait_steps("bert")
    return result


def check_end(pool: ScaledPool, result: Path, *, is_planned: bool = False) -> None:
    """Have the training end, with the bits of a lone run and each step made.

    Where all that befell it was planned, none was made twice after others.
    """
    pool.pace.write_text("0.0")
    pool.coddl("wait", "bert")
    check_whole(pool, result, is_planned=is_planned)


def check_whole(pool: ScaledPool, result: Path, *, is_planned: bool = False) -> None:
    """Check the weights and the steps of a training that has ended."""
    assert result.read_text() == lone(pool.folder, pool.batch)
    made = pool.made()
    assert sorted(set(made)) == list(range(STEPS))
    if is_planned:
        assert completed(made) == list(range(STEPS)), "no step was lost, and none made twice"


def wait_empty(pool: ScaledPool) -> None:
    """Wait until the engine has given back all nodes; those that died are listed a while longer."""

    def is_empty() -> bool:
        nodes = json.loads(pool.coddl("nodes", "-o", "json").stdout)
        return all(node["is_silent"] or not node["is_up"] for node in nodes)

    pool.wait("all nodes to be given back", is_empty)


def lone(folder: Path, batch: int = 12, steps: int = STEPS) -> str:
    """Give the weights of the training without a pool."""
    result = folder / "lone.hash"
    words = ("train.py", "--strict", "--steps", str(steps), "--global-batch", str(batch))
    env = environment(E2E_SPOTS=str(folder / "spots"))
    subprocess.run(
        [sys.executable, *words, "--result", str(result)],
        cwd=SCRIPTS,
        env=env,
        check=True,
        timeout=300,
    )
    return result.read_text()

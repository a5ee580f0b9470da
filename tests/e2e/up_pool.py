"""A pool of `coddl up` on this machine, as its operator sees it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.e2e.pool import LOOK_EVERY_S, PATIENCE_S, SCRIPTS, environment


class UpPool:
    """A pool whose commands are run as a user runs them."""

    def __init__(self, folder: Path, env: Mapping[str, str] | None = None) -> None:
        """`env` has further variables of the commands, such as where an engine is."""
        self.folder = folder
        self.env = env or {}
        self.state = folder / "state"
        self.spots = folder / "spots"
        self.spots.mkdir()

    def coddl(self, *words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "coddl", *map(str, words)],
            env=environment(CODDL_STATE_DIR=str(self.state), NO_COLOR="1", **self.env),
            cwd=SCRIPTS,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
        )
        assert done.returncode == code, f"{words}: {done.stdout}\n{done.stderr}"
        return done

    def job(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.coddl("describe", name, "-o", "json").stdout)
        return found

    def wait(
        self, what: str, condition: Callable[[], object], patience_s: float = PATIENCE_S
    ) -> None:
        until_s = time.monotonic() + patience_s
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
        about = self.state / "server.json"
        before = json.loads(about.read_text())["pid"]
        os.kill(before, signal.SIGKILL)
        self.wait("another server", lambda: json.loads(about.read_text())["pid"] != before)
        self.wait("its agent", lambda: "UP" in self.coddl("nodes").stdout)

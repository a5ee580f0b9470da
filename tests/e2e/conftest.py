"""What the tests of whole pools share."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.e2e.netns import why_not
from tests.e2e.pool import PATIENCE_S, SCRIPTS, environment

Alone = Callable[..., str]


@pytest.fixture(scope="session", autouse=True)
def _machines() -> None:
    """Skip what needs machines where none can be made."""
    if because := why_not():
        pytest.skip(because)


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """Give the hash of what a training comes to by plain python; each is run once per session."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # the others have it too

    def hash_of(steps: int, *args: str) -> str:
        words = ["--strict", "--steps", str(steps), *args]
        result = folder / f"alone{''.join(words)}"
        with result.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not result.exists():
                train_alone(*words, "--result", str(result))
        return result.read_text()

    return hash_of


def train_alone(*words: str) -> None:
    subprocess.run(
        [sys.executable, str(SCRIPTS / "train.py"), *words],
        env=environment(),
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )

"""The example notebook, run as it is, against a pool of real processes."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.pool import PATIENCE_S, environment
from tests.e2e.up_pool import UpPool

FOLDER: Final = Path(__file__).parents[2] / "examples" / "notebook"


@pytest.mark.slow
def test_every_cell_of_the_notebook_runs(tmp_path: Path) -> None:
    pool, folder = UpPool(tmp_path), tmp_path / "notebook"
    shutil.copytree(FOLDER, folder)
    pool.coddl("up", "--slots", 4, "--policy", "max-min", "--cool-down", 1, "--port", 0)
    try:
        _execute(folder / "pool.ipynb", str(pool.state))
    finally:
        pool.coddl("down")
    submitted, done, shares, said, compared = _outputs(folder / "run.ipynb")[-5:]
    assert "vit" in submitted["data"]["text/html"]
    assert "SUCCEEDED" in done["data"]["text/plain"]
    assert "The replay of what was" in said["text"]
    assert "image/png" in shares["data"]
    assert "image/png" in compared["data"]


def _execute(notebook: Path, state: str) -> None:
    """Run all cells; the notebook with what they show is written beside it."""
    words = [sys.executable, "-m", "jupyter", "execute", "--output=run", str(notebook)]
    env = environment(CODDL_STATE_DIR=state, MPLBACKEND="module://matplotlib_inline.backend_inline")
    done = subprocess.run(
        words, env=env, cwd=notebook.parent, capture_output=True, text=True, timeout=5 * PATIENCE_S
    )
    assert done.returncode == 0, done.stderr


def _outputs(notebook: Path) -> list[dict[str, Any]]:  # Any: JSON
    """Give the last thing that each cell with an output shows."""
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    shown = [cell["outputs"][-1] for cell in cells if cell.get("outputs")]
    for each in shown:
        if "text" in each:
            each["text"] = "".join(each["text"])
        for kind, data in each.get("data", {}).items():
            each["data"][kind] = "".join(data)
    return shown

"""What tests of the dashboard share: a real browser, and real pools."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import Browser, expect, sync_playwright

from coddl.server.dashboard import BUILT
from tests.e2e.pool import PATIENCE_S
from tests.e2e.up_pool import UpPool

SLOTS: Final = 4
FLAGS: Final = (
    "--no-sandbox",  # tests run as root
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Give the system's Chromium.

    For a module only: Playwright's driver ends when its input is closed, of which processes have a
    copy that later tests fork, such as a DataLoader's. It would be waited for forever.
    """
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if program is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    if not (BUILT / "index.html").is_file():
        pytest.skip("the dashboard is not built: make web")
    expect.set_options(timeout=1_000 * PATIENCE_S)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def pool(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpPool]:
    """Give a pool of CPU slots, whose jobs all have the same share."""
    assert browser.is_connected()
    pool = UpPool(tmp_path_factory.mktemp("pool"))
    up = ("up", "--port", 0, "--slots", SLOTS, "--policy", "max-min", "--cool-down", 0)
    pool.coddl(*up)
    try:
        yield pool
    finally:
        pool.coddl("down", "--cancel-jobs")


@pytest.fixture
def pace(tmp_path: Path) -> Path:
    """Give a file that says how long jobs take per sample, in seconds."""
    file = tmp_path / "pace"
    file.write_text("0.01")
    return file

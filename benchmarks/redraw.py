"""How long the dashboard takes to draw an hour of a pool again.

    python -m benchmarks.redraw --json

Chromium shows the built page with an invented pool. Its chart is made narrower and wider, which
draws all of it again; a redraw lasts until the browser begins its next frame. The reference is a
frame of the same page in which nothing is drawn.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from typing import Final

from playwright.sync_api import Locator, sync_playwright

from benchmarks.elastic.job import machine
from tests.dashboard.conftest import FLAGS
from tests.dashboard.invented_pool import InventedPool
from tests.dashboard.stub_server import PAGE, StubServer
from tests.dashboard.visit import Visit

# Gives the milliseconds of each frame in which the chart gets another width, if `resizes`.
FRAMES: Final = """async (chart, [repeats, resizes]) => {
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const took = [];
  await frame();
  for (let i = 0; i < repeats; i++) {
    const begun = performance.now();
    if (resizes) chart.style.width = `${800 + 20 * (i % 8)}px`;
    await frame();
    took.push(performance.now() - begun);
  }
  return took;
}"""


def main() -> int:
    """Print the figures."""
    options = _options()
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if program is None or not (PAGE / "index.html").is_file():
        sys.stderr.write("error: needs chromium (apt-get install chromium) and `make web`\n")
        return 2
    pool = InventedPool(
        time.time(), gpus=options.gpus, active=options.jobs, decisions=options.decisions
    )
    with sync_playwright() as playwright, StubServer(pool) as server:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        with Visit(browser, server.url, "any") as visit:
            chart = visit.region("GPUs over time").get_by_role("img")
            chart.wait_for()
            idle = _frames(chart, options.repeats, resizes=False)
            redraw = _frames(chart, options.repeats, resizes=True)
        browser.close()
    about = {"gpus": options.gpus, "jobs": options.jobs, "decisions": options.decisions}
    found = {
        **about,
        "redraw_ms": statistics.median(redraw),
        "redraw_fastest_ms": min(redraw),
        "frame_ms": statistics.median(idle),
        "machine": machine(),
    }
    sys.stdout.write(json.dumps(found, indent=2) + "\n" if options.json else _told(found))
    return 0


def _frames(chart: Locator, repeats: int, *, resizes: bool) -> list[float]:
    return [float(ms) for ms in chart.evaluate(FRAMES, [repeats, resizes])]


def _told(found: dict[str, object]) -> str:
    return (
        f"{found['gpus']} GPUs, {found['jobs']} jobs, {found['decisions']} decisions: drawn again "
        f"in {found['redraw_ms']:.1f} ms (fastest: {found['redraw_fastest_ms']:.1f} ms); "
        f"a frame without: {found['frame_ms']:.1f} ms\n"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.redraw", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--gpus", type=int, default=64, help="GPUs of the pool (64)")
    parser.add_argument("--jobs", type=int, default=40, help="jobs that run (40)")
    parser.add_argument(
        "--decisions", type=int, default=600, help="decisions in the last hour (600)"
    )
    parser.add_argument("--repeats", type=int, default=40, help="redraws (40)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

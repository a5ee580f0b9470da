"""Draw docs/img/demo.svg: the demo in the middle of its run.

python benchmarks/demo.py      takes a minute, as `coddl demo` does
"""

import argparse
import io
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from coddl.cli.demo.command import played
from coddl.cli.demo.display import NoDisplay, screen
from coddl.cli.demo.history import DemoHistory
from coddl.cli.poolview import show

IMAGE: Final = Path(__file__).parents[1] / "docs" / "img" / "demo.svg"
COLUMNS: Final = 112
FONTS: Final = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)  # an image fetches nothing


class FrameRecorder(NoDisplay):
    """Keeps the frame that shows most: many jobs that train, with shares that differ."""

    def __init__(self) -> None:
        self.lines: list[Text] = []
        self._most = 0

    def show(self, history: DemoHistory, new: Sequence[tuple[float, str, str]]) -> None:  # noqa: ARG002
        shares = [part.job["gpus"] for part in history.parts if part.job["state"] == "RUNNING"]
        shown = len(shares) + 2 * len(set(shares))
        if shown >= self._most:
            self._most, self.lines = shown, list(screen(history, COLUMNS))


def main() -> None:
    """Play the demo and write the image."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=IMAGE, help="the file to write")
    out: Path = parser.parse_args().out
    display = FrameRecorder()
    with tempfile.TemporaryDirectory(prefix="coddl-demo-", ignore_cleanup_errors=True) as folder:
        played(Path(folder), None, display, for_program=False)
    console = Console(
        record=True, width=COLUMNS, force_terminal=True, highlight=False, file=io.StringIO()
    )
    show(display.lines, console)
    drawn = console.export_svg(title="coddl demo", unique_id="coddl-demo")
    out.write_text(FONTS.sub("", drawn), "utf-8")
    print(f"wrote {out}")


if __name__ == "__main__":
    main()

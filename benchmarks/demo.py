"""Draw docs/img/demo.svg: the demo as it stands at its end, and what it comes to.

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

from coddl.cli.demo.command import played
from coddl.cli.demo.playbill import Playbill
from coddl.cli.demo.stage import Curtain, picture
from coddl.cli.demo.summary import summary_lines
from coddl.cli.poolview import show

IMAGE: Final = Path(__file__).parents[1] / "docs" / "img" / "demo.svg"
COLUMNS: Final = 112
FONTS: Final = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)  # an image fetches nothing


class FrameRecorder(Curtain):
    """Keeps the newest picture."""

    def __init__(self) -> None:
        self.bill: Playbill | None = None

    def show(self, bill: Playbill, new: Sequence[tuple[float, str, str]]) -> None:  # noqa: ARG002
        self.bill = bill


def main() -> None:
    """Play the demo and write the image."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=IMAGE, help="the file to write")
    out: Path = parser.parse_args().out
    stage = FrameRecorder()
    with tempfile.TemporaryDirectory(prefix="coddl-demo-", ignore_cleanup_errors=True) as folder:
        summary = played(Path(folder), None, stage, for_program=False)
    assert stage.bill is not None
    console = Console(
        record=True, width=COLUMNS, force_terminal=True, highlight=False, file=io.StringIO()
    )
    show(picture(stage.bill, COLUMNS), console)
    show(summary_lines(summary), console)
    drawn = console.export_svg(title="coddl demo", unique_id="coddl-demo")
    out.write_text(FONTS.sub("", drawn), "utf-8")
    print(f"wrote {out}")


if __name__ == "__main__":
    main()

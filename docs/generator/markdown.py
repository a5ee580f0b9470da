"""What the generated pages have in common."""

import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
Json = Mapping[str, Any]  # Any: what JSON can hold


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Give a Markdown table."""
    lines = [head, ["---"] * len(head), *([_cell(each) for each in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(text: str) -> str:
    """Give a cell on one line. A bar in code would end it or show a backslash, so it is HTML."""
    code = re.compile(r"`([^`]*\|[^`]*)`")
    one_line = " ".join(text.split())
    return code.sub(lambda found: f"<code>{html.escape(found[1])}</code>", one_line).replace(
        "|", "&#124;"
    )


def page(*parts: str) -> str:
    """Give a page of these paragraphs and tables."""
    return "\n\n".join(parts).strip()

"""What the generated pages have in common."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
Json = Mapping[str, Any]  # Any: what JSON can hold


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Give a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in line) + " |"
        for line in lines
    )


def page(*parts: str) -> str:
    """Give a page of these paragraphs and tables."""
    return "\n\n".join(parts).strip()

"""How every command offers output for programs: `-o json`, alias `--json`."""

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import typer

Output = Annotated[Literal["table", "json"], typer.Option("-o", "--output", help="Output format.")]
AsJson = Annotated[bool, typer.Option("--json", help="Same as -o json.")]


def asks_json(words: Sequence[str]) -> bool:
    """Return whether a command that could not be read asked for it; not what follows a script."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "--" or word.endswith(".py"):
            return False
        if word in ("--json", "-ojson", "--output=json"):
            return True
        if word in ("-o", "--output") and following == "json":
            return True
    return False


def wants_json(output: str, as_json: bool) -> bool:
    """Return whether a program will read the output."""
    return as_json or output == "json"


def without_nan(value: object) -> object:
    """Replace what JSON cannot express (NaN, infinity) by null."""
    if isinstance(value, dict):
        return {key: without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

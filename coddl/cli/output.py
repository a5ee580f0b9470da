"""How every command offers output for programs: `-o json`, alias `--json`."""

from typing import Annotated, Literal

import typer

Output = Annotated[
    Literal["table", "json"], typer.Option("-o", "--output", help="What to print on stdout.")
]
AsJson = Annotated[bool, typer.Option("--json", help="The same as -o json.")]


def wants_json(output: str, as_json: bool) -> bool:
    """Tell whether a program will read the output."""
    return as_json or output == "json"

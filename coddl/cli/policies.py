"""`coddl policies` and `coddl placements`: list policies and placements, with parameters."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated

import typer

from coddl.cli.connect import complete_placements, complete_policies
from coddl.cli.output import AsJson, Output, wants_json

POLICIES_EXAMPLES = """
Examples:

  coddl policies

  coddl policies themis

  coddl policies -o json
"""
PLACEMENTS_EXAMPLES = """
Examples:

  coddl placements

  coddl placements philly
"""
WIDTH = 15  # of the column of names


def policies(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Show this policy and its parameters.",
            autocompletion=complete_policies,
        ),
    ] = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """List the scheduling policies, or show one with its parameters.

    Parameters follow a colon: tiresias-l:threshold_gpu_h=50,promote=8.
    Your own policy is path/to/file.py:name.
    """
    from coddl.core.registry import POLICIES, policy_from

    if name:
        policy_from(name)  # raises for an unknown name or parameter
    _show(POLICIES, name, "policies", wants_json(output, as_json))


def placements(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Show this placement and its parameters.",
            autocompletion=complete_placements,
        ),
    ] = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """List the placements, which choose the GPUs of each job, or show one.

    Any placement works with any policy:
    coddl simulate --cluster 16x4 --placement philly:timeout_s=60
    """
    from coddl.core.registry import PLACEMENTS, placement_from

    if name:
        placement_from(name)
    _show(PLACEMENTS, name, "placements", wants_json(output, as_json))


def _show(known: Mapping[str, type], name: str, command: str, for_program: bool) -> None:
    from rich.text import Text

    from coddl.cli.poolview import show
    from coddl.core.named import parameters_of

    name = name.partition(":")[0]
    chosen = {each: cls for each, cls in known.items() if not name or each == name}
    if for_program:
        typer.echo(json.dumps([_as_data(*each) for each in chosen.items()], indent=2))
        return
    for each, cls in chosen.items():
        summary, rules = _docs(cls)
        show([Text().append(each.ljust(WIDTH - 2), style="bold").append(f"  {summary}")])
        if name:
            settings = [
                f"  {parameter.name}={parameter.default or '…'}   ({parameter.kind})"
                for parameter in parameters_of(cls)
            ]
            show(map(Text, ["", f"  {rules}", "", *settings]))
    if not name:
        show([Text(), Text(f"Details and parameters: coddl {command} NAME")])


def _as_data(name: str, cls: type) -> dict[str, object]:
    from coddl.core.named import parameters_of

    summary, rules = _docs(cls)
    parameters = [asdict(parameter) for parameter in parameters_of(cls)]
    return {"name": name, "summary": summary, "rules": rules, "parameters": parameters}


def _docs(cls: type) -> tuple[str, str]:
    """The first paragraph of a class's docstring, and the rest."""
    summary, _, rules = (cls.__doc__ or "").partition("\n\n")
    return " ".join(summary.split()), " ".join(rules.split())

"""`coddl policies`: what there is to choose from."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from coddl.cli.output import AsJson, Output, wants_json

if TYPE_CHECKING:
    from coddl.core.named import Parameter


def policies(
    name: Annotated[str, typer.Argument(help="Show one policy, with its parameters.")] = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """List the scheduling policies, or show one with its parameters.

    Parameters are given after a colon: tiresias-l:threshold_gpu_h=50,promote=8. A policy of your
    own is path/to/file.py:name.
    """
    from coddl.core.policies.registry import POLICIES, policy_from, policy_parameters

    if name:
        policy_from(name)  # says what is wrong with the name
        name = name.partition(":")[0]
    chosen = [name] if name else list(POLICIES)
    if wants_json(output, as_json):
        typer.echo(
            json.dumps([_as_data(name, policy_parameters(name)) for name in chosen], indent=2)
        )
        return
    width = max(13, *(len(each) + 2 for each in chosen))
    for each in chosen:
        summary, rules = _said(each)
        typer.secho(each, bold=True, nl=False)
        typer.echo(f"{' ' * (width - len(each))}{summary}")
        if name:
            typer.echo(f"\n  {rules}\n")
            for parameter in policy_parameters(each):
                typer.echo(f"  {parameter.name}={parameter.default or '…'}   ({parameter.kind})")
    if not name:
        typer.echo("\nParameters and rules of one: coddl policies NAME")


def _as_data(name: str, parameters: "list[Parameter]") -> dict[str, object]:
    from dataclasses import asdict

    summary, rules = _said(name)
    return {
        "name": name,
        "summary": summary,
        "rules": rules,
        "parameters": [asdict(parameter) for parameter in parameters],
    }


def _said(name: str) -> tuple[str, str]:
    """What a policy says of itself: in a sentence, and the rules that decide results most."""
    from coddl.core.policies.registry import POLICIES

    summary, _, rules = (POLICIES[name].__doc__ or "").partition("\n\n")
    return " ".join(summary.split()), " ".join(rules.split())

"""`coddl policies` and `coddl placements`: list policies and placements, with parameters."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from coddl.cli.connect import (
    Server,
    StateDir,
    complete_placements,
    complete_policies,
    find_server,
    note,
)
from coddl.cli.output import AsJson, Output, wants_json
from coddl.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coddl.core.named import Described, Parameter

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
ASK_S = 2.0  # that a pool may take to list its plug-ins, if no pool was named


def policies(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Show this policy and its parameters.",
            autocompletion=complete_policies,
        ),
    ] = "",
    server: Server = "",
    state_dir: StateDir = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """List the scheduling policies, with those of the pool's plug-ins, or show one in detail.

    Parameters follow a colon: tiresias-l:threshold_gpu_h=50,promote=8.
    Your own policy is path/to/file.py:name in the simulator; a pool loads it with --plugin.
    """
    from coddl.core.named import described, is_plugin
    from coddl.core.registry import POLICIES, policy_from

    if name and not is_plugin(name):
        policy_from(name)  # raises for an unknown name or parameter
    ours = [described(*each) for each in POLICIES.items()]
    found = _chosen([*ours, *_plugged("policies", server, state_dir)], name, "policy")
    _show(found, name, "policies", wants_json(output, as_json))


def placements(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Show this placement and its parameters.",
            autocompletion=complete_placements,
        ),
    ] = "",
    server: Server = "",
    state_dir: StateDir = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """List the placements, which choose the GPUs of each job, or show one.

    Any placement works with any policy:
    coddl simulate --cluster 16x4 --placement philly:timeout_s=60
    """
    from coddl.core.named import described, is_plugin
    from coddl.core.registry import PLACEMENTS, placement_from

    if name and not is_plugin(name):
        placement_from(name)
    ours = [described(*each) for each in PLACEMENTS.items()]
    found = _chosen([*ours, *_plugged("placements", server, state_dir)], name, "placement")
    _show(found, name, "placements", wants_json(output, as_json))


def _plugged(
    kind: Literal["policies", "placements"], server: str, state_dir: str
) -> "list[Described]":
    """Ask the pool for what its plug-ins offer; where there is no pool, there are none."""
    from coddl.core.named import Described, Parameter

    def read(each: dict[str, Any]) -> Described:  # Any: JSON
        parameters = [Parameter(**parameter) for parameter in each["parameters"]]
        return Described(each["name"], each["summary"], each["rules"], parameters)

    # The list of ours is of use without a pool, and without what a client needs.
    try:
        from coddl.api.client import Client

        with Client(find_server(server, state_dir), within_s=ASK_S) as client:
            return [read(each) for each in client.get("/plugins")[kind]]
    except ModuleNotFoundError:
        return []
    except UserError as error:
        if server:
            note(f"{kind} of the pool's plug-ins are not listed: {error.because}")
        return []


def _chosen(known: "Sequence[Described]", name: str, noun: str) -> "list[Described]":
    """Return the one that is named, or all."""
    from coddl.core.named import is_plugin, plugin_parts

    if not name:
        return list(known)
    only = ":".join(plugin_parts(name)[:2]) if is_plugin(name) else name.partition(":")[0]
    if found := [each for each in known if each.name == only]:
        return found
    plugged = ", ".join(each.name for each in known if is_plugin(each.name))
    raise UserError(
        f'{noun} "{name}" cannot be shown',
        f'the pool has no plug-in with a {noun} "{only}"',
        f"one of {plugged}" if plugged else "coddl up --plugin FILE",
    )


def _settings(parameters: "Sequence[Parameter]") -> list[str]:
    """Write each parameter with its default, what it means, and what it may be, on a line."""
    names = [f"{each.name}={each.default or '…'}" for each in parameters]
    width = max(map(len, names), default=0)
    return [
        f"  {name.ljust(width)}  {each.meaning}{' ' * bool(each.meaning)}({each.kind})"
        for name, each in zip(names, parameters, strict=True)
    ]


def _show(found: "Sequence[Described]", name: str, command: str, for_program: bool) -> None:
    from rich.text import Text

    from coddl.cli.poolview import show

    if for_program:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2))
        return
    width = max(WIDTH, *(len(each.name) + 2 for each in found))
    for each in found:
        show([Text().append(each.name.ljust(width - 2), style="bold").append(f"  {each.summary}")])
        if name:
            show(map(Text, ["", f"  {each.rules}", "", *_settings(each.parameters)]))
    if not name:
        show([Text(), Text(f"Details and parameters: coddl {command} NAME")])

"""What operators turn: nodes, drain, forget, policy."""

import json
import time
from typing import Annotated

import typer

from coddl.cli.connect import (
    Server,
    StateDir,
    check_choice,
    complete_nodes,
    complete_placements,
    complete_policies,
    connect,
)
from coddl.cli.output import AsJson, Output, wants_json

NODES_EXAMPLES = "Examples:  coddl nodes   coddl nodes -o json"
DRAIN_EXAMPLES = "Examples:  coddl drain gpu-3   coddl drain gpu-3 --undo"
FORGET_EXAMPLES = "Examples:  coddl forget gpu-3"
POLICY_EXAMPLES = """
Examples:

  coddl policy                 which one decides

  coddl policy afs-l           another one, from now on; no job loses a step

  coddl policy tiresias-l:promote=8

  coddl policy --placement tiresias       other devices for those who move; the policy stays
"""

NodeName = Annotated[
    str, typer.Argument(metavar="NODE", help="A node.", autocompletion=complete_nodes)
]
PolicyName = Annotated[
    str,
    typer.Argument(
        metavar="[NAME]",
        help="The policy to switch to, parameters after a colon.",
        autocompletion=complete_policies,
    ),
]
Placement = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="The placement to switch to: which devices jobs get from now on.",
        autocompletion=complete_placements,
    ),
]


def nodes(
    server: Server = "", state_dir: StateDir = "", output: Output = "table", as_json: AsJson = False
) -> None:
    """List the pool's nodes, their devices, and who has them."""
    with connect(server, state_dir) as client:
        found = client.get("/nodes")["items"]
    if wants_json(output, as_json):
        print(json.dumps(found, indent=2))
        return
    from coddl.cli.poolview import nodes_lines, show

    show(nodes_lines(found))


def drain(
    node: NodeName,
    undo: Annotated[bool, typer.Option("--undo", help="Let jobs onto it again.")] = False,
    server: Server = "",
    state_dir: StateDir = "",
    *,
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Let nothing new start on a node, and have what runs there move away."""
    from coddl.api.client import in_path

    with connect(server, state_dir) as client:
        found = client.post(f"/nodes/{in_path(node)}:{'undrain' if undo else 'drain'}")
    if wants_json(output, as_json):
        print(json.dumps(found, indent=2))
    elif undo:
        print(f"{found['name']}: takes jobs again")
    elif found["jobs"]:
        jobs = ", ".join(str(job) for job in found["jobs"])
        print(f"{found['name']}: drained; still there: job {jobs}, moving away")
    else:
        print(f"{found['name']}: drained, and empty")


def forget(
    node: NodeName,
    server: Server = "",
    state_dir: StateDir = "",
    *,
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Take a node off the list that was lost and will not come back."""
    from coddl.api.client import in_path

    with connect(server, state_dir) as client:
        found = client.post(f"/nodes/{in_path(node)}:forget")
    if wants_json(output, as_json):
        print(json.dumps(found, indent=2))
    else:
        print(f"{found['name']}: forgotten")


def policy(
    *,
    name: PolicyName = "",
    placement: Placement = "",
    server: Server = "",
    state_dir: StateDir = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Show which policy and which placement decide, or switch to others while jobs run."""
    check_choice(name, placement)
    with connect(server, state_dir) as client:
        if name or placement:
            found = client.put("/policy", {"policy": name, "placement": placement})
        else:
            found = client.get("/policy")
    if wants_json(output, as_json):
        print(json.dumps(found, indent=2))
        return
    from coddl.cli.poolview import moment

    by = f" by {found['by']}" if found["by"] else ""
    since = f" since {moment(found['since_s'], time.time())}" if found["since_s"] else ""
    print(f"{found['policy']} with {found['placement']}{since}{by}")

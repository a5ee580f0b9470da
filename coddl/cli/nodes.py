"""What operators turn: nodes, drain, forget, policy."""

import json
from typing import Annotated, Literal

import typer

from coddl.cli.connect import (
    Server,
    StateDir,
    check_choice,
    complete_nodes,
    complete_placements,
    complete_policies,
    connect,
    note,
    pool_time_s,
)
from coddl.cli.output import AsJson, Output, wants_json
from coddl.cli.spans import read_span
from coddl.core.errors import UserError

NODES_EXAMPLES = """
Examples:

  coddl nodes

  coddl nodes -o wide    with the versions of Python, torch and CoDDL

  coddl nodes -o json
"""
DRAIN_EXAMPLES = """
Examples:

  coddl drain gpu-3                move its jobs away; those of fixed size stay to their end

  coddl drain gpu-3 --within 90s   leave no job there after that: the rest is saved and stopped

  coddl drain gpu-3 --undo
"""
FORGET_EXAMPLES = "Examples:  coddl forget gpu-3"
POLICY_EXAMPLES = """
Examples:

  coddl policy                       show policy and placement

  coddl policy afs-l                 switch the policy; no job loses a step

  coddl policy tiresias-l:promote=8

  coddl policy --placement tiresias  switch the placement only
"""

NodesOutput = Annotated[
    Literal["table", "wide", "json"], typer.Option("-o", "--output", help="Output format.")
]
NodeName = Annotated[
    str, typer.Argument(metavar="NODE", help="Name of a node.", autocompletion=complete_nodes)
]
Within = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        help="Be empty within this time (90s, 10m): jobs that can't move are saved and stopped.",
    ),
]
PolicyName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Policy to switch to; parameters follow a colon.",
        autocompletion=complete_policies,
    ),
]
Placement = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Placement to switch to.",
        autocompletion=complete_placements,
    ),
]


def nodes(
    server: Server = "",
    state_dir: StateDir = "",
    output: NodesOutput = "table",
    as_json: AsJson = False,
) -> None:
    """List the nodes of the pool, their GPUs, and the jobs that use them."""
    with connect(server, state_dir) as client:
        answer = client.get("/nodes")
    found, engine = answer["items"], answer.get("engine")
    if wants_json(output, as_json):
        print(json.dumps(found, indent=2))
        return
    from coddl.cli.poolview import engine_lines, nodes_lines, show

    if found or engine is None:
        show(nodes_lines(found, is_wide=output == "wide"), one_line_each=True)
    if engine is not None:
        show(engine_lines(engine))
    for problem in answer.get("problems", []):
        note(problem)


def drain(
    node: NodeName,
    undo: Annotated[bool, typer.Option("--undo", help="Let the node take jobs again.")] = False,
    within: Within = "",
    server: Server = "",
    state_dir: StateDir = "",
    *,
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Move all jobs off a node and start none there until `--undo`."""
    from coddl.api.client import in_path

    if within and undo:
        raise UserError(
            "--within can't be used with --undo",
            "a node that takes jobs again has no deadline",
            f"coddl drain {node} --undo",
        )
    within_s = f"{read_span('--within', within):g}" if within else None
    what = "undrain" if undo else "drain"
    with connect(server, state_dir) as client:
        found = client.post(f"/nodes/{in_path(node)}:{what}", within_s=within_s)
    if wants_json(output, as_json):
        print(json.dumps(found, indent=2))
    elif undo:
        print(f"{found['name']}: no longer drained; it takes jobs again")
    elif found["jobs"]:
        jobs = ", ".join(str(job) for job in found["jobs"])
        by = f" within {within}" if within else ""
        print(f"{found['name']}: drained; moving away{by}: job {jobs}")
    else:
        print(f"{found['name']}: drained; no jobs are left on it")


def forget(
    node: NodeName,
    server: Server = "",
    state_dir: StateDir = "",
    *,
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Remove a lost node from the pool's list."""
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
    """Show or switch the scheduling policy and the placement, while jobs run."""
    check_choice(name, placement)
    with connect(server, state_dir) as client:
        if name or placement:
            found = client.put("/policy", {"policy": name, "placement": placement})
        else:
            found = client.get("/policy")
        if wants_json(output, as_json):
            print(json.dumps(found, indent=2))
            return
        now_s = pool_time_s(client) if found["since_s"] else 0.0
    from coddl.cli.poolview import moment

    at = f" at {moment(found['since_s'], now_s)}" if found["since_s"] else ""
    by = found["by"] or ("a user" if at else "")
    origin = f", set by {by}{at}" if by else " (default)"
    print(f"policy {found['policy']}, placement {found['placement']}{origin}")
    if trouble := found.get("trouble"):
        note(f"{trouble['what']}: {trouble['because']}; jobs keep what they have")
        note(f"try {trouble['try']}")

"""Measure what the hardware of this machine does, or show what was measured."""

import json
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from coddl.cli.connect import StateDir, needs
from coddl.cli.engines import Slots
from coddl.cli.output import AsJson, Output, wants_json
from coddl.core.errors import UserError

if TYPE_CHECKING:
    from coddl.agent.inspection.hardware import NodeHardware
    from coddl.agent.inspection.inspecting import NodeMeeting
    from coddl.core.speed.inspection import Inspection

EXAMPLES: Final = """
Examples:

  coddl inspect                      measure this machine, once

  coddl inspect --show               what was measured, with plots

  coddl inspect --again --save inspection.json

  coddl inspect --listen 10.0.0.1 --nodes 2            on one node; it prints the code

  coddl inspect --join 10.0.0.1 --code 1f0c…           on the other
"""
PORT: Final = 7434

Show = Annotated[
    bool, typer.Option("--show", help="Show what was measured, with plots; measure nothing.")
]
Again = Annotated[bool, typer.Option("--again", help="Measure even if the hardware is known.")]
Quick = Annotated[
    bool, typer.Option("--quick", help="Measure fewer sizes, and each for a shorter time.")
]
Save = Annotated[str, typer.Option(metavar="FILE", help="Write the inspection to a file, too.")]
Listen = Annotated[
    str,
    typer.Option(
        metavar="HOST[:PORT]",
        help="Measure the link between nodes, too: listen at this address for the others.",
    ),
]
Nodes = Annotated[
    int,
    typer.Option(
        min=2, max=1024, metavar="N", help="With --listen: number of nodes, this one included."
    ),
]
Join = Annotated[
    str,
    typer.Option(
        metavar="HOST[:PORT]", help="Measure the link between nodes with the one that listens."
    ),
]
Code = Annotated[
    str,
    typer.Option(
        metavar="CODE",
        envvar="CODDL_INSPECT_CODE",
        help="What nodes know each other by (default: with --listen, one is made up and printed).",
    ),
]


def inspect(
    *,
    show: Show = False,
    again: Again = False,
    quick: Quick = False,
    slots: Slots = None,
    listen: Listen = "",
    nodes: Nodes = 2,
    join: Join = "",
    code: Code = "",
    save: Save = "",
    state_dir: StateDir = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Measure how fast workers on this machine exchange gradients, update parameters and copy.

    Takes about 20 seconds. The result is kept in the state directory until the hardware changes.

    Run it while no job runs here: both would be slower.
    """
    meeting = _meeting(listen, join, code, nodes)
    if show and (meeting is not None or again):
        because = "--show measures nothing"
        raise UserError("--show can't be used here", because, "coddl inspect --show by itself")
    with needs("agent"):
        from coddl.agent.inspection.hardware import look_at_hardware
        from coddl.agent.inspection.inspecting import InspectionOptions, inspected
        from coddl.agent.inspection.store import write_inspection
        from coddl.agent.inspection.sweeps import QUICK, WHOLE
    from coddl.api.client import state_folder

    options = InspectionOptions(
        state_dir=state_folder(state_dir),
        extent=QUICK if quick else WHOLE,
        again=again,
        slots=slots,
        meeting=meeting,
    )
    node = look_at_hardware(slots)
    found = _stored(options.state_dir, node) if show else inspected(node, options, _tell)
    if save:
        write_inspection(Path(save).absolute(), found)
    if wants_json(output, as_json):
        print(json.dumps(found.as_data(), indent=2))
    else:
        _print(found, with_plots=show)


def _print(found: "Inspection", *, with_plots: bool) -> None:
    from coddl.cli.inspectionview import inspection_lines, plot_lines
    from coddl.cli.poolview import show

    show(inspection_lines(found))
    for name, link in found.links.items() if with_plots else ():
        print()
        show(plot_lines(name, link), one_line_each=True)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _stored(folder: Path, node: "NodeHardware") -> "Inspection":
    from coddl.agent.inspection.store import path_of, stored_inspection

    if (found := stored_inspection(folder, node.hardware)) is None:
        because = f"{path_of(folder, node.hardware)} has nothing on: {node.hardware}"
        raise UserError("this machine has not been inspected", because, "coddl inspect")
    return found


def _meeting(listen: str, join: str, code: str, nodes: int) -> "NodeMeeting | None":
    """Read where nodes meet; None: this one stays by itself."""
    if not listen and not join:
        return None
    if listen and join:
        because = "one node listens, and the others join it"
        raise UserError("--listen and --join can't be used together", because, "one of them")
    with needs("agent"):
        from coddl.agent.inspection.inspecting import NodeMeeting

    if join and not code:
        because = "the node that listens has printed the command, with its code"
        raise UserError("--join needs --code", because, f"--join {join} --code CODE")
    option, text = ("--listen", listen) if listen else ("--join", join)
    host, _, port = text.rpartition(":") if ":" in text else (text, "", str(PORT))
    if not host or not port.isdecimal() or int(port) > 65535 or (join and int(port) == 0):
        because = f'"{text}" is neither HOST nor HOST:PORT'
        raise UserError(f"{option} {text} can't be used", because, f"{option} 10.0.0.1:{PORT}")
    code = code or secrets.token_hex(8)
    return NodeMeeting((host, int(port)), code, nodes if listen else None)

"""What it costs the jobs of a pool to change their GPUs, for people and for the simulator."""

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from coddl.cli.connect import Server, StateDir, connect
from coddl.cli.output import AsJson, Output, wants_json

if TYPE_CHECKING:
    from rich.text import Text

EXAMPLES: Final = """
Examples:

  coddl costs                              what was measured, job by job

  coddl costs -o json > costs.json

  coddl simulate jobs.csv --reconfigure costs.json      with what a switch costs here
"""
JOBS_MAX: Final = 10_000  # of the newest, that costs are taken from
Answer = Mapping[str, Any]  # Any: JSON


def costs(
    *,
    server: Server = "",
    state_dir: StateDir = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Show what resizes, and giving up GPUs and coming back, have cost the newest jobs."""
    from coddl.cli.jobs import jobs_of

    with connect(server, state_dir) as client:
        found = measured(jobs_of(client, JOBS_MAX))
    if wants_json(output, as_json):
        print(json.dumps(found, indent=2))
        return
    from coddl.cli.poolview import show

    show(lines_of(found))


def measured(jobs: Sequence[Answer]) -> dict[str, Any]:
    """Collect what is known, and what it means for the simulator: the median cost of a switch."""
    keys = ("id", "name", "state_bytes", "last_pause_s", "switch_s")
    items = [{key: job[key] for key in keys} for job in jobs]
    items = [each for each in items if each["switch_s"] is not None or each["last_pause_s"]]
    switches = [each["switch_s"] for each in items if each["switch_s"] is not None]
    switch_s = statistics.median(switches) if switches else None
    reconfigure = None if switch_s is None else f"stall:{switch_s:.3g}"
    return {"items": items, "switch_s": switch_s, "reconfigure": reconfigure}


def lines_of(found: Mapping[str, Any]) -> "list[Text]":
    """Write the table, and what to do with it."""
    from rich.text import Text

    from coddl.cli.poolview import memory_size, table

    if not found["items"]:
        return [Text("no job has been resized, or has given up its GPUs and come back, yet")]
    rows = [
        {
            "ID": str(each["id"]),
            "NAME": each["name"],
            "MEMORY": memory_size(each["state_bytes"]) if each["state_bytes"] else "",
            "RESIZE": _seconds(each["last_pause_s"]),
            "SWITCH": _seconds(each["switch_s"]),
        }
        for each in found["items"]
    ]
    lines = table(rows)
    if found["reconfigure"] is not None:
        lines += [Text(f"in the simulator: --reconfigure {found['reconfigure']}")]
    return lines


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.3f} s"

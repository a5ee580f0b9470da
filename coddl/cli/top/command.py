"""`coddl top`: live in a terminal, once for files, pipes and programs."""

import json
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from coddl.cli.connect import Server, StateDir, find_server, given_credentials, needs
from coddl.cli.output import AsJson, Output, wants_json

if TYPE_CHECKING:
    from coddl.api.client import Client
    from coddl.cli.top.feed import Connect

EXAMPLES = """
Examples:

  coddl top                       live; ? shows the keys

  coddl top --once                print it once

  coddl top -o json | jq .jobs    for programs
"""
DECISIONS_SHOWN: Final = 5

Once = Annotated[bool, typer.Option("--once", help="Print the pool once, and exit.")]


def top(
    *,
    once: Once = False,
    server: Server = "",
    state_dir: StateDir = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Show the pool at a glance, live: the GPUs of each job and why, nodes, decisions.

    Without a terminal, as in a pipe, it is printed once.
    """
    for_program = wants_json(output, as_json)
    connect = _connector(server, state_dir)
    is_live = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    if once or for_program or not is_live:
        with connect() as client:
            _print_once(client, for_program)
        return
    with needs("top"):
        from coddl.cli.top.app import TopApp
    with connect() as client:
        client.get("/pool")  # a missing server gives the same error as in other commands
    TopApp(connect).run()


def _connector(server: str, state_dir: str) -> "Connect":
    """Return what connects to the server, from any thread; found anew, as it may have moved."""
    given = given_credentials.get()

    def connect() -> "Client":
        with needs("client"):
            from coddl.api.client import Client

            given_credentials.set(given)
            # A stream that breaks off is asked for anew, where the server is then.
            return Client(find_server(server, state_dir), return_s=0.0)

    return connect


def _print_once(client: "Client", for_program: bool) -> None:
    from coddl.cli.top.feed import PoolReader

    look = PoolReader()(client)
    if for_program:
        found = {"pool": look.pool, "nodes": look.nodes, "jobs": look.jobs}
        print(json.dumps(found | {"decisions": look.decisions}, indent=2))
        return
    from rich.console import Console
    from rich.text import Text

    from coddl.cli.poolview import nodes_lines, show
    from coddl.cli.top.lines import decision_lines, pool_line, top_lines

    console = Console(highlight=False)
    lines = [
        pool_line(look.pool, look.nodes, is_short=False),
        Text(),
        *nodes_lines(look.nodes),
        Text(),
        *top_lines(look.jobs, look.at_s, console.width if console.is_terminal else None),
    ]
    if look.decisions:
        lines += [Text(), Text("last decisions", style="bold")]
        lines += decision_lines(look, DECISIONS_SHOWN)
    show(lines, console, one_line_each=True)

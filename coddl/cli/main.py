"""Entry point: the commands, and errors as users see them. Nothing heavy is imported before a
command runs.
"""

import io
import json
import sys
from collections.abc import Callable
from typing import Annotated, Final

from coddl import __version__
from coddl.core.errors import CoddlError, UserError

try:
    import typer
except ModuleNotFoundError:
    sys.exit(
        "error: the coddl command cannot run\n"
        "  because typer is not installed: the base install is for training scripts\n"
        "  try     pip install 'coddl[sim]'"
    )

from coddl.cli import (
    costs,
    daemons,
    doctor,
    engines,
    estimate,
    following,
    inspection,
    jobs,
    nodes,
    policies,
    pool,
    profile,
    replay,
    reproduce,
    run,
    simulate,
    submit,
    trace,
    whatif,
)
from coddl.cli.credentials import with_credentials
from coddl.cli.demo import command as demo
from coddl.cli.output import asks_json
from coddl.cli.plain_command import PlainCommand, PlainGroup
from coddl.cli.top import command as top

app = typer.Typer(
    name="coddl",
    cls=PlainGroup,
    help="Share a GPU cluster among deep-learning jobs that grow and shrink while they train.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with: [cyan]coddl demo[/], or [cyan]coddl up[/] and "
    "[cyan]coddl submit train.py[/]",
)

COMMANDS: Final[dict[str, tuple[tuple[str, Callable[..., None], str], ...]]] = {
    "Pool": (
        ("up", pool.up, pool.UP_EXAMPLES),
        ("down", pool.down, pool.DOWN_EXAMPLES),
        ("top", top.top, top.EXAMPLES),
        ("nodes", nodes.nodes, nodes.NODES_EXAMPLES),
        ("drain", nodes.drain, nodes.DRAIN_EXAMPLES),
        ("forget", nodes.forget, nodes.FORGET_EXAMPLES),
        ("policy", nodes.policy, nodes.POLICY_EXAMPLES),
        ("costs", costs.costs, costs.EXAMPLES),
        ("whatif", whatif.whatif, whatif.EXAMPLES),
        ("events", following.events, following.EVENTS_EXAMPLES),
        ("server", daemons.server, daemons.SERVER_EXAMPLES),
        ("agent", daemons.agent, daemons.AGENT_EXAMPLES),
        ("doctor", doctor.doctor, doctor.EXAMPLES),
        ("inspect", inspection.inspect, inspection.EXAMPLES),
        ("connector", engines.connector, engines.CONNECTOR_EXAMPLES),
        ("demo", demo.demo, demo.EXAMPLES),
    ),
    "Jobs": (
        ("submit", submit.submit, submit.EXAMPLES),
        ("replay", replay.replay, replay.EXAMPLES),
        ("ls", jobs.ls, jobs.LS_EXAMPLES),
        ("describe", jobs.describe, jobs.DESCRIBE_EXAMPLES),
        ("explain", jobs.explain, jobs.EXPLAIN_EXAMPLES),
        ("profile", profile.profile, profile.EXAMPLES),
        ("logs", following.logs, following.LOGS_EXAMPLES),
        ("wait", following.wait, following.WAIT_EXAMPLES),
        ("cancel", jobs.cancel, jobs.CANCEL_EXAMPLES),
        ("suspend", jobs.suspend, jobs.SUSPEND_EXAMPLES),
        ("resume", jobs.resume, jobs.RESUME_EXAMPLES),
        ("resize", jobs.resize, jobs.RESIZE_EXAMPLES),
        ("priority", jobs.priority, jobs.PRIORITY_EXAMPLES),
    ),
    "Without a pool": (
        ("run", run.run, run.EXAMPLES),
        ("simulate", simulate.simulate, simulate.EXAMPLES),
        ("estimate", estimate.estimate, estimate.EXAMPLES),
        ("reproduce", reproduce.reproduce, reproduce.EXAMPLES),
        ("policies", policies.policies, policies.POLICIES_EXAMPLES),
        ("placements", policies.placements, policies.PLACEMENTS_EXAMPLES),
    ),
}
# What follows a script is the script's.
SCRIPTED: Final = {"run": PlainCommand, "submit": submit.SubmitCommand}

for panel, commands in COMMANDS.items():
    for name, function, examples in commands:
        app.command(
            name,
            cls=SCRIPTED.get(name, PlainCommand),
            epilog=examples or None,
            rich_help_panel=panel,
            context_settings={
                "allow_interspersed_args": name not in SCRIPTED,
                "ignore_unknown_options": name == "priority",  # -1 is a number there
            },
        )(with_credentials(function))
app.add_typer(trace.app, name="trace", rich_help_panel="Without a pool")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"coddl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    _version_asked: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Share a GPU cluster among deep-learning jobs that grow and shrink while they train."""


# What typer raises for an unknown option and the like, whichever click it brings along.
USAGE_ERROR: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)


def main() -> None:
    """Run a command; a user's error is shown without a stack trace."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no "·" gets a "?"
    try:
        code = app(standalone_mode=False)
    except USAGE_ERROR as error:
        asked = getattr(getattr(error, "ctx", None), "command_path", "coddl")
        code = (
            2
            if not _message(error)
            else _tell(UserError(f"{asked} cannot run", _message(error), f"{asked} --help"))
        )
    except CoddlError as error:
        code = _tell(error)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    sys.exit(code if isinstance(code, int) else 0)


def _message(error: Exception) -> str:
    written = getattr(error, "format_message", lambda: str(error))
    return " ".join(str(written()).split())


def _tell(error: CoddlError) -> int:
    if asks_json(sys.argv[1:]):
        about = error.parts() if isinstance(error, UserError) else {"what": str(error)}
        print(json.dumps({"error": about, "exit_code": error.exit_code}), file=sys.stderr)
    else:
        print(f"error: {error}", file=sys.stderr)
    return error.exit_code


if __name__ == "__main__":
    main()

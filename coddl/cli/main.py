"""Entry point: the commands, and errors as users see them. Nothing heavy is imported before a
command runs.
"""

import io
import sys
from typing import Annotated

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

from coddl.cli import policies, run, simulate, trace

app = typer.Typer(
    name="coddl",
    help="Share a GPU cluster among deep-learning jobs that grow and shrink while they train.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Examples:  [cyan]coddl simulate[/]   [cyan]coddl simulate jobs.csv --gpus 64 "
    "--policy afs-l --policy srtf[/]   [cyan]coddl policies afs-p[/]",
)
app.command("simulate", epilog=simulate.EXAMPLES)(simulate.simulate)
app.command("policies")(policies.policies)
app.command("run", epilog=run.EXAMPLES, context_settings=run.RUN_SETTINGS)(run.run)
app.command("resize", epilog=run.RESIZE_EXAMPLES)(run.resize)
app.command("suspend", epilog=run.SUSPEND_EXAMPLES)(run.suspend)
app.command("resume", epilog=run.RESUME_EXAMPLES)(run.resume)
app.command("ls", epilog=run.LS_EXAMPLES)(run.ls)
app.add_typer(trace.app, name="trace")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"coddl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    _version_asked: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
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
    print(f"error: {error}", file=sys.stderr)
    return error.exit_code


if __name__ == "__main__":
    main()

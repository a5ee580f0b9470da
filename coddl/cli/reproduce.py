"""`coddl reproduce`: try the claims of the papers, and set our numbers beside theirs."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from coddl.cli.output import AsJson, Output, wants_json
from coddl.core.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from coddl.reproduce.experiment import Details, Experiment, Finding, Inputs

DATA_VARIABLE: Final = "CODDL_DATA"
OTHER_PICTURES: Final = (".eps", ".gif", ".jpeg", ".jpg", ".pdf", ".png", ".webp")
EXAMPLES = """
Examples:

  coddl reproduce                                    what there is

  coddl reproduce poster-512 afs-burst               these two, on generated workloads

  coddl reproduce afs-philly --data ~/traces         on measured data: philly/jobs.csv.gz and others

  coddl reproduce all --data ~/traces --plot plots   all, with a picture of each in plots/

  coddl reproduce poster-512 -o json | jq '.results[].figures'
"""


def complete_experiments(incomplete: str) -> Iterator[tuple[str, str]]:
    """Offer the experiments by name."""
    with contextlib.suppress(Exception):  # a shell waits: no word of what went wrong
        from coddl.reproduce.registry import ALL

        offered = [("all", "every experiment"), *((each.name, each.title) for each in ALL)]
        yield from (each for each in offered if each[0].startswith(incomplete))


Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME]...",
        help="Experiments to run; all: every one. Default: list them.",
        autocompletion=complete_experiments,
    ),
]
Data = Annotated[
    str,
    typer.Option(
        metavar="DIR",
        help="Measured data: a folder with philly/, t4_placements/, k80_p100_v100/. Default: "
        f"${DATA_VARIABLE}; without it, experiments on generated workloads run.",
    ),
]
Seeds = Annotated[int, typer.Option(min=1, help="Runs of what is drawn by chance.")]
PlotFile = Annotated[
    str,
    typer.Option(
        "--plot",
        metavar="FILE.svg|DIR",
        help="Draw what was found, as SVG; any other name is that of a folder.",
    ),
]


def reproduce(
    *,
    names: Names = None,
    data: Data = "",
    seeds: Seeds = 3,
    plot: PlotFile = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Try the claims of the papers: the published number beside ours, and what differs.

    Exit code 1: an experiment that was named could not run. Of all, those without their data are
    left out.
    """
    from rich.console import Console

    from coddl.reproduce.experiment import Inputs
    from coddl.reproduce.registry import ALL, experiments_named

    for_program = wants_json(output, as_json)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=120)
    if not names:
        _list(ALL, console, for_program)
        return
    chosen = experiments_named(names)
    pictures = _pictures(plot, chosen)
    folder = data or os.environ.get(DATA_VARIABLE, "")
    inputs = Inputs(Path(folder).expanduser() if folder else None, seeds)
    outcomes, stopped = _run_all(chosen, inputs, pictures, None if for_program else console)
    if for_program:
        print(json.dumps({"stopped": stopped, "results": outcomes}, indent=2))
    failed = [each for each in outcomes if each["status"] == "failed"]
    skipped = [each for each in outcomes if each["status"] == "skipped"]
    if skipped and "all" in names:
        print(f"{len(skipped)} skipped: their data is not at hand (--data)", file=sys.stderr)
    if stopped:
        raise typer.Exit(130)
    if failed or (skipped and "all" not in names):
        raise typer.Exit(1)


def _list(experiments: "Sequence[Experiment]", console: "Console", for_program: bool) -> None:
    """Tell what there is."""
    if for_program:
        keys = ("name", "title", "source", "needs")
        listed = [{key: getattr(each, key) for key in keys} for each in experiments]
        print(json.dumps({"experiments": listed}, indent=2))
        return
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("experiment", no_wrap=True, style="bold")
    table.add_column("what it tries", ratio=1)
    table.add_column("data", no_wrap=True)
    for each in experiments:
        what = f"{escape(each.title)}\n[dim]{escape(each.source)}[/]"
        table.add_row(each.name, what, each.needs or "-")
    console.print(table)
    console.print("Run one: coddl reproduce NAME   all: coddl reproduce all --data DIR")


def _pictures(plot: str, experiments: "Sequence[Experiment]") -> dict[str, Path]:
    """Where each experiment's picture goes; a folder is made, and a bad place found out early."""
    if not plot:
        return {}
    path = Path(plot)
    if path.suffix == ".svg" and not path.is_dir():
        if len(experiments) > 1:
            raise UserError(
                f"--plot {plot} cannot be written",
                f"it is one file for {len(experiments)} experiments",
                f"--plot {path.with_suffix('')}, a folder",
            )
        return {experiments[0].name: path}
    if path.suffix.lower() in OTHER_PICTURES and not path.is_dir():
        name = path.with_suffix(".svg" if len(experiments) == 1 else "")
        raise UserError(f"--plot {plot} cannot be written", "pictures are SVG", f"--plot {name}")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        because = error.strerror or str(error)
        raise UserError(f"--plot {plot} cannot be written", because, "--plot plots") from None
    return {each.name: path / f"{each.name}.svg" for each in experiments}


Outcome = dict[str, object]


def _run_all(
    experiments: "Sequence[Experiment]",
    inputs: "Inputs",
    pictures: dict[str, Path],
    console: "Console | None",
) -> tuple[list[Outcome], bool]:
    """Run experiments in turn, and show each as it ends; tell whether the user stopped it."""
    from rich.console import Console

    outcomes: list[Outcome] = []
    aside = Console(stderr=True)
    for at, experiment in enumerate(experiments, 1):
        counted = f"{at} of {len(experiments)}: " if len(experiments) > 1 else ""
        try:
            with _waiting(aside, f"{counted}{experiment.name}"):
                outcome, finding = _outcome(experiment, inputs)
        except KeyboardInterrupt:
            print(f"stopped in {experiment.name}", file=sys.stderr)
            return outcomes, True
        outcomes.append(outcome)
        if finding is not None and (path := pictures.get(experiment.name)) is not None:
            from coddl.reproduce.plot import write_plot

            write_plot(path, finding.plot)
            outcome["picture"] = str(path)
        if console is not None:
            _show(experiment, outcome, finding, console)
    return outcomes, False


@contextlib.contextmanager
def _waiting(console: "Console", what: str) -> Iterator[None]:
    """Show on a terminal that something goes on, and for how long."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        bar.add_task(what, total=None)
        yield


def _outcome(experiment: "Experiment", inputs: "Inputs") -> "tuple[Outcome, Finding | None]":
    """Run one; one that cannot run says why."""
    from coddl.reproduce.experiment import MissingData

    began_s = time.perf_counter()
    about: Outcome = {
        key: getattr(experiment, key) for key in ("name", "title", "source", "differs")
    }
    try:
        finding = experiment.run(inputs)
    except UserError as error:
        status = "skipped" if isinstance(error, MissingData) else "failed"
        told = {"what": error.what, "because": error.because, "try": error.try_}
        return about | {"status": status, "error": told}, None
    found = asdict(finding)
    return about | {"status": "done", **found, "wall_s": time.perf_counter() - began_s}, finding


def _show(
    experiment: "Experiment", outcome: Outcome, finding: "Finding | None", console: "Console"
) -> None:
    """Print what one experiment found, or why it did not run."""
    from rich.console import Console
    from rich.markup import escape

    console.print(f"\n[bold]{experiment.name}[/] · {escape(experiment.title)}")
    console.print(f"[dim]{escape(experiment.source)}[/]")
    if finding is None:
        error = outcome["error"]
        assert isinstance(error, dict)
        console.print(f"  {outcome['status']}: {escape(error['because'])}", style="yellow")
        console.print(f"  try {escape(error['try'])}")
        return
    console.print(_figures(finding))
    if finding.details is not None:
        # A program or a file has no edge to wrap at.
        wide = console if console.is_terminal else Console(width=10_000, highlight=False)
        wide.print(_details(finding.details))
    console.print(f"[bold]Differs:[/] {escape(experiment.differs)}")
    for note in finding.notes:
        console.print(f"[bold]Note:[/] {escape(note)}")
    written = f" · {outcome['picture']}" if "picture" in outcome else ""
    console.print(f"[dim]{outcome['wall_s']:.1f} s{escape(written)}[/]")


def _figures(finding: "Finding") -> "RenderableType":
    """The figures as a table."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("figure")
    table.add_column("published", justify="right")
    table.add_column("ours", justify="right", style="bold")
    for figure in finding.figures:
        table.add_row(*map(escape, (figure.what, figure.published or "-", figure.ours)))
    return table


def _details(details: "Details") -> "RenderableType":
    """The numbers behind the figures."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, style="dim")
    for at, name in enumerate(details.head):
        table.add_column(escape(name), justify="right" if at else "left", no_wrap=not at)
    for row in details.rows:
        table.add_row(*map(escape, row))
    return table

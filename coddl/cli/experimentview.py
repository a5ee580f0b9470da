"""How `coddl reproduce` shows experiments and their results in the terminal."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, cast

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from coddl.reproduce.experiment import Experiment, Finding

PIPED_WIDTH: Final = 120


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPED_WIDTH)


def show_list(experiments: Sequence[Experiment]) -> None:
    """Print the experiments, one per row."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("experiment", no_wrap=True, style="bold")
    table.add_column("claim", ratio=1)
    table.add_column("data", no_wrap=True)
    for each in experiments:
        claim = f"{escape(each.title)}\n[dim]{escape(each.source)}[/]"
        table.add_row(each.name, claim, each.needs or "-")
    console = _console()
    console.print(table)
    console.print("Run one: coddl reproduce NAME   Run all: coddl reproduce all --data DIR")


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show on a terminal what runs, and for how long."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    console = Console(stderr=True)
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        bar.add_task(what, total=None)
        yield


def show(experiment: Experiment, outcome: Mapping[str, object], finding: Finding | None) -> None:
    """Print the results of an experiment, or why it did not run."""
    console = _console()
    console.print(f"\n[bold]{experiment.name}[/] · {escape(experiment.title)}")
    console.print(f"[dim]{escape(experiment.source)}[/]")
    if finding is None:
        error = cast(dict[str, str], outcome["error"])
        console.print(f"  {outcome['status']}: {escape(error['because'])}", style="yellow")
        console.print(f"  try {escape(error['try'])}")
        return
    figures = [(each.what, each.published or "-", each.ours) for each in finding.figures]
    console.print(_table(("figure", "published", "ours"), figures))
    if finding.details is not None:
        # Output to a file or a pipe is not wrapped.
        wide = console if console.is_terminal else Console(width=10_000, highlight=False)
        wide.print(_table(finding.details.head, finding.details.rows), style="dim")
    console.print(f"[bold]Differs:[/] {escape(experiment.differs)}")
    for note in finding.notes:
        console.print(f"[bold]Note:[/] {escape(note)}")
    written = f" · {outcome['picture']}" if "picture" in outcome else ""
    console.print(f"[dim]{outcome['wall_s']:.1f} s{escape(written)}[/]")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table whose columns after the first are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD)
    for at, name in enumerate(head):
        table.add_column(escape(name), justify="right" if at else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    return table

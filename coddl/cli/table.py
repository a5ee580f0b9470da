"""The results of a study as a table in the terminal."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from coddl.core.waiting import counted

if TYPE_CHECKING:
    from coddl.sim.run_key import RunKey
    from coddl.sim.study import Study


def minutes(value: float) -> str:
    return f"{value / 60:,.1f}"


def hours(value: float) -> str:
    return f"{value / 3600:,.1f}"


TableRow: TypeAlias = tuple[str, dict[str, object]]  # policy and placement, and their results
TableColumn: TypeAlias = tuple[str, str, Callable[[float], str], int]
# (column, title, how a value is written, +1 if less is better, -1 if more is, 0 if neither)
COLUMNS: Final[tuple[TableColumn, ...]] = (
    ("avg_jct_s", "avg JCT\nmin", minutes, 1),
    ("p50_jct_s", "p50\nmin", minutes, 1),
    ("p95_jct_s", "p95\nmin", minutes, 1),
    ("p99_jct_s", "p99\nmin", minutes, 1),
    ("makespan_s", "makespan\nh", hours, 1),
    ("avg_wait_s", "wait\nmin", minutes, 1),
    ("utilization", "GPUs\nin use", "{:.0%}".format, 0),
    ("gpu_hours", "GPU-h", "{:,.0f}".format, 0),
    ("gpu_hours_held", "GPU-h\nheld", "{:,.0f}".format, 1),
    ("avg_nodes", "avg\nnodes", "{:,.1f}".format, 0),
    ("rho_max", "worst\nrho", "{:,.2f}".format, 1),
    ("reallocations", "resizes", "{:,.0f}".format, 0),
)
# Shown only where nodes come and go.
OF_NODES: Final = ("gpu_hours_held", "avg_nodes")
# Shown only if one of their values is not 0.
RARE: Final[tuple[TableColumn, ...]] = (
    ("migrations", "migrations", "{:,.0f}".format, 0),
    ("failed_jobs", "failed\njobs", "{:,.0f}".format, 0),
    ("killed_jobs", "killed\njobs", "{:,.0f}".format, 0),
    ("lost_gpu_hours", "lost\nGPU-h", "{:,.0f}".format, 1),
)


def print_table(study: "Study") -> None:
    """Print one block of rows per cluster and load; the best of a column is starred."""
    blocks: dict[RunKey, list[TableRow]] = {}
    for key, row in zip(study.row_keys, study.rows, strict=True):
        blocks.setdefault(key.setting, []).append((key.scheduler, row))
    for key, lines in blocks.items():
        rows = [row for _, row in lines]
        jobs = sum(cast(float, rows[0][name]) for name in ("jobs", "failed_jobs", "killed_jobs"))
        parts = [
            study.trace.name if key.queue is None else key.queue,
            f"{jobs:,.0f} job{'' if jobs == 1 else 's'}",
        ]
        up_to = "up to " * (_scales(rows) and ".." in key.cluster)
        parts.append(
            f"{up_to}{counted(key.gpus, 'GPU')}" + (f" ({key.cluster})" if key.cluster else "")
        )
        parts += [f"load {key.load:g}"] if key.load != 1.0 else []
        parts += [f"{rows[0]['seeds']} seeds, ± 95 %"] if "seeds" in rows[0] else []
        _print_fitting(lines, escape(" · ".join(parts)))


def _print_fitting(lines: Sequence[TableRow], title: str) -> None:
    """Print a block; a terminal too narrow for all columns gets the first ones whole."""
    scales = _scales([row for _, row in lines])
    columns = tuple(each for each in COLUMNS if scales or each[0] not in OF_NODES)
    columns += tuple(each for each in RARE if any(row[each[0]] for _, row in lines))
    print_widest(lambda count: _block(lines, title, columns[:count]), len(columns))


def print_widest(
    table_of: Callable[[int], Table], columns: int, console: Console | None = None
) -> None:
    """Print a table with as many of its columns as fit the terminal, and how many are hidden."""
    console, wide = console or _console(), Console(width=10_000)
    for count in range(columns, 0, -1):
        table = table_of(count)
        if Measurement.get(wide, wide.options, table).maximum <= console.width or count == 1:
            console.print(table)
            break
    if count < columns:
        hidden = counted(columns - count, "column")
        console.print(f"{hidden} hidden: widen the terminal, or use -o json", highlight=False)


def short_duration(seconds: float | None) -> str:
    """Write a span of time with three digits, in one unit; empty: not known."""
    if seconds is None:
        return ""
    for unit, size_s in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size_s:
            return f"{_three(seconds / size_s)} {unit}"
    return f"{_three(seconds)} s"


def _three(value: float) -> str:
    return f"{value:,.{2 if value < 10 else 1 if value < 100 else 0}f}"


def plain_table(
    title: str, rows: Sequence[Mapping[str, str]], first: Sequence[str], columns: Sequence[str]
) -> Table:
    """Lay out rows under the names of their columns, of which the first ones are text."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for name in first:
        table.add_column(escape(name), no_wrap=True)
    for name in columns:
        table.add_column(escape(name), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(escape(row[name]) for name in (*first, *columns)))
    return table


def _scales(rows: Sequence[dict[str, object]]) -> bool:
    """Return whether nodes come and go."""
    return any(row["avg_nodes"] == row["avg_nodes"] for row in rows)  # not NaN


def _console() -> Console:
    # Output to a file or a pipe is not wrapped.
    console = Console()
    return console if console.is_terminal else Console(width=10_000)


def _block(lines: Sequence[TableRow], title: str, columns: Sequence[TableColumn]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("policy", no_wrap=True)
    for _, heading, _, _ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("avg JCT\nto best", justify="right", no_wrap=True)
    best = {
        name: min(sign * cast(float, row[name]) for _, row in lines) * sign
        for name, _, _, sign in columns
        if sign
    }
    for scheduler, row in sorted(lines, key=lambda line: cast(float, line[1]["avg_jct_s"])):
        cells = []
        for name, _, written, sign in columns:
            value = cast(float, row[name])
            cell = written(value)
            is_best = sign and len(lines) > 1 and value == value and cell == written(best[name])
            if "ci95" in row and name == "avg_jct_s":
                cell += f" ± {written(cast(dict[str, float], row['ci95'])[name])}"
            cells.append(f"[bold green]{cell}*[/]" if is_best else f"{cell} ")
        ratio = cast(float, row["avg_jct_s"]) / best["avg_jct_s"] if best["avg_jct_s"] else 1.0
        table.add_row(escape(scheduler), *cells, f"{ratio:.2f}x")
    return table

"""The results of a study as a table for people."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from coddl.sim.study import Study


def minutes(value: float) -> str:
    return f"{value / 60:,.1f}"


def hours(value: float) -> str:
    return f"{value / 3600:,.1f}"


# (column, title, how a value is written, +1 if less is better, -1 if more is, 0 if neither)
COLUMNS: Final[tuple[tuple[str, str, Callable[[float], str], int], ...]] = (
    ("avg_jct_s", "avg JCT\nmin", minutes, 1),
    ("p50_jct_s", "p50\nmin", minutes, 1),
    ("p95_jct_s", "p95\nmin", minutes, 1),
    ("p99_jct_s", "p99\nmin", minutes, 1),
    ("makespan_s", "makespan\nh", hours, 1),
    ("avg_wait_s", "wait\nmin", minutes, 1),
    ("utilization", "GPUs\nbusy", "{:.0%}".format, 0),
    ("gpu_hours", "GPU-h", "{:,.0f}".format, 0),
    ("rho_max", "worst\nrho", "{:,.2f}".format, 1),
    ("reallocations", "real-\nlocations", "{:,.0f}".format, 0),
)


def print_table(study: "Study") -> None:
    """Print one block of rows per cluster and load; the best of a column is starred."""
    blocks: dict[tuple[object, ...], list[dict[str, object]]] = {}
    for row in study.rows:
        blocks.setdefault((row["vc"], row["gpus"], row["load"]), []).append(row)
    for (queue, gpus, load), rows in blocks.items():
        parts = [study.trace.name if queue is None else f"{queue}", f"{rows[0]['jobs']:,.0f} jobs"]
        parts += [f"{gpus} GPUs"] + [f"load {load:g}"] * (load != 1.0)
        parts += [f"{rows[0]['seeds']} seeds, ± 95 %"] if "seeds" in rows[0] else []
        _console().print(_block(rows, " · ".join(parts)))


def _console() -> Console:
    # Piped output keeps its width: a program or a file has no edge to wrap at.
    console = Console()
    return console if console.is_terminal else Console(width=160)


def _block(rows: list[dict[str, object]], title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("policy")
    for _, heading, _, _ in COLUMNS:
        table.add_column(heading, justify="right")
    table.add_column("avg JCT\nto best", justify="right")
    best = {
        name: min(sign * cast(float, row[name]) for row in rows) * sign
        for name, _, _, sign in COLUMNS
        if sign
    }
    for row in sorted(rows, key=lambda row: cast(float, row["avg_jct_s"])):
        cells = []
        for name, _, written, sign in COLUMNS:
            value = cast(float, row[name])
            cell = written(value)
            is_best = sign and len(rows) > 1 and value == value and cell == written(best[name])
            if "ci95" in row and name == "avg_jct_s":
                cell += f" ± {written(cast(dict[str, float], row['ci95'])[name])}"
            cells.append(f"[bold green]{cell}*[/]" if is_best else f"{cell} ")
        ratio = cast(float, row["avg_jct_s"]) / best["avg_jct_s"] if best["avg_jct_s"] else 1.0
        table.add_row(str(row["policy"]), *cells, f"{ratio:.2f}x")
    return table

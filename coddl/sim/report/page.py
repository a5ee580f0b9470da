"""Put runs into one HTML file that needs nothing else: style, script and data lie in it."""

import html
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Final

import numpy as np

from coddl.core.columns import FloatColumn
from coddl.sim.node_scaling import NodesHeld
from coddl.sim.report import summary
from coddl.sim.report.series import (
    GpuChanges,
    busiest_window,
    end_s,
    gpu_changes_of,
    jct_cdf,
    origin_s,
    over_time,
    timeline,
)
from coddl.sim.run import Run
from coddl.traces.atomic_write import write_atomically

PLOTTED_RUNS: Final = 12
TIMELINE_CHANGES: Final = 20_000  # of one run
TIMELINE_CHANGES_TOGETHER: Final = 60_000
NODE_CHANGES: Final = 5_000  # of one run
RHO: Final = (
    "ρ is the finish-time fairness of a job: its completion time over the time it would take alone "
    "on an equal share of the GPUs; above 1, it took longer than that."
)

Json = dict[str, object]


def write_report(
    runs: Sequence[Run],
    path: Path,
    *,
    title: str,
    window_s: tuple[float, float] | None = None,
    against: summary.AgainstReplay | None = None,
) -> None:
    """Write an HTML file that compares runs; at `path` there is all of it or what was there before.

    `window_s` is where the GPU timeline opens, counted from the first submission like all times in
    the page; by default a busy time with some thirty jobs. `against`: the runs are a what-if, of
    jobs whose names begin with their numbers.
    """
    page = _page(title, _payload(runs, title, window_s, against))
    write_atomically(path, page.encode("utf-8", "replace"), "report")


def _page(title: str, payload: Json) -> str:
    here = resources.files("coddl.sim.report")
    # Inside a script element only "<" can end it; the other two are for tools that are less exact.
    embedded = json.dumps(payload, allow_nan=False, separators=(",", ":"))
    for risky in "<>&":
        embedded = embedded.replace(risky, f"\\u{ord(risky):04x}")
    parts = {
        "title": html.escape(title),
        "style": here.joinpath("page.css").read_text("utf-8"),
        "data": embedded,
        "charts": here.joinpath("charts.js").read_text("utf-8"),
        "script": here.joinpath("page.js").read_text("utf-8"),
    }
    template = here.joinpath("page.html").read_text("utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def _payload(
    runs: Sequence[Run],
    title: str,
    window_s: tuple[float, float] | None,
    against: summary.AgainstReplay | None,
) -> Json:
    labels, rows = summary.labels_of(runs), summary.table_of(runs, against)
    plotted = runs[:PLOTTED_RUNS]
    held = [
        None if run.events is None else gpu_changes_of(run.events, origin_s(run)) for run in plotted
    ]
    opened = _best_with_timeline(rows, held)
    if window_s is None:
        window_s = _default_window(plotted, held, opened)
    facts = zip(runs, labels, rows, summary.best_of(runs, rows, against), strict=True)
    shown = [
        {
            "label": label,
            "jobs": run.trace.size,
            "numbers": {key: _number(value) for key, value in row.items()},
            "best": best,
        }
        for run, label, row, best in facts
    ]
    for at, run in enumerate(plotted):
        shown[at] |= _plots(run, held[at], window_s, len(plotted))
    return {
        "title": title,
        "facts": _facts(runs),
        "finding": summary.finding(runs, labels, rows, against),
        "notes": _notes(runs, labels, against) + [RHO] * bool(runs),
        "columns": [asdict(column) for column in summary.columns_of(runs, against)],
        "has_job_numbers": against is not None,
        "runs": shown,
        "opened": opened,
        "window_s": window_s,
    }


def _facts(runs: Sequence[Run]) -> list[list[str]]:
    """Name and value of what the header tells."""
    facts = {
        "Trace": _listed([run.trace.name for run in runs]),
        "Queue": _listed([run.key.queue for run in runs if run.key.queue]),
        "Jobs": _range({run.trace.size for run in runs}),
        "GPUs": _range({run.key.gpus for run in runs}),
        "Cluster": _listed([run.key.cluster for run in runs if run.key.cluster]),
        "Load": _listed(
            [f"{run.key.load:g}" for run in runs]
            if any(run.key.load != 1.0 for run in runs)
            else []
        ),
        "Policies": _listed([run.key.policy for run in runs]),
    }
    return [[name, value] for name, value in facts.items() if value]


def _notes(
    runs: Sequence[Run], labels: Sequence[str], against: summary.AgainstReplay | None
) -> list[str]:
    notes = []
    if against is not None:
        notes.append("Ratios are to the replay; best values are marked among all runs.")
    elif len({summary.comparison_key(run) for run in runs}) > 1:
        notes.append(
            "Best values and ratios compare runs with the same trace, queue, cluster and load."
        )
    if len(runs) > PLOTTED_RUNS:
        notes.append(f"The plots show the first {PLOTTED_RUNS} of {len(runs)} runs.")
    partial = [at for at, run in enumerate(runs) if not run.finished.all()]
    for at in partial[:PLOTTED_RUNS]:
        jobs, left = runs[at].trace.size, int((~runs[at].finished).sum())
        notes.append(f"{labels[at]}: {left:,} of {jobs:,} jobs did not finish.")
    if more := len(partial[PLOTTED_RUNS:]):
        notes.append(f"{more} more runs have unfinished jobs.")
    silent = [label for run, label in zip(runs, labels, strict=True) if run.events is None]
    if silent:
        notes.append(
            f"No events were kept of {_listed(silent)}: no utilization, no GPU timeline, and jobs "
            "count as waiting only until their first start."
        )
    return notes


def _best_with_timeline(rows: Sequence[summary.Row], held: Sequence[GpuChanges | None]) -> int:
    """The run whose shares are shown first: of those that can show any the best."""
    able = [at for at, changes in enumerate(held) if changes is not None and len(changes.time_s)]
    jct = {at: [rows[at][key] for key in ("slower", "avg_jct_s")] for at in able}
    return min(able, key=lambda at: np.nan_to_num(jct[at], nan=np.inf).tolist(), default=0)


def _default_window(
    runs: Sequence[Run], held: Sequence[GpuChanges | None], opened: int
) -> tuple[float, float]:
    changes = held[opened] if held else None
    if changes is None or not len(changes.time_s):
        return 0.0, max(map(end_s, runs), default=0.0)
    return busiest_window(runs[opened], changes)


def _plots(run: Run, held: GpuChanges | None, window_s: tuple[float, float], runs: int) -> Json:
    """What the charts draw of a run."""
    cdf, lines = jct_cdf(run), over_time(run, held)
    plots: Json = {
        "cdf": {"jct_s": _digits(cdf.jct_s), "part": _rounded(cdf.part, 5)},
        "end_s": lines.end_s,
        "active": _rounded(lines.active, 2),
        "waiting": _rounded(lines.waiting, 2),
    }
    if run.nodes is not None and lines.nodes is not None:
        plots["nodes"] = _rounded(lines.nodes, 2)
        plots["node_changes"] = _node_changes(run.nodes, origin_s(run))
    if lines.filled is not None:
        plots["filled"] = _rounded(lines.filled, 2)
    if held is not None and lines.busy is not None:
        plots["busy"] = _rounded(lines.busy, 4)
        at_most = min(TIMELINE_CHANGES, TIMELINE_CHANGES_TOGETHER // runs)
        plots["timeline"] = _timeline(run, held, window_s, at_most)
    return plots


def _node_changes(nodes: NodesHeld, start_s: float) -> Json:
    """The reasons of the last changes of the number of nodes; each is short."""
    changes = nodes.changes[-NODE_CHANGES:]
    return {
        "time_s": [round(change.time_s - start_s, 3) for change in changes],
        "because": [change.because for change in changes],
    }


def _timeline(run: Run, held: GpuChanges, window_s: tuple[float, float], at_most: int) -> Json:
    shown = timeline(run, held, window_s, at_most)
    trace, rows, start_s = run.trace, shown.rows, origin_s(run)
    curves, model = np.unique(trace.curve[rows], return_inverse=True)
    return {
        "from_s": shown.from_s,
        "to_s": shown.to_s,
        "gpus_total": run.key.gpus,
        "left_out": shown.left_out,
        "models": [trace.speeds.names[curve] for curve in curves],
        "row": rows.tolist(),
        "model": model.tolist(),
        "requested": trace.gpus_requested[rows].tolist(),
        "submitted_s": _rounded(trace.submitted_s[rows] - start_s, 3),
        "finish_s": _rounded(run.finish_s[rows] - start_s, 3),
        "time_s": _rounded(shown.time_s, 3),
        "job": shown.job.tolist(),
        "gpus": shown.gpus.tolist(),
    }


def _listed(names: Sequence[str]) -> str:
    """The different names in order of appearance, cut short where there are many."""
    different = list(dict.fromkeys(names))
    more = f" and {len(different) - 12} more" if len(different) > 12 else ""
    return ", ".join(different[:12]) + more


def _range(numbers: set[int]) -> str:
    if not numbers:
        return ""
    least, most = min(numbers), max(numbers)
    return f"{least:,}" if least == most else f"{least:,}..{most:,}"


def _number(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _rounded(values: FloatColumn, decimals: int) -> list[float | None]:
    return [_number(value) for value in np.round(values, decimals).tolist()]


def _digits(values: FloatColumn) -> list[float]:
    """Six significant digits: finer than a pixel on a logarithmic axis."""
    return [float(f"{value:.6g}") for value in values.tolist()]

"""Traces and speed tables as files, and those in the package.

A trace has the columns `submitted_s,model,iterations,gpus_requested` and, if wanted,
`gpus_min,gpus_max,queue,user,group,weight`; a speed table has `model,global_batch,gpus,step_s`, or
`model,servers,workers,step_s` where jobs train with parameter servers.
"""

import csv
import gzip
import io
from collections.abc import Iterator
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from coddl.core.columns import IntColumn
from coddl.core.errors import UserError
from coddl.core.parameter_server.costs import TERMS, Mode, Point, fit_costs, served, servers_within
from coddl.core.speed.table import Speeds, interpolated
from coddl.traces.atomic_write import write_atomically
from coddl.traces.cells import Cells, Constraint, cells_of, listed, shown
from coddl.traces.gandiva_table import packing_speeds
from coddl.traces.gavel import read_gavel
from coddl.traces.philly import AFS_MODELS, is_philly, philly_trace
from coddl.traces.pollux import read_pollux
from coddl.traces.text_file import read_text
from coddl.traces.trace import Trace, smallest_shares, trace_of

TRACE_COLUMNS = ("submitted_s", "model", "iterations", "gpus_requested")
TRACE_OPTIONS = ("gpus_min", "gpus_max", "queue", "user", "group", "weight", "vc")
SPEED_COLUMNS = ("model", "global_batch", "gpus", "step_s")
SERVED_COLUMNS = ("model", "servers", "workers", "step_s")
PACKING, PACKING_GPUS = "gandiva", 8  # what Gandiva's table is called, and a server's GPUs
TABLES_BESIDE = ("step_times.csv", "speeds.csv")  # taken for a trace that lies in their folder

# Past 1e15 a float no longer resolves seconds well enough to simulate; a table is as wide as its
# largest share, so that one is kept within what fits in memory.
TIME = Constraint(
    lambda v: (v >= 0) & (v <= 1e15),
    "be a number of seconds within 0..1e15",
    "seconds since the start of the trace, such as 0 or 3600.5",
)
ITERATIONS = Constraint(
    lambda v: (v > 0) & (v <= 1e15),
    "be a number above 0, up to 1e15",
    "the optimizer steps that the job trains for, such as 5000",
)
GPUS = Constraint(
    lambda v: (v >= 1) & (v < 2**31) & (v == np.floor(v)),
    "be a whole number within 1..2147483647",
    "a number of GPUs, such as 4",
)
WEIGHT = Constraint(
    lambda v: (v > 0) & (v <= 1e6),
    "be a number above 0, up to 1e6",
    "the time slices of one turn of the job, such as 2",
)
BATCH = GPUS._replace(try_="the samples per iteration over all GPUs, such as 256")
SHARE = Constraint(
    lambda v: (v >= 1) & (v <= 65_536) & (v == np.floor(v)),
    "be a whole number within 1..65536",
    "a number of GPUs, such as 4",
)
STEP = Constraint(
    lambda v: (v >= 1e-9) & (v <= 1e9),
    "be a number of seconds within 1e-9..1e9",
    "the seconds that one iteration takes, such as 0.35",
)


def read_trace(path: str | Path, speeds: Speeds | None = None) -> Trace:
    """The jobs of a file in our format, or of a Philly job log, sorted by submission.

    Without `speeds`, they are those of `step_times.csv` or `speeds.csv` next to the file, else
    those in the package. A job may hold its model's smallest to largest useful share, or what the
    file says if that is less.
    """
    path = Path(path)
    what = f"trace {path} cannot be read"
    text = read_text(path, what)
    if is_philly(text):
        return philly_trace(text, path, speeds or speeds_beside(path, *AFS_MODELS))
    cells = cells_of(text, what, TRACE_COLUMNS, TRACE_OPTIONS)
    if {"queue", "vc"} <= cells.columns.keys():
        raise UserError(what, "it has both a column queue and a column vc", "one of the two")
    return _trace(cells, path.name, speeds or speeds_beside(path))


def read_speeds(path: str | Path, servers: Mode | None = None) -> Speeds:
    """The speeds of a file in our format, of a folder of measured placements, or of Gavel's JSON.

    Between two measured shares, step time is linear. What was measured with parameter servers is
    fitted; `servers` says how jobs train with them. `gandiva`, if no file is called that, is the
    table of packing in the package.
    """
    path = Path(path)
    if str(path) == PACKING and not path.exists():
        return packing_speeds(PACKING_GPUS)
    if path.is_dir():
        return read_pollux(path)
    what = f"speed table {path} cannot be read"
    text = read_text(path, what)
    if text.lstrip()[0] == "{":
        return read_gavel(text, what)
    if "servers" in text.partition("\n")[0].split(","):
        return _fitted(text, what, servers)
    return interpolated(_points(text, what))


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write the trace in our format, gzipped if the name ends in .gz, all of it or nothing.

    Every number reads back as it was. The speed table is not part of the file.
    """
    path = Path(path)
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(_lines(trace))
    data = out.getvalue().encode()
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)  # no time of writing: equal traces, equal files
    write_atomically(path, data, "trace")


@cache
def packaged_speeds(*models: str) -> Speeds:
    """The measured speeds in the package, of all models or of these."""
    with as_file(files("coddl.traces") / "data" / "step_times.csv") as path:
        what = "the packaged speeds cannot be read"
        points = _points(read_text(path, what), what)
    return interpolated({m: points[m] for m in points if not models or m in models})


def small_trace(speeds: Speeds | None = None) -> Trace:
    """The small workload in the package: `poisson` for 64 GPUs at load 1, seed 1."""
    with as_file(files("coddl.traces") / "data" / "small.csv") as path:
        return read_trace(path, speeds or packaged_speeds())


def speeds_beside(path: Path, *models: str) -> Speeds:
    """The speeds of a table in the folder of a trace, else those in the package."""
    for name in TABLES_BESIDE:
        if (pinned_tasks := path.with_name(name)).is_file():
            return read_speeds(pinned_tasks)
    return packaged_speeds(*models)


def _points(text: str, what: str) -> dict[str, list[tuple[int, float]]]:
    """The measured (gpus, seconds) of every model, in order of first mention."""
    cells = cells_of(text, what, SPEED_COLUMNS)
    model = cells.columns["model"]
    batch, gpus = cells.whole("global_batch", BATCH), cells.whole("gpus", SHARE)
    step_s = cells.numbers("step_s", STEP)
    batch_of: dict[str, int] = {}
    points: dict[str, dict[int, float]] = {}
    columns = zip(model, batch.tolist(), gpus.tolist(), step_s.tolist(), strict=True)
    for row, (name, size, share, seconds) in enumerate(columns):
        if not name:
            raise cells.bad(row, "model", "not be empty", "a name, such as resnet50")
        if size != batch_of.setdefault(name, size):
            raise cells.bad(
                row,
                "global_batch",
                f"be {batch_of[name]}, as in the lines above for {shown(name)}",
                "another model name for another batch, such as resnet50-512",
            )
        if share in points.setdefault(name, {}):
            raise cells.bad(
                row, "gpus", f"not appear twice for {shown(name)}", "one line per model and gpus"
            )
        points[name][share] = seconds
    return {name: list(curve.items()) for name, curve in points.items()}


def _fitted(text: str, what: str, servers: Mode | None) -> Speeds:
    """Speeds with parameter servers from points, each model's costs fitted to its own."""
    if servers is None:
        because = "it was measured with parameter servers, and their mode is not given"
        raise UserError(what, because, "--servers sync or --servers async")
    cells = cells_of(text, what, SERVED_COLUMNS)
    counts = [cells.whole(name, SHARE).tolist() for name in ("servers", "workers")]
    measured = map(Point, *counts, cells.numbers("step_s", STEP).tolist())
    points: dict[str, list[Point]] = {}
    for name, point in zip(cells.columns["model"], measured, strict=True):
        points.setdefault(name, []).append(point)
    for name, known in points.items():
        if len(known) < TERMS[servers]:
            because = f"{len(known)} lines for {shown(name)} are too few to fit its step time"
            raise UserError(what, because, f"at least {TERMS[servers]} lines per model")
    costs = [fit_costs(known, servers) for known in points.values()]
    most = np.array([max(max(point[:2]) for point in known) for known in points.values()])
    return served(tuple(points), servers_within(costs, np.ones_like(most), most))


def _trace(cells: Cells, name: str, speeds: Speeds) -> Trace:
    try_ = f"one of {listed(speeds.names)}; or a speed table that has it"
    curve = cells.indices("model", speeds.names, "be a model of the speed table", try_)
    requested = cells.whole("gpus_requested", GPUS)
    least, most = smallest_shares(speeds)[curve], speeds.gpus_max[curve]
    gpus_min = np.maximum(cells.whole_or("gpus_min", GPUS, least), least)
    gpus_max = np.minimum(cells.whole_or("gpus_max", GPUS, most), most)
    _check_range(cells, gpus_min, gpus_max, speeds)
    below = requested < gpus_min
    if below.any():
        row = int(np.argmax(below))
        must = f"be at least {gpus_min[row]}, the fewest GPUs that the job runs on"
        raise cells.bad(row, "gpus_requested", must, "a larger request, or a smaller gpus_min")
    queue = cells.columns.get("queue", cells.columns.get("vc"))
    return trace_of(
        name,
        speeds,
        submitted_s=cells.numbers("submitted_s", TIME),
        curve=curve,
        iterations=cells.numbers("iterations", ITERATIONS),
        gpus_requested=requested,
        gpus_min=gpus_min,
        gpus_max=gpus_max,
        queue=queue,
        user=cells.columns.get("user"),
        group=cells.columns.get("group"),
        weight=cells.numbers_or("weight", WEIGHT, 1.0) if "weight" in cells.columns else None,
        line=cells.lines(),
    )


def _check_range(cells: Cells, gpus_min: IntColumn, gpus_max: IntColumn, speeds: Speeds) -> None:
    crossed = gpus_min > gpus_max
    if not crossed.any():
        return
    row = int(np.argmax(crossed))
    model = cells.columns["model"][row]
    said = []
    for name, value, origin in (
        ("gpus_min", gpus_min[row], "the fewest GPUs it runs on"),
        ("gpus_max", gpus_max[row], "the most GPUs it uses"),
    ):
        cell = cells.columns[name][row] if name in cells.columns else ""
        given = cell != "" and float(cell) == value
        said.append(f"{name} is {value}" + ("" if given else f" ({origin})"))
    at = speeds.names.index(model)
    raise UserError(
        cells.what,
        f"line {cells.line_of(row)}: for {shown(model)}, {said[0]} and {said[1]}",
        f"gpus_min no larger than gpus_max, both within "
        f"{smallest_shares(speeds)[at]}..{speeds.gpus_max[at]}",
    )


def _lines(trace: Trace) -> Iterator[tuple[object, ...]]:
    """The header and the lines. Floats are written by repr, which is exact."""
    columns: dict[str, list[float] | list[int] | list[str]] = {
        "submitted_s": trace.submitted_s.tolist(),
        "model": _named(trace.speeds.names, trace.curve),
        "iterations": trace.iterations.tolist(),
        "gpus_requested": trace.gpus_requested.tolist(),
        "gpus_min": trace.gpus_min.tolist(),
        "gpus_max": trace.gpus_max.tolist(),
    }
    if trace.queues != ("",):
        columns["queue"] = _named(trace.queues, trace.queue)
    if trace.users != ("",):
        columns["user"] = _named(trace.users, trace.user)
    if trace.group is not None:
        columns["group"] = _named((*trace.groups, ""), trace.group)  # -1 is the last: no name
    if trace.weight is not None:
        columns["weight"] = trace.weight.tolist()
    yield tuple(columns)
    yield from zip(*columns.values(), strict=True)


def _named(names: tuple[str, ...], column: IntColumn) -> list[str]:
    return [names[at] for at in column.tolist()]

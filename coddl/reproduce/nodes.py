"""Nodes that come and go with the work, against a fixed number: on the Philly trace."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from coddl.core.cluster import Cluster
from coddl.core.columns import FloatColumn
from coddl.core.node_count import NodeBounds
from coddl.core.registry import placement_from, policy_from
from coddl.reproduce.experiment import Details, Experiment, Figure, Finding, Inputs, Plot, Points
from coddl.sim.api import reconfigure_from
from coddl.sim.report.series import gpu_changes_of
from coddl.sim.run import Run
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, run_cases
from coddl.traces.files import read_trace
from coddl.traces.models import speeds_on
from coddl.traces.trace import Trace

QUEUE: Final = "6c71a0"
LEAST, MOST, GPUS = 2, 32, 8
DAY_S: Final = 86400.0
SAMPLE_S: Final = 300.0  # between two points of the picture
RECONFIGURE: Final = "concurrent:20,1"
FIXED: Final = NodeBounds(MOST, MOST, GPUS)
SCALED: Final = NodeBounds(LEAST, MOST, GPUS)
Tried: TypeAlias = tuple[str, NodeBounds]  # a policy, and its nodes
TRIED: Final[tuple[Tried, ...]] = (
    ("afs-p", FIXED),
    ("afs-p", SCALED),
    ("afs-p", replace(SCALED, idle_s=1800.0)),
    ("afs-p", replace(SCALED, start_s=600.0)),
    ("afs-l", FIXED),
    ("afs-l", SCALED),
    ("srtf", FIXED),
    ("srtf", SCALED),
)


class Window(NamedTuple):
    """What nodes and jobs held between two times, by samples, and how its jobs fared."""

    held: FloatColumn  # nodes
    filled: FloatColumn  # nodes that the GPUs in use would fill
    avg_jct_s: float  # of the jobs submitted then

    @property
    def hours(self) -> float:
        """How long it is."""
        return len(self.held) * SAMPLE_S / 3600.0

    @property
    def held_gpu_h(self) -> float:
        """GPU-hours of the nodes."""
        return float(self.held.mean()) * GPUS * self.hours

    @property
    def used_gpu_h(self) -> float:
        """GPU-hours of the jobs."""
        return float(self.filled.mean()) * GPUS * self.hours


def window_of(run: Run, from_s: float, to_s: float) -> Window:
    """A part of a run."""
    assert run.nodes is not None
    assert run.events is not None
    changes, jobs = run.nodes.changes, gpu_changes_of(run.events)
    edges_s = np.arange(from_s, to_s + 1.0, SAMPLE_S)
    times_s = np.array([change.time_s for change in changes])
    held = _means(times_s, np.array([float(change.held) for change in changes]), edges_s)
    filled = _means(jobs.time_s, np.cumsum(jobs.gpus - jobs.before) / GPUS, edges_s)
    came = (run.trace.submitted_s >= from_s) & (run.trace.submitted_s < to_s)
    return Window(held, filled, float(run.jct_s[came].mean()))


def _means(time_s: FloatColumn, level: FloatColumn, edges_s: FloatColumn) -> FloatColumn:
    """The means, between each two edges, of what has a level from each time on."""
    times_s = np.append(time_s, max(time_s[-1], edges_s[-1]))
    area = np.concatenate(([0.0], np.cumsum(level * np.diff(times_s))))
    means: FloatColumn = np.diff(np.interp(edges_s, times_s, area)) / np.diff(edges_s)
    return means


def varied_day(run: Run) -> int:
    """The day, of those with others before and after, on which the GPUs in use vary most."""
    days = int(run.trace.submitted_s[-1] // DAY_S)
    filled = window_of(run, DAY_S, days * DAY_S).filled.reshape(days - 1, -1)
    return 1 + int(np.argmax(filled.std(axis=1)))


def runs_of(trace: Trace) -> dict[Tried, Run]:
    """The runs to compare."""
    cluster = Cluster.of(MOST * GPUS, GPUS)
    trace = replace(trace, speeds=speeds_on(trace.speeds, cluster))
    cases = [
        Case(
            RunKey(policy, MOST * GPUS),
            policy_from(policy),
            trace,
            reconfigure=reconfigure_from(RECONFIGURE),
            cluster=cluster,
            nodes=nodes,
            placement=placement_from("consolidate"),
            keep_events=True,
        )
        for policy, nodes in TRIED
    ]
    return dict(zip(TRIED, run_cases(cases), strict=True))


def philly(inputs: Inputs) -> Finding:
    """A virtual cluster on a fixed number of nodes, and on as many as it needs."""
    trace = read_trace(inputs.folder("philly") / "jobs.csv.gz").of_queue(QUEUE)
    runs = runs_of(trace)
    day = varied_day(runs[TRIED[0]])
    days = int(trace.submitted_s[-1] // DAY_S)
    on_day = {each: window_of(run, day * DAY_S, (day + 1) * DAY_S) for each, run in runs.items()}
    in_all = {each: window_of(run, 0.0, days * DAY_S) for each, run in runs.items()}
    return finding(day, days, on_day, in_all)


def finding(
    day: int, days: int, on_day: Mapping[Tried, Window], in_all: Mapping[Tried, Window]
) -> Finding:
    """What the runs show of a day, and of all days."""
    figures: list[Figure] = []
    for what, found in ((f"all {days} days", in_all), (f"day {day}", on_day)):
        fixed, scaled = found["afs-p", FIXED], found["afs-p", SCALED]
        name = f"afs-p, {what}, {MOST} nodes → {LEAST}..{MOST}"
        held_gpu_h = _change(fixed.held_gpu_h, scaled.held_gpu_h, "{:,.0f}")
        jct_min = _change(fixed.avg_jct_s / 60.0, scaled.avg_jct_s / 60.0, "{:,.1f}")
        figures.append(Figure(f"{name}: GPU-hours held", "", held_gpu_h))
        figures.append(Figure(f"{name}: average JCT, min", "", jct_min))
    fixed, scaled = on_day["afs-p", FIXED], on_day["afs-p", SCALED]
    return Finding(
        tuple(figures),
        Plot(
            f"Nodes over day {day} of {QUEUE}, afs-p",
            "hour of the day",
            "nodes of 8 GPUs",
            {
                f"held, {MOST}": _points(fixed.held),
                f"filled, {MOST}": _points(fixed.filled),
                f"held, {LEAST}..{MOST}": _points(scaled.held),
                f"filled, {LEAST}..{MOST}": _points(scaled.filled),
            },
        ),
        (
            "Nothing was published to compare with.",
            "A node is held from when it is asked for until it is given back, its start included. "
            "Filled are the nodes that the GPUs which jobs hold would fill.",
            "With GPUs to spare afs-p gives jobs more than they make good use of. Nodes that come "
            "and go are asked for only up to where a job's progress per GPU has halved: a job that "
            f"comes to a quiet cluster finds {LEAST} nodes, gets more GPUs when further nodes have "
            f"started, and as a rule fewer than on {MOST} nodes.",
        ),
        Details(
            ["policy", "nodes", "start, s", "idle, s"]
            + [
                f"{when}: {what}"
                for when in (f"day {day}", "all")
                for what in ("GPU-h held", "used", "JCT, min")
            ],
            [
                [
                    policy,
                    _range(nodes),
                    *_delays(nodes),
                    *_cells(on_day[each]),
                    *_cells(in_all[each]),
                ]
                for each in TRIED
                for policy, nodes in [each]
            ],
        ),
    )


def _change(before: float, after: float, form: str) -> str:
    percent = (after / before - 1.0) * 100.0
    return f"{form.format(before)} → {form.format(after)} ({percent:+.0f} %)"


def _points(samples: FloatColumn) -> Points:
    hours = (np.arange(len(samples)) + 0.5) * SAMPLE_S / 3600.0
    return list(zip(hours.tolist(), samples.tolist(), strict=True))


def _range(nodes: NodeBounds) -> str:
    return f"{nodes.most}" if nodes.least == nodes.most else f"{nodes.least}..{nodes.most}"


def _delays(nodes: NodeBounds) -> tuple[str, str]:
    comes_and_goes = nodes.least < nodes.most
    return (f"{nodes.start_s:g}", f"{nodes.idle_s:g}") if comes_and_goes else ("-", "-")


def _cells(window: Window) -> tuple[str, str, str]:
    return (
        f"{window.held_gpu_h:,.0f}",
        f"{window.used_gpu_h:,.0f}",
        f"{window.avg_jct_s / 60.0:,.1f}",
    )


EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    Experiment(
        "nodes-philly",
        "Nodes that come and go against a fixed number",
        "our own: what `coddl simulate --nodes 2..32` saves, and what it costs",
        f"The workload is the virtual cluster {QUEUE} of Philly: of those whose jobs request a "
        f"quarter to a half of {MOST * GPUS} GPUs on average, the one with the most jobs. The day "
        f"is that on which the GPUs in use vary most under afs-p on {MOST} nodes. Nodes have "
        f"{GPUS} GPUs. A resize is prepared for 20 s and stops a job for 1 s. "
        "GPU-hours held by nodes, and used by jobs, are those of the day or of all days but the "
        "last; JCT is the average of the jobs submitted then.",
        philly,
        "philly",
    ),
)

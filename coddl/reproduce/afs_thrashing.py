"""One job watched while bursts of arrivals resize all jobs, as in the AFS talk (NSDI '21)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from coddl.core.registry import policy_from
from coddl.reproduce.experiment import Details, Experiment, Figure, Finding, Inputs, Plot
from coddl.sim.api import reconfigure_from
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, step_loop_of, world_before
from coddl.sim.world import CANCELLED, FINISH_S, HELD, LOGGED, MOVING_S, NOW
from coddl.traces.files import read_trace
from coddl.traces.generators import poisson
from coddl.traces.trace import Trace

GPUS: Final = 64
QUEUE, DAYS = "11cb48", 10  # of the Philly trace: its busiest days
BURST_JOBS, BURST_EVERY_S, WITHIN_BURST_S = 24, 3600.0, 5.0
BURSTS: Final = 16
MODES: Final = {
    "no cost": "none",
    "serial": "serial:60",
    "concurrent, uncancelled": "uncancelled:60,1",
    "concurrent": "concurrent:60,1",
}
SAMPLE_S: Final = 300.0  # between two points of the picture


@dataclass(frozen=True)
class Probe:
    """How the watched job and the others fared."""

    progress: list[tuple[float, float]]  # (time, part of its iterations done)
    finish_s: float
    still_s: float  # held GPUs and made no progress
    avg_jct_s: float
    cancelled: int


def busiest_days(trace: Trace, queue: str, days: int) -> Trace:
    """The days in a row in which most jobs of a queue come."""
    part = trace.of_queue(queue)
    day = np.floor(part.submitted_s / 86400).astype(np.int64)
    until = np.cumsum(np.bincount(day, minlength=days))
    first = int(np.argmax(until[days - 1 :] - np.concatenate(([0], until[:-days]))))
    return part.rows((day >= first) & (day < first + days))


def bursts(seed: int) -> Trace:
    """Jobs of the packaged models that come in bursts, an hour apart."""
    trace = poisson(jobs=BURSTS * BURST_JOBS, gpus=GPUS, load=1.0, seed=seed)
    nth = np.arange(trace.size)
    submitted_s = nth // BURST_JOBS * BURST_EVERY_S + nth % BURST_JOBS * WITHIN_BURST_S
    return replace(trace, submitted_s=submitted_s)


def with_probe(trace: Trace, iterations: float) -> Trace:
    """The trace from time zero on, and before all others a ResNet-50 to be watched."""
    curve = trace.speeds.names.index("resnet50")
    head = {"curve": curve, "iterations": iterations, "gpus_requested": 4, "gpus_min": 1}
    head |= {"gpus_max": trace.speeds.gpus_max[curve], "queue": trace.queue[0], "user": 0}
    # Any: a column of each field's own type
    columns: dict[str, Any] = {
        name: np.insert(getattr(trace, name), 0, value) for name, value in head.items()
    }
    submitted_s = np.insert(trace.submitted_s - trace.submitted_s[0], 0, 0.0)
    return replace(trace, submitted_s=submitted_s, line=None, **columns)


def watched(trace: Trace, reconfigure: str) -> Probe:
    """Run a trace under AFS-P with one way of reconfiguring, and watch its first job."""
    case = Case(
        RunKey("afs-p", GPUS),
        policy_from("afs-p"),
        trace,
        reconfigure=reconfigure_from(reconfigure),
    )
    world = world_before(case)
    steps = step_loop_of(case, world)
    floats, ints, all_of_it = world.floats, world.ints, trace.iterations[0]
    progress, still_s = [(0.0, 0.0)], 0.0
    before_s, held, moving_s = 0.0, 0, 0.0
    while steps.run(1):
        world.counts[LOGGED] = 0
        now_s = float(world.clock[NOW])
        if held > 0:
            still_s += max(0.0, min(now_s, moving_s) - before_s)
        before_s, held, moving_s = now_s, int(ints[HELD, 0]), float(floats[MOVING_S, 0])
        if now_s - progress[-1][0] > SAMPLE_S and progress[-1][1] < 1.0:
            done = 1.0 - float(world.jobs.remaining_iterations[0] / all_of_it)
            progress.append((now_s, done))
    finish_s = floats[FINISH_S]
    avg_jct_s = float((finish_s - trace.submitted_s).mean())
    return Probe(progress, float(finish_s[0]), still_s, avg_jct_s, int(world.counts[CANCELLED]))


def finding(trace: Trace, title: str) -> Finding:
    """Watch the first job of a trace under every way of reconfiguring."""
    probes = {mode: watched(trace, spec) for mode, spec in MODES.items()}
    free, serial, uncancelled, relaxed = probes.values()

    def still(probe: Probe) -> str:
        return f"{probe.still_s / 3600:.2f} h of {probe.finish_s / 3600:.1f} h"

    def later(probe: Probe) -> str:
        return f"+{probe.finish_s / free.finish_s - 1:.1%}"

    rows = [
        [
            mode,
            f"{probe.finish_s / 3600:.1f} h",
            f"{probe.still_s / 3600:.2f} h",
            f"{probe.avg_jct_s / 60:,.0f} min",
            f"{probe.cancelled:,}",
        ]
        for mode, probe in probes.items()
    ]
    return Finding(
        (
            Figure("the job stands still, serial", "severe thrashing", still(serial)),
            Figure("... concurrent and cancelling", "relaxed thrashing", still(relaxed)),
            Figure("the job ends later than at no cost, serial", "", later(serial)),
            Figure("... concurrent, not cancelling", "", later(uncancelled)),
            Figure("... concurrent and cancelling", "progress accelerated", later(relaxed)),
        ),
        Plot(
            title,
            "hours since submission",
            "iterations done, %",
            {
                mode: [(at_s / 3600, 100 * done) for at_s, done in probe.progress]
                for mode, probe in probes.items()
            },
        ),
        ("The talk shows both as curves of progress without numbers.",),
        Details(["reconfiguration", "its JCT", "stood still", "avg JCT of all", "cancelled"], rows),
    )


def replayed(inputs: Inputs) -> Finding:
    """The days of the Philly trace."""
    trace = read_trace(inputs.folder("philly") / "jobs.csv.gz")
    # About 16 days on one GPU, some three in this company.
    days = with_probe(busiest_days(trace, QUEUE, DAYS), 1_500_000.0)
    return finding(days, f"A job submitted at time zero, {DAYS} days of Philly, afs-p, 64 GPUs")


def generated(_inputs: Inputs) -> Finding:
    """The bursts."""
    trace = with_probe(bursts(seed=0), 200_000.0)
    return finding(trace, f"A job submitted at time zero, {BURST_JOBS} more every hour, afs-p")


HOW: Final = (
    "`serial`: a resize takes 60 s in which the job stands still with the GPUs it has, and further "
    "targets queue behind. `concurrent`: the old share trains on for 60 s while the new one is "
    "prepared, then the job pauses for 1 s, and a newer target cancels the preparation; "
    "`uncancelled`: that has to end first. Simulated; the talk replays a trace on a real 64-GPU "
    "cluster"
)


def _experiment(name: str, title: str, run: Callable[[Inputs], Finding], rest: str) -> Experiment:
    return Experiment(
        name,
        title,
        "Hwang et al., NSDI '21 (AFS), talk: cluster thrashing, and relaxed thrashing",
        HOW + rest,
        run,
        "philly" if run is replayed else "",
    )


EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    _experiment(
        "afs-thrashing",
        "A replayed trace resizes jobs faster than they can follow",
        replayed,
        ", and names neither its days nor the job. Here: the ten busiest days of cluster "
        "11cb48, and a ResNet-50 that takes some days.",
    ),
    _experiment(
        "afs-burst",
        "Bursts of arrivals stall a running job",
        generated,
        f". Here: {BURSTS} bursts of {BURST_JOBS} jobs, an hour apart, drawn from the "
        "packaged models, and a ResNet-50 that lives through many of them.",
    ),
)

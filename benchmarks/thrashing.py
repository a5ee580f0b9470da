"""The thrashing experiment: how far one job gets while bursts of arrivals resize everybody.

A full-scale trace is replayed on 64 GPUs under AFS-P, and a long job submitted at time zero is
watched, as in the AFS talk (Hwang et al., NSDI '21).
"""

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from coddl.core.cluster import Cluster
from coddl.core.policies.registry import policy_from
from coddl.core.scheduler import Scheduler
from coddl.sim.api import reconfigure_from
from coddl.sim.loop import Beliefs, Site, Steps
from coddl.sim.world import CANCELLED, FINISH_S, HELD, LOGGED, MOVING_S, NOW, world_of
from coddl.traces.trace import Trace

QUEUE, DAYS, GPUS = "11cb48", 10, 64
PROBE_ITERATIONS: Final = 1_500_000.0  # of ResNet-50: about 16 days on one GPU
MODES: Final = {
    "no cost": "none",
    "serial": "serial:60",
    "concurrent, uncancelled": "uncancelled:60,1",
    "concurrent": "concurrent:60,1",
}


@dataclass(frozen=True)
class Probe:
    """How the watched job and the others fared."""

    progress: list[tuple[float, float]]  # (time, iterations done)
    finish_s: float
    still_s: float  # held GPUs and made no progress
    avg_jct_s: float
    cancelled: int


def with_probe(trace: Trace) -> Trace:
    """The busiest days of a cluster, and before all others the job to be watched."""
    part = trace.of_queue(QUEUE)
    day = np.floor(part.submitted_s / 86400)
    first = int(
        np.argmax([(abs(day - d - (DAYS - 1) / 2) < DAYS / 2).sum() for d in range(int(day.max()))])
    )
    part = part.rows((day >= first) & (day < first + DAYS))
    curve = trace.speeds.names.index("resnet50")
    head = {"curve": curve, "iterations": PROBE_ITERATIONS, "gpus_requested": 4, "gpus_min": 1}
    head |= {"gpus_max": trace.speeds.gpus_max[curve], "queue": part.queue[0], "user": 0}
    # Any: a column of each field's own type
    columns: dict[str, Any] = {
        name: np.insert(getattr(part, name), 0, value) for name, value in head.items()
    }
    submitted_s = np.insert(part.submitted_s - part.submitted_s[0], 0, 0.0)
    return replace(part, submitted_s=submitted_s, **columns)


def probe_progress(trace: Trace, reconfigure: str) -> Probe:
    """Replay the days under one way of reconfiguring."""
    part = with_probe(trace)
    world = world_of(part, GPUS, reconfigure_from(reconfigure), seed=0)
    site = Site(Cluster.of(GPUS), part.speeds, Beliefs(part.speeds))
    steps = Steps(world, site, Scheduler(policy_from("afs-p")))
    real, whole = world.jobs.real, world.jobs.whole
    progress, still_s = [(0.0, 0.0)], 0.0
    before_s, held, moving_s = 0.0, 0, 0.0
    while steps.run(1):
        world.counts[LOGGED] = 0
        now_s = float(world.clock[NOW])
        if held > 0:
            still_s += max(0.0, min(now_s, moving_s) - before_s)
        before_s, held, moving_s = now_s, int(whole[HELD, 0]), float(real[MOVING_S, 0])
        done = PROBE_ITERATIONS - float(world.jobs.remaining_iterations[0])
        if now_s - progress[-1][0] > 600.0 and progress[-1][1] < PROBE_ITERATIONS:
            progress.append((now_s, done))
    finish_s = real[FINISH_S]
    return Probe(
        progress,
        float(finish_s[0]),
        still_s,
        float((finish_s - part.submitted_s).mean()),
        int(world.counts[CANCELLED]),
    )

"""Tiresias against FIFO (NSDI '19) on the virtual clusters of Philly (ATC '19)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from coddl.core.cluster import Cluster
from coddl.core.registry import placement_from, policy_from
from coddl.reproduce.experiment import Details, Experiment, Figure, Finding, Inputs, Plot
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, run_cases
from coddl.traces.files import read_trace
from coddl.traces.models import speeds_on
from coddl.traces.trace import Trace

SOURCE: Final = "Gu et al., NSDI '19 (Tiresias)"
HOUR_S: Final = 3600.0
GPUS: Final = 60
TESTBED: Final = Cluster.of(GPUS, 4)
PUBLISHED: Final = 5.5
BUSY_LOADS: Final = (0.5, 1.25)
FIFO, BACKFILL, TIRESIAS, SRSF = "FIFO", "FIFO with backfill", "Tiresias-L", "SRSF"
POLICIES: Final = {
    FIFO: "fifo",
    BACKFILL: "fifo:backfill=true",
    TIRESIAS: "tiresias-l",
    SRSF: "srsf",
}
# FIFO stands for a manager that gathers every job and lets it wait for that.
PLACED: Final = {
    "FIFO, placed": ("fifo", "tiresias:pack_limit=0"),
    "Tiresias-L, placed": ("tiresias-l", "tiresias"),
}
OTHER_LIMITS: Final = ("threshold_gpu_h=0.9/2/5", "threshold_gpu_h=16", "promote=8", "preset=afs")


class QueueJobs(NamedTuple):
    """The jobs of a virtual cluster, on 60 GPUs."""

    name: str
    trace: Trace
    load: float

    @classmethod
    def of(cls, trace: Trace, name: str) -> "QueueJobs":
        """Those of a queue, requests cut down to 60 GPUs, and their load while they come."""
        jobs = trace.of_queue(name).fitted_to(GPUS, "clamp")
        span_s = float(np.ptp(jobs.submitted_s))
        work_gpu_s = float(jobs.gpus_requested @ jobs.length_s)
        return cls(name, jobs, work_gpu_s / (GPUS * span_s) if span_s > 0.0 else np.inf)

    @property
    def is_busy(self) -> bool:
        """Return whether jobs have to wait, but not ever longer."""
        least, most = BUSY_LOADS
        return least <= self.load <= most

    def placed(self) -> Trace:
        """The same jobs on the nodes of the testbed."""
        return replace(self.trace, speeds=speeds_on(self.trace.speeds, TESTBED))


def queues_of(trace: Trace) -> list[QueueJobs]:
    """Every virtual cluster, the one with fewest jobs first."""
    queues = [QueueJobs.of(trace, name) for name in trace.queues]
    return sorted(queues, key=lambda each: (each.trace.size, each.name))


def shares_only(queues: Sequence[QueueJobs], specs: Mapping[str, str]) -> dict[str, list[float]]:
    """Average JCT in hours by policy, one for each virtual cluster; it does not matter where."""
    cases = [
        Case(RunKey(name, GPUS), policy_from(spec), each.trace)
        for name, spec in specs.items()
        for each in queues
    ]
    return _by_policy(cases)


def on_testbed(queues: Sequence[QueueJobs]) -> dict[str, list[float]]:
    """The same on 15 nodes of 4 GPUs."""
    cases = [
        Case(
            RunKey(name, GPUS),
            policy_from(policy),
            each.placed(),
            cluster=TESTBED,
            placement=placement_from(placement),
        )
        for name, (policy, placement) in PLACED.items()
        for each in queues
    ]
    return _by_policy(cases)


def _by_policy(cases: Sequence[Case]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for run in run_cases(cases):
        found.setdefault(run.key.policy, []).append(run.metrics().avg_jct_s / HOUR_S)
    return found


def gains(over: Sequence[float], of: Sequence[float]) -> list[float]:
    """How many times as long jobs take under the one as under the other."""
    return [slow_h / fast_h for slow_h, fast_h in zip(over, of, strict=True)]


def times(ratios: Sequence[float]) -> str:
    """Ratios, one for each cluster."""
    return " · ".join(f"{ratio:.1f}x" for ratio in ratios)


def against_fifo(inputs: Inputs) -> Finding:
    """What age-based scheduling gains over first come, first served, cluster by cluster."""
    queues = queues_of(read_trace(inputs.folder("philly") / "jobs.csv.gz"))
    busy = [each for each in queues if each.is_busy]
    names = [f"{each.name} ({each.trace.size:,} jobs)" for each in queues]
    all_h = shares_only(queues, POLICIES)
    busy_h = {
        name: [hours for hours, each in zip(line, queues, strict=True) if each.is_busy]
        for name, line in all_h.items()
    }
    busy_h |= on_testbed(busy)
    limits_h = shares_only(busy, {each: f"tiresias-l:{each}" for each in OTHER_LIMITS})
    plain = gains(busy_h[FIFO], busy_h[TIRESIAS])
    placed = gains(*(busy_h[name] for name in PLACED))
    backfill = gains(busy_h[BACKFILL], busy_h[TIRESIAS])
    everywhere = gains(all_h[FIFO], all_h[TIRESIAS])
    published = f"up to {PUBLISHED}x"
    figures = (
        Figure(f"average JCT, FIFO over Tiresias-L: {' · '.join(each.name for each in busy)}",
               published, times(plain)),
        Figure("the same on 15 nodes of 4 GPUs, placed", published, times(placed)),
        Figure("FIFO with backfill over Tiresias-L", "", times(backfill)),
        Figure("FIFO over SRSF, which knows lengths", "", times(gains(busy_h[FIFO], busy_h[SRSF]))),
        *(Figure(f"FIFO over Tiresias-L, {each}", "", times(gains(busy_h[FIFO], limits_h[each])))
          for each in OTHER_LIMITS),
        Figure("FIFO over Tiresias-L, all clusters: least / median / most", "",
               " / ".join(f"{each(everywhere):.1f}x" for each in (min, np.median, max))),
    )  # fmt: skip
    rows = [
        (name, f"{each.load:.2f}", *(f"{all_h[policy][at]:,.1f}" for policy in POLICIES),
         f"{everywhere[at]:.2f}x")
        for at, (name, each) in enumerate(zip(names, queues, strict=True))
    ]  # fmt: skip
    head = ("cluster", "load", *(f"{policy}, h" for policy in POLICIES), "FIFO / Tiresias-L")
    plot = Plot(
        "Tiresias and FIFO on clusters of Philly",
        "virtual cluster",
        "average JCT, hours",
        bars=busy_h,
        categories=[name for name, each in zip(names, queues, strict=True) if each.is_busy],
    )
    return Finding(figures, plot, notes_of(busy_h), Details(head, rows))


def notes_of(busy_h: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    """How to read the average JCTs of the busy clusters."""
    best = max(gains(busy_h[FIFO], busy_h[TIRESIAS]))
    best_placed = max(gains(*(busy_h[name] for name in PLACED)))
    plain = (busy_h[name] for name in (FIFO, TIRESIAS))
    fifo_cost, tiresias_cost = (
        max(gains(busy_h[name], at_once)) - 1.0 for name, at_once in zip(PLACED, plain, strict=True)
    )
    over_backfill = max(gains(busy_h[BACKFILL], busy_h[TIRESIAS]))
    least, most = BUSY_LOADS
    return (
        f"The largest gain is {best / PUBLISHED:.0%} of the published one, and "
        f"{best_placed / PUBLISHED:.0%} of it where jobs are placed. Places add up to "
        f"{tiresias_cost:.0%} to the average JCT of Tiresias-L and up to {fifo_cost:.0%} to that "
        "of FIFO: a job that was preempted has to find a place again.",
        "Much of the gain is over FIFO's strict order, where a large job that does not fit holds "
        "up all others. Over a FIFO that skips such jobs, the largest gain is "
        f"{over_backfill:.1f}x. Whether the paper's YARN skipped them is not known to us.",
        f"Figures are of the clusters with a load of {least:g} to {most:g}: the work of all jobs, "
        "over what 60 GPUs do from the first arrival to the last. The table has all clusters. "
        "With less load there is little to gain unless jobs come in bursts. With more, the queue "
        "grows for months, and average JCTs show how it grew rather than how long a job waits in "
        "a cluster of the right size.",
    )


EXPERIMENT: Final = Experiment(
    "tiresias-fifo",
    "Age-based scheduling against first come, first served on 60 GPUs",
    SOURCE,
    "The paper's jobs are not public. Ours are those of Philly's virtual clusters, each on 60 "
    "GPUs, because real jobs have the long tail and the bursts that generated ones lack; a "
    "cluster's jobs come over months. Where nothing else is said it does not matter where GPUs "
    "are, because placement is slow to simulate for the largest clusters; those of the first "
    "figure are also placed on nodes as in the paper, with estimated slowdowns across nodes. FIFO "
    "stands for YARN: strict order, all GPUs at once, and where jobs are placed, on the fewest "
    "nodes or not at all. Tiresias-L has one threshold of a GPU-hour and no promotion where "
    "nothing else is said; preemption costs nothing.",
    against_fifo,
    needs="philly",
)

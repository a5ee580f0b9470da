"""Ranked Speedup, a policy of our own, against AFS: by size, load, errors, pauses and places.

Nothing of this is published; it is the evidence for the policy, in the form of the other results.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from coddl.core.columns import BoolMatrix, FloatCube, FloatMatrix
from coddl.reproduce.afs import philly
from coddl.reproduce.experiment import Details, Experiment, Figure, Finding, Plot
from coddl.sim.api import simulate
from coddl.sim.run import Metrics
from coddl.sim.run_key import RunKey
from coddl.sim.study import ci95
from coddl.traces.generators import poisson
from coddl.traces.trace import Trace

SIZES: Final = (32, 64, 128)
LOADS: Final = (0.5, 0.75, 1.0, 1.5, 2.0)
LOAD_GPUS: Final = 64
# Jobs that are generated, by GPUs of their cluster.
GENERATED: Final = {16: 300, 64: 1000, 144: 3000}
GENERATED_LOADS: Final = (0.5, 0.8, 1.2, 2.0)
OURS: Final = "ranked-speedup"
FAIR: Final = "ranked-speedup:rho=1.15"
LEARNED: Final = "ranked-speedup:lengths=learned"
ERROR: Final = "length=0.5,speed=0.2"
# Clusters that placement is simulated for, event by event: the smaller ones without overload.
PLACED: Final = ("51b7ef", "e13805", "2869ce", "ed69ec", "103959")
PLACEMENTS: Final = (
    "consolidate",
    "gather",
    "gather:defragment_h=1",
    "estimate:defragment_h=0.1,moves=64",
)
NODES: Final = "8x8"


@dataclass(frozen=True)
class Against:
    """A policy against another on the same clusters, [seed, cluster, size]."""

    queues: tuple[str, ...]
    metrics: Mapping[RunKey, Metrics]
    policy: str
    base: str

    def values(self, name: str, policy: str) -> FloatCube:
        """A measure of a policy."""
        found = {
            (key.seed, key.queue, key.gpus): float(getattr(each, name))
            for key, each in self.metrics.items()
            if key.policy == policy
        }
        seeds, sizes = sorted({key[0] for key in found}), sorted({key[2] for key in found})
        return np.array(
            [[[found[seed, q, gpus] for gpus in sizes] for q in self.queues] for seed in seeds]
        )

    def changes(self, name: str) -> FloatCube:
        """By how many percent a measure is above that of the other policy."""
        ours, theirs = self.values(name, self.policy), self.values(name, self.base)
        some = theirs > 0.0  # a cluster that is large enough resizes no job
        change: FloatCube = 100.0 * (np.where(some, ours / np.where(some, theirs, 1.0), 1.0) - 1.0)
        return change

    def change(self, name: str) -> FloatMatrix:
        """The mean of that over seeds, [cluster, size]."""
        mean: FloatMatrix = self.changes(name).mean(axis=0)
        return mean

    def rise(self, name: str) -> FloatMatrix:
        """By how much a measure is above that of the other policy, the same way."""
        rise = self.values(name, self.policy) - self.values(name, self.base)
        mean: FloatMatrix = rise.mean(axis=0)
        return mean


def mean_of(changes: FloatMatrix) -> str:
    """The mean over clusters, for each size."""
    return " · ".join(f"{each:+.2f} %" for each in changes.mean(axis=0))


def mean_of_seeds(changes: FloatCube) -> str:
    """The same, with the 95 % intervals that seeds give."""
    by_seed = changes.mean(axis=1)
    return " · ".join(f"{line.mean():+.2f} ± {ci95(line):.2f} %" for line in by_seed.T)


def mean_where(changes: FloatMatrix, which: BoolMatrix) -> str:
    """The mean of some clusters and sizes."""
    return f"{changes[which].mean():+.2f} %" if which.any() else "none"


def largest_of(changes: FloatMatrix) -> str:
    """The largest of all clusters, for each size."""
    return " · ".join(f"{each:+.2f} %" for each in changes.max(axis=0))


def listed(against: Against, changes: FloatMatrix, above: float) -> str:
    """The clusters whose change is above a limit, the largest first."""
    found = sorted(
        (
            (change, queue, gpus)
            for queue, line in zip(against.queues, changes, strict=True)
            for gpus, change in zip(SIZES, line, strict=True)
            if change > above
        ),
        reverse=True,
    )
    named = [f"{queue} at {gpus} GPUs ({change:+.2f} %)" for change, queue, gpus in found]
    return ", ".join(named) or "none"


def measured(trace: Trace, policies: Sequence[str], **settings: object) -> dict[RunKey, Metrics]:
    """What policies give on each of the trace's clusters."""
    asked: dict[str, object] = {"vc": "all", "gpus": SIZES, "oversize": "clamp"}
    study = simulate(trace, policies, **(asked | settings))  # type: ignore[arg-type]
    return {run.key: run.metrics() for run in study.runs}


def compared(trace: Trace, **settings: object) -> Against:
    """The policy against AFS-L."""
    metrics = measured(trace, ("afs-l", OURS), **settings)
    return Against(queues_of(trace), metrics, OURS, "afs-l")


def queues_of(trace: Trace) -> tuple[str, ...]:
    """The clusters with jobs, the smallest first."""
    jobs = np.bincount(trace.queue, minlength=len(trace.queues))
    order = np.argsort(jobs, kind="stable").tolist()
    return tuple(trace.queues[at] for at in order if jobs[at])


def known_lengths(trace: Trace, seeds: int) -> Finding:
    """The policy against AFS-L, where lengths are known."""
    queues = queues_of(trace)
    metrics = measured(trace, ("afs-l", OURS, FAIR))
    plain, fair = (Against(queues, metrics, each, "afs-l") for each in (OURS, FAIR))
    paused = {s: compared(trace, reconfigure=f"stall:{s}") for s in (1, 30)}
    wrong = compared(trace, error=ERROR, seeds=seeds)
    jct, p99, resizes = (plain.change(n) for n in ("avg_jct_s", "p99_jct_s", "reallocations"))
    figures = (
        Figure("average JCT against afs-l, mean of the clusters", "", mean_of(jct)),
        Figure("the same, the worst cluster", "", largest_of(jct)),
        Figure("99th percentile of JCT, mean of the clusters", "", mean_of(p99)),
        Figure("resizes, mean of the clusters", "", mean_of(resizes)),
        Figure("average JCT, lengths off by up to 50 % and speeds by up to 20 %", "",
               mean_of_seeds(wrong.changes("avg_jct_s"))),
        *(Figure(f"average JCT, a pause of {pause_s} s at each resize", "",
                 mean_of(each.change("avg_jct_s"))) for pause_s, each in paused.items()),
        *(Figure(f"resizes, a pause of {pause_s} s at each", "",
                 mean_of(each.change("reallocations"))) for pause_s, each in paused.items()),
        Figure("average JCT with rho=1.15", "", mean_of(fair.change("avg_jct_s"))),
        Figure("worst rho above that of afs-l, at most: by default", "",
               " · ".join(f"{each:+.2f}" for each in plain.rise("rho_max").max(axis=0))),
        Figure("worst rho above that of afs-l, at most: with rho=1.15", "",
               " · ".join(f"{each:+.2f}" for each in fair.rise("rho_max").max(axis=0))),
    )  # fmt: skip
    head = [f"{what}, {gpus}" for what in ("JCT", "p99", "resizes") for gpus in SIZES]
    rows = [
        [queue, *(f"{each:+.2f}" for part in (jct, p99, resizes) for each in part[at])]
        for at, queue in enumerate(queues)
    ]
    notes = (
        f"Figures are for {', '.join(map(str, SIZES[:-1]))} and {SIZES[-1]} GPUs per cluster. "
        f"Those with wrong predictions are means of {seeds} seeds.",
        "The table has changes against afs-l in %.",
        f"Average JCT more than 0.5 % above afs-l: {listed(plain, jct, 0.5)}. "
        f"99th percentile above: {listed(plain, p99, 1.0)} (by more than 1 %).",
    )
    return Finding(figures, by_load(trace, seeds), notes, Details(["cluster", *head], rows))


def by_load(trace: Trace, seeds: int) -> Plot:
    """Average JCT against load, with and without errors and pauses."""
    settings: dict[str, Mapping[str, object]] = {
        "as predicted, resizes are free": {},
        "lengths ±50 %, speeds ±20 %": {"error": ERROR, "seeds": seeds},
        "30 s per resize": {"reconfigure": "stall:30"},
    }
    lines, errors = {}, {}
    for name, extra in settings.items():
        line, widths = [], []
        for load in LOADS:
            found = compared(trace, gpus=LOAD_GPUS, load=load, **extra)
            by_seed = found.changes("avg_jct_s").mean(axis=(1, 2))
            line.append((load, float(by_seed.mean())))
            widths.append(0.0 if by_seed.size == 1 else ci95(by_seed))
        lines[name], errors[name] = line, widths
    return Plot(
        f"Ranked Speedup against AFS-L on {LOAD_GPUS} GPUs",
        "arrival rate, as a multiple of the trace's",
        "average JCT, % above AFS-L",
        lines=lines,
        errors=errors,
    )


def unknown_lengths(trace: Trace, seeds: int) -> Finding:
    """The policy against AFS-P, where lengths are not known."""
    queues = queues_of(trace)
    metrics = measured(trace, (LEARNED, "afs-l"))
    metrics |= measured(trace, ("afs-p",), seeds=seeds)  # the others toss no coins
    ours, known = (Against(queues, metrics, each, "afs-p") for each in (LEARNED, "afs-l"))
    jct, told, crowd = ours.change("avg_jct_s"), known.change("avg_jct_s"), crowds(ours)
    crowded = crowd > 1.0
    figures = (
        Figure(
            "average JCT against afs-p, mean of the clusters",
            "",
            mean_of_seeds(ours.changes("avg_jct_s")),
        ),
        Figure("the same, the worst cluster", "", largest_of(jct)),
        Figure("where jobs outnumber GPUs: mean", "", mean_where(jct, crowded)),
        Figure("where they do not: mean", "", mean_where(jct, ~crowded)),
        Figure("afs-l, which knows lengths, against afs-p", "", mean_of(told)),
        Figure("resizes against afs-p", "", mean_of(ours.change("reallocations"))),
    )
    rows = [
        [f"{queue} at {gpus}", *(f"{table[at, size]:+.2f}" for table in (jct, told)),
         f"{crowd[at, size]:.2f}"]
        for size, gpus in enumerate(SIZES) for at, queue in enumerate(queues)
    ]  # fmt: skip
    plot = Plot(
        "Average JCT without known lengths, against AFS-P",
        "virtual cluster of Philly",
        "average JCT, % above AFS-P",
        bars={f"{gpus} GPUs": jct[:, size].tolist() for size, gpus in enumerate(SIZES)},
        categories=queues,
    )
    notes = (
        f"Figures are for {', '.join(map(str, SIZES[:-1]))} and {SIZES[-1]} GPUs per cluster; "
        f"means of {seeds} seeds of AFS-P's coin.",
        f"More than 1 % above afs-p: {listed(ours, jct, 1.0)}.",
        "Jobs per GPU are those present under afs-p, in the mean over time.",
    )
    head = ["cluster", "ranked-speedup, %", "afs-l, %", "jobs per GPU"]
    return Finding(figures, plot, notes, Details(head, rows))


def generated(seeds: int) -> Finding:
    """The policy against AFS-L and AFS-P on jobs that are drawn."""
    lines: dict[str, list[tuple[float, float]]] = {}
    errors: dict[str, list[float]] = {}
    rows, policies = [], ("afs-l", OURS, "afs-p", LEARNED)
    for gpus, jobs in GENERATED.items():
        for load in GENERATED_LOADS:
            jct_s = np.array([
                simulate(poisson(jobs=jobs, gpus=gpus, load=load, seed=seed), policies, gpus=gpus)
                ["avg_jct_s"] for seed in range(seeds)
            ])  # fmt: skip
            known, learned = (100.0 * (jct_s[:, at + 1] / jct_s[:, at] - 1.0) for at in (0, 2))
            lines.setdefault(f"{gpus} GPUs", []).append((load, float(known.mean())))
            errors.setdefault(f"{gpus} GPUs", []).append(ci95(known))
            changes = [f"{each.mean():+.2f} ± {ci95(each):.2f}" for each in (known, learned)]
            rows.append([str(gpus), f"{load:g}", *changes])
    by_load = np.array([[change for _, change in line] for line in lines.values()]).mean(axis=0)
    figures = tuple(
        Figure(f"average JCT against afs-l at load {load:g}", "", f"{change:+.2f} %")
        for load, change in zip(GENERATED_LOADS, by_load, strict=True)
    )
    plot = Plot(
        "Ranked Speedup against AFS-L on generated jobs",
        "load",
        "average JCT, % above AFS-L",
        lines=lines,
        errors=errors,
    )
    notes = (
        "Changes of average JCT in %, with 95 % intervals.",
        "Where GPUs suffice for all jobs, AFS-L is about as good; where they do not, the policy is "
        "ahead.",
    )
    head = ("GPUs", "load", "against afs-l", "lengths learned, against afs-p")
    return Finding(figures, plot, notes, Details(head, rows))


def crowds(against: Against) -> FloatMatrix:
    """Jobs present per GPU with the other policy, [queue, size]: by Little's law."""
    jobs, jct_s, makespan_s = (
        against.values(name, against.base).mean(axis=0)
        for name in ("jobs", "avg_jct_s", "makespan_s")
    )
    crowd: FloatMatrix = jobs * jct_s / makespan_s / np.array(SIZES)
    return crowd


def with_places(trace: Trace, queues: Sequence[str]) -> Finding:
    """The policy against AFS-L on nodes of 8 GPUs, with what places cost."""
    jct_s: dict[tuple[str, str, str], float] = {}
    for queue in queues:
        study = simulate(trace, ("afs-l", OURS), vc=queue, cluster=NODES, placement=PLACEMENTS)
        for row in study.rows:
            key = (queue, str(row["placement"]), str(row["policy"]))
            jct_s[key] = float(str(row["avg_jct_s"]))
    change = {
        where: [100.0 * (jct_s[q, where, OURS] / jct_s[q, where, "afs-l"] - 1.0) for q in queues]
        for where in PLACEMENTS
    }
    figures = tuple(
        Figure(f"average JCT against afs-l, {where}", "", f"{np.mean(each):+.2f} %")
        for where, each in change.items()
    )
    rows = [
        [queue, *(f"{jct_s[queue, where, policy] / 60:,.1f}"
                  for where in PLACEMENTS for policy in ("afs-l", OURS)),
         *(f"{change[where][at]:+.2f}" for where in PLACEMENTS)]
        for at, queue in enumerate(queues)
    ]  # fmt: skip
    head = [f"{policy}, {where}" for where in PLACEMENTS for policy in ("afs-l", OURS)]
    notes = (
        "The table has average JCT in minutes, and changes against afs-l in %.",
        "With consolidate, growing jobs take the free GPUs of many nodes, and keep them. More jobs "
        "run at a time with ranked-speedup, so that it loses more by that. With gather, a job that "
        "is resized is placed anew; with defragment_h, others are moved, too.",
    )
    plot = Plot(
        "Ranked Speedup against AFS-L on 8 nodes of 8 GPUs",
        "virtual cluster of Philly",
        "average JCT, % above AFS-L",
        bars=change,
        categories=queues,
    )
    names = ["cluster", *head, *(f"%, {where}" for where in PLACEMENTS)]
    return Finding(figures, plot, notes, Details(names, rows))


SOURCE: Final = (
    "ours; the idea is heSRPT's (Berg, Vesilo, Harchol-Balter, Performance Evaluation 2020), the "
    "rival AFS (Hwang et al., NSDI '21)"
)
EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    Experiment(
        "beyond-afs",
        "Jobs finish sooner than with AFS-L",
        SOURCE,
        "Nothing is published. Shares only, as in the AFS evaluation: no placement. Jobs that ask "
        "for more GPUs than there are get as many as there are. The constants of the policy were "
        "chosen on these clusters.",
        lambda inputs: known_lengths(philly(inputs.folder("philly")), inputs.seeds),
        "philly",
    ),
    Experiment(
        "beyond-unknown",
        "Jobs of unknown length finish sooner than with AFS-P",
        SOURCE,
        "Nothing is published. Shares only. Lengths are hidden from both policies; ours learns "
        "from the jobs that have ended before, AFS-P lets jobs take turns of two hours.",
        lambda inputs: unknown_lengths(philly(inputs.folder("philly")), inputs.seeds),
        "philly",
    ),
    Experiment(
        "beyond-generated",
        "The same on generated jobs",
        SOURCE,
        "Nothing is published. Jobs arrive as a Poisson process and have log-normal lengths, drawn "
        "independently of each other. Shares only. The power of 7/8, and where logarithms take its "
        "place, were chosen with them in view, nothing else of the policy.",
        lambda inputs: generated(inputs.seeds),
    ),
    Experiment(
        "beyond-placement",
        "The order of the two with placement",
        SOURCE,
        "Nothing is published. Five of Philly's smaller clusters, without those that are "
        "overloaded, on 8 nodes of 8 GPUs. What places cost is estimated from facts on the models. "
        "Moves are free.",
        lambda inputs: with_places(philly(inputs.folder("philly")), PLACED),
        "philly",
    ),
)

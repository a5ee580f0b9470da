"""AFS against other policies (*Elastic Resource Sharing for Distributed Deep Learning*, NSDI '21).

Cluster by cluster on the Philly trace, in the form the AFS evaluation used: models drawn from nine
whose step times were measured, and 64 GPUs for each of twelve virtual clusters.
"""

import csv
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from coddl.reproduce import afs_thrashing
from coddl.reproduce.experiment import Details, Experiment, Figure, Finding, Inputs, Plot
from coddl.sim.api import simulate
from coddl.sim.study import Study
from coddl.traces.files import read_trace
from coddl.traces.trace import Trace

GPUS: Final = 64
TIRESIAS: Final = "tiresias-l:preset=afs"
RIGID: Final = ("srtf", "srsf", TIRESIAS)
ELASTIC: Final = ("optimus", "max-min", "afs-l", "afs-p")
POLICIES: Final = (*RIGID, *ELASTIC)
CONTESTS: Final = ("afs-l:contest=scan", "afs-l:contest=tournament", "afs-p:contest=scan",
                   "afs-p:contest=tournament", "afs-p:tie=keep")  # fmt: skip
STALLS_S: Final = (0, 30, 60, 120, 300)
STALLED: Final = "103959"
# What the authors' policies gave there in an independent re-run with such stalls.
AFS_L_STALLED_MIN: Final = (188, 191, 193, 198, 215)
NAMES: Final = {TIRESIAS: "tiresias-l"}
SOURCE: Final = "Hwang et al., NSDI '21 (AFS)"
SHARES_ONLY: Final = (
    "Shares only: neither placement nor the cost of a resize. Models are drawn as the authors' "
    "public simulator draws them"
)


@cache
def philly(folder: Path) -> Trace:
    """The trace; read once, however many experiments use it."""
    return read_trace(folder / "jobs.csv.gz")


@cache
def philly_study(folder: Path) -> Study:
    """Every policy on every virtual cluster; a minute or so."""
    return simulate(philly(folder), POLICIES, vc="all", gpus=GPUS)


def by_queue(rows: Sequence[Mapping[str, object]], column: str) -> dict[str, dict[str, float]]:
    """queue -> policy -> value; the smallest queue first."""
    jobs = {str(row["vc"]): row["jobs"] for row in rows}
    out: dict[str, dict[str, float]] = {}
    for queue in sorted(jobs, key=lambda queue: (float(str(jobs[queue])), queue)):
        lines = (row for row in rows if row["vc"] == queue)
        out[queue] = {str(row["policy"]): float(str(row[column])) for row in lines}
    return out


def cluster_names(jobs: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Virtual clusters as pictures call them: by their size, then by their name in the trace."""
    return [f"{max(line.values()):,.0f} jobs ({queue})" for queue, line in jobs.items()]


def heads(policies: Sequence[str]) -> list[str]:
    """Policies as tables call them."""
    return [NAMES.get(policy, policy) for policy in policies]


def against_others(inputs: Inputs) -> Finding:
    """Average JCT of every policy on every cluster, and what AFS gains."""
    study = philly_study(inputs.folder("philly"))
    jct_s, jobs = by_queue(study.rows, "avg_jct_s"), by_queue(study.rows, "jobs")
    over = {
        "srtf / afs-l": [line["srtf"] / line["afs-l"] for line in jct_s.values()],
        "tiresias-l / afs-p": [line[TIRESIAS] / line["afs-p"] for line in jct_s.values()],
    }
    named = [f"{queue} ({jobs[queue]['srtf']:,.0f})" for queue in jct_s]
    rows = [
        [name, *(f"{line[p] / 60:,.1f}" for p in POLICIES), f"{over_l:.2f}x", f"{over_p:.2f}x"]
        for name, line, over_l, over_p in zip(named, jct_s.values(), *over.values(), strict=True)
    ]
    best_l, best_p = (max(gains) for gains in over.values())
    return Finding(
        (
            Figure("AFS-L over SRTF, average JCT", "up to 2.67x", f"up to {best_l:.2f}x"),
            Figure("AFS-P over Tiresias-L", "up to 3.11x", f"up to {best_p:.2f}x"),
        ),
        Plot(
            "Average JCT of other policies, relative to AFS",
            "virtual cluster of Philly",
            "average JCT of the other / of AFS",
            bars=over,
            categories=cluster_names(jobs),
        ),
        ("The table is of average JCT in minutes.",),
        Details(["cluster (jobs)", *heads(POLICIES), *over], rows),
    )


def agreement(inputs: Inputs) -> Finding:
    """Ours against the authors' simulator, where that was run."""
    folder = inputs.folder("philly")
    with (folder / "golden.csv").open(encoding="utf-8") as file:
        golden = list(csv.DictReader(file))
    rows = philly_study(folder).rows
    jct_s, jobs = by_queue(rows, "avg_jct_s"), by_queue(rows, "jobs")
    policies = {NAMES.get(policy, policy): policy for policy in POLICIES}
    deviations: dict[str, dict[str, float]] = {}
    minutes: dict[str, list[tuple[float, float]]] = {}
    for row in golden:
        if row["policy"] in policies:
            theirs = float(row["avg_jct_min"])
            ours = jct_s[row["vc"]][policies[row["policy"]]] / 60
            minutes.setdefault(row["policy"], []).append((theirs, ours))
            deviations.setdefault(row["policy"], {})[row["vc"]] = (ours / theirs - 1) * 100
    queues = list(next(iter(deviations.values())))
    figures = [
        Figure(
            f"{policy}, average JCT in min",
            " · ".join(f"{theirs:,.1f}" for theirs, _ in pairs),
            " · ".join(f"{ours:,.1f}" for _, ours in pairs),
        )
        for policy, pairs in minutes.items()
    ]
    return Finding(
        tuple(figures),
        Plot(
            "Deviation from the authors' simulator",
            "virtual cluster of Philly",
            "average JCT, % more",
            bars={policy: [line[queue] for queue in queues] for policy, line in deviations.items()},
            categories=cluster_names({queue: jobs[queue] for queue in queues}),
        ),
        (f"Clusters: {' · '.join(queues)}.",),
    )


def reconfigurations(inputs: Inputs) -> Finding:
    """How much more often elastic policies change a job's share."""
    study = philly_study(inputs.folder("philly"))
    changes, jobs = by_queue(study.rows, "reallocations"), by_queue(study.rows, "jobs")
    pairs = {
        "elastic / rigid": (ELASTIC, RIGID),
        "afs-l / srtf": (("afs-l",), ("srtf",)),
        "afs-p / tiresias-l": (("afs-p",), (TIRESIAS,)),
    }
    ratios: dict[str, list[float]] = {
        name: [
            float(np.mean([line[policy] + jobs[queue][policy] for policy in more]))
            / float(np.mean([line[policy] + jobs[queue][policy] for policy in fewer]))
            for queue, line in changes.items()
        ]
        for name, (more, fewer) in pairs.items()
    }
    rows = [
        [queue, *(f"{line[p]:,.0f}" for p in POLICIES), *(f"{r[at]:.1f}x" for r in ratios.values())]
        for at, (queue, line) in enumerate(changes.items())
    ]
    return Finding(
        tuple(
            Figure(
                f"configurations, {name}",
                "6.3x on average, up to 22x",
                f"{np.mean(ratio):.1f}x on average, up to {max(ratio):.1f}x",
            )
            for name, ratio in ratios.items()
        ),
        Plot(
            "Elastic sharing reconfigures more often",
            "virtual cluster of Philly",
            "configurations of one / of the other",
            bars=ratios,
            categories=cluster_names(jobs),
        ),
        (
            "A job's start is one configuration, and every change of its share one more, "
            "suspensions and resumptions included. The table counts the changes. Which pair is "
            "meant is not published, so the one figure is compared with all three.",
        ),
        Details(["cluster", *heads(POLICIES), *pairs], rows),
    )


def stalls(inputs: Inputs) -> Finding:
    """What it costs if every change adds a stall to the job's own work."""
    trace = philly(inputs.folder("philly"))
    policies = ("afs-l", "afs-p", "afs-p:tie=keep", "srtf")
    minutes: dict[str, list[float]] = {policy: [] for policy in policies}
    for seconds in STALLS_S:
        study = simulate(trace, policies, vc=STALLED, gpus=GPUS, reconfigure=f"stall:{seconds}")
        for row in study.rows:
            minutes[str(row["policy"])].append(float(str(row["avg_jct_s"])) / 60)
    theirs = " · ".join(map(str, AFS_L_STALLED_MIN))
    return Finding(
        tuple(
            Figure(
                f"{policy}, average JCT in min",
                theirs if policy == "afs-l" else "",
                " · ".join(f"{value:.0f}" for value in values),
            )
            for policy, values in minutes.items()
        ),
        Plot(
            f"A stall at every resize, Philly cluster {STALLED}",
            "stall, s",
            "average JCT, min",
            {
                policy: list(zip(STALLS_S, values, strict=True))
                for policy, values in minutes.items()
            },
        ),
        (f"Stalls of {' · '.join(map(str, STALLS_S))} s.",),
    )


def contests(inputs: Inputs) -> Finding:
    """The exact scan of AFS against the tournament, and the coin against keeping shares."""
    study = simulate(philly(inputs.folder("philly")), CONTESTS, vc="all", gpus=GPUS)
    jct_s, changes = by_queue(study.rows, "avg_jct_s"), by_queue(study.rows, "reallocations")
    scan_l, knock_l, scan_p, knock_p, keep = CONTESTS
    compared = {"afs-l, tournament": (knock_l, scan_l), "afs-p, tournament": (knock_p, scan_p),
                "afs-p, tie=keep": (keep, scan_p)}  # fmt: skip
    more = {
        name: [(line[other] / line[exact] - 1) * 100 for line in jct_s.values()]
        for name, (other, exact) in compared.items()
    }
    fewer = [(line[keep] / line[scan_p] - 1) * 100 for line in changes.values()]
    rows = [
        [queue, *(f"{values[at]:+.2f} %" for values in more.values()), f"{fewer[at]:+.0f} %"]
        for at, queue in enumerate(jct_s)
    ]
    spread = {name: f"{min(each):+.2f} % to {max(each):+.2f} %" for name, each in more.items()}
    return Finding(
        (
            *(Figure(f"average JCT, {name}", "", said) for name, said in spread.items()),
            Figure(
                "changes of share, afs-p, tie=keep",
                "",
                f"{min(fewer):+.0f} % to {max(fewer):+.0f} %",
            ),
        ),
        Plot(
            "Average JCT against the published form",
            "virtual cluster of Philly",
            "% more",
            bars=more,
            categories=cluster_names(by_queue(study.rows, "jobs")),
        ),
        (
            "Nothing is published to compare with: tournament and tie=keep are our own. For afs-p "
            "the tournament's difference includes the coin.",
        ),
        Details(["cluster", *more, "changes with tie=keep"], rows),
    )


def without_data(inputs: Inputs) -> Finding:
    """The policies on the Tiresias-like workload of the AFS evaluation."""
    study = simulate("tiresias", POLICIES, gpus=GPUS, seeds=inputs.seeds)
    minutes = dict(zip(POLICIES, (study["avg_jct_s"] / 60).tolist(), strict=True))
    halves = (study["avg_jct_s_ci95"] / 60).tolist() if inputs.seeds > 1 else [0.0] * len(minutes)
    ratios = {"AFS-L over SRTF": ("srtf", "afs-l"), "AFS-P over Tiresias-L": (TIRESIAS, "afs-p"),
              "AFS-L over Optimus": ("optimus", "afs-l")}  # fmt: skip
    return Finding(
        tuple(
            Figure(f"{name}, average JCT", "", f"{minutes[other] / minutes[ours]:.2f}x")
            for name, (other, ours) in ratios.items()
        ),
        Plot(
            "240 jobs of 2 to 32 GPUs on 64 GPUs",
            "policy",
            "average JCT, min",
            bars={"average JCT": list(minutes.values())},
            categories=heads(list(minutes)),
            errors={"average JCT": halves},
        ),
        (
            f"Means of {inputs.seeds} seeds. The authors' code has this workload; no figures of "
            "it are published.",
        ),
    )


EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    Experiment(
        "afs-philly",
        "AFS against other policies on twelve clusters of Philly",
        f"{SOURCE}: average JCT, up to 2.67x over SRTF and 3.11x over Tiresias-L",
        f"{SHARES_ONLY}. Tiresias-L is set as in that simulator (one limit of 50 GPU-hours since "
        "the last start, no promotion), which predates the paper by a year.",
        against_others,
        "philly",
    ),
    Experiment(
        "afs-simulator",
        "Agreement with the authors' simulator",
        f"{SOURCE}, authors' public simulator, run on four of the clusters",
        "That simulator rounds event times up to whole seconds, ours does not; afs-p flips coins.",
        agreement,
        "philly",
    ),
    Experiment(
        "afs-reconfigurations",
        "Elastic sharing reconfigures jobs more often",
        f"{SOURCE}: 6.3x on average, up to 22x more than non-elastic sharing",
        f"{SHARES_ONLY}. The paper's talk does not say which policies it compares, nor whether "
        "a start counts.",
        reconfigurations,
        "philly",
    ),
    Experiment(
        "afs-stalls",
        "What a stall at every change costs",
        f"{SOURCE}; figures are of a re-run of the authors' policies",
        f"Virtual cluster {STALLED} only. Each change of a job's share adds this many seconds to "
        "its work, in that re-run as in ours; the paper has no such figures.",
        stalls,
        "philly",
    ),
    *afs_thrashing.EXPERIMENTS,
    Experiment(
        "afs-tiresias-jobs",
        "AFS against other policies on 240 generated jobs",
        f"{SOURCE}, the Tiresias-like workload of the authors' public simulator",
        f"{SHARES_ONLY}, from the packaged table of ten.",
        without_data,
    ),
    Experiment(
        "afs-contest",
        "The exact scan, the tournament and the coin",
        f"{SOURCE}: GPUs go one by one to the winner of duels between jobs",
        "The authors' code compares a champion with every job in turn, O(GPUs x jobs). A knock-out "
        "tournament needs O(GPUs x log jobs) and may choose otherwise, for the rule is not "
        "transitive. `tie=keep` decides what the coin would so that jobs keep their shares.",
        contests,
        "philly",
    ),
)

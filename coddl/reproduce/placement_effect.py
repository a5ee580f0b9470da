"""The effect of placement on step times."""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from coddl.core.placement.placement import Placement
from coddl.core.registry import placement_from, policy_from
from coddl.reproduce.experiment import Details, Experiment, Figure, Finding, Inputs, Plot
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, run_cases
from coddl.traces.clusters import cluster_from
from coddl.traces.generators import poisson
from coddl.traces.models import speeds_on
from coddl.traces.pollux import (
    Measured,
    global_batch,
    measurements,
    read_pollux,
    step_at,
)

DATA: Final = "t4_placements"
SOURCE: Final = "T4 measurements of the Pollux artifact (OSDI '21)"
CLUSTER, LOAD, JOBS = "4x4:t4", 0.9, 300
POLICIES: Final = ("srtf", "afs-l")


class Extremes(NamedTuple):
    """The best and the worst placement of a share, and what the worst costs."""

    best: str
    worst: str
    factor: float


def extremes(measured: Measured, gpus: int) -> Extremes:
    """What the place of a number of GPUs is worth to a model."""
    samples = -(-global_batch(measured) // gpus)
    step_of = {
        "+".join(map(str, placement.on_nodes)): step_at(steps, samples).step_s
        for placement, steps in measured.items()
        if placement.gpus == gpus
    }
    best, worst = min(step_of, key=step_of.__getitem__), max(step_of, key=step_of.__getitem__)
    return Extremes(best, worst, step_of[worst] / step_of[best])


def worth(inputs: Inputs) -> Finding:
    """What the best place is worth over the worst, by model; and to a cluster."""
    folder = inputs.folder(DATA)
    measured = measurements(folder)
    found = {gpus: [extremes(each, gpus) for each in measured.values()] for gpus in (4, 8)}
    rows = [
        [name, *(f"{each[at].best} over {each[at].worst}: {each[at].factor:.2f}x"
                 for each in found.values())]
        for at, name in enumerate(measured)
    ]  # fmt: skip
    over_alone = _on_a_cluster(folder, inputs.seeds)
    saved = " and ".join(f"{_saved(over_alone, policy):.0%} ({policy})" for policy in POLICIES)
    return Finding(
        tuple(
            Figure(f"{name}, {gpus} GPUs: best over worst place", "", f"{each[at].factor:.2f}x")
            for at, name in enumerate(measured)
            for gpus, each in found.items()
        )
        + tuple(
            Figure(
                f"{policy} on 16 T4s, average JCT: {placement} / share alone", "", f"{ratio:.2f}x"
            )
            for (policy, placement), ratio in over_alone.items()
        ),
        Plot(
            "Step time on the worst placement, relative to the best",
            "model",
            "worst over best step time",
            bars={f"{gpus} GPUs": [e.factor for e in each] for gpus, each in found.items()},
            categories=list(measured),
        ),
        (
            "Published for comparison: two GPUs on different servers make ResNet-50 up to 47 % "
            "slower, with other jobs on those servers (Gandiva, OSDI '18).",
            "The fewest nodes are not always the best place: of eight GPUs, two nodes of four are "
            "the slowest for five of the six models, it seems as four GPUs share a network card.",
            "Share alone: the same jobs where every place is the best one. Where `estimate` places "
            f"them by these measurements, {saved} of what consolidating costs is saved.",
        ),
        Details(["model", "4 GPUs", "8 GPUs"], rows),
    )


def _saved(over_alone: Mapping[tuple[str, str], float], policy: str) -> float:
    """Which part of what consolidating costs over share alone measured speeds save."""
    consolidated, estimated = (over_alone[policy, each] for each in ("consolidate", "estimate"))
    return (consolidated - estimated) / (consolidated - 1.0)


def _on_a_cluster(folder: Path, seeds: int) -> dict[tuple[str, str], float]:
    """Average JCT under placements over that where the place makes no difference."""
    cluster = cluster_from(CLUSTER)
    speeds = speeds_on(read_pollux(folder), cluster)
    strategies: dict[str, Placement | None] = {
        "share alone": None,
        **{name: placement_from(name) for name in ("consolidate", "estimate", "spread")},
    }
    cases, labels = [], []
    for seed, policy, strategy in product(range(seeds), POLICIES, strategies):
        trace = poisson(speeds, jobs=JOBS, gpus=cluster.gpus_total, load=LOAD, seed=seed)
        cases.append(
            Case(
                RunKey(f"{policy} {strategy}", cluster.gpus_total, seed=seed),
                policy_from(policy),
                trace.fitted_to(cluster.gpus_total, "clamp"),
                cluster=None if strategies[strategy] is None else cluster,
                placement=strategies[strategy],
            )
        )
        labels.append((policy, strategy))
    jct_s: dict[tuple[str, str], list[float]] = {}
    for label, run in zip(labels, run_cases(cases), strict=True):
        jct_s.setdefault(label, []).append(run.metrics().avg_jct_s)
    return {
        (policy, strategy): float(np.mean(np.divide(each, jct_s[policy, "share alone"])))
        for (policy, strategy), each in jct_s.items()
        if strategy != "share alone"
    }


EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    Experiment(
        "locality-t4",
        "The effect of placement on step time",
        SOURCE,
        "Nothing was published in this form. A model has one global batch at all sizes: what "
        "gives 16 GPUs the middle of the local batches that were measured. The workload of the "
        f"six models is made by chance: {JOBS} jobs, load {LOAD}, 16 GPUs in 4 nodes.",
        worth,
        "t4_placements",
    ),
)

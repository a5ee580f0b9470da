"""The effect of placement on step times, and how well it is predicted from one GPU."""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from coddl.core.cluster import Link, Links
from coddl.core.columns import FloatColumn
from coddl.core.placement.placement import Placement
from coddl.core.registry import placement_from, policy_from
from coddl.core.speed.estimate import (
    Algorithm,
    Locality,
    Spread,
    corrected,
    even_buckets,
    locality,
    ring_s,
    step_s,
    sync_s,
)
from coddl.reproduce.experiment import Details, Experiment, Figure, Finding, Inputs, Plot
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, run_cases
from coddl.traces.clusters import cluster_from
from coddl.traces.generators import poisson
from coddl.traces.models import model_named, speeds_on
from coddl.traces.pollux import (
    Measured,
    MeasuredPlacement,
    global_batch,
    measurements,
    read_pollux,
    step_at,
)

DATA: Final = "t4_placements"
SOURCE: Final = "T4 measurements of the Pollux artifact (OSDI '21)"
ONE, PAIR, APART = MeasuredPlacement((1,)), MeasuredPlacement((2,)), MeasuredPlacement((1, 1))
YARDSTICK: Final = "bert"  # what the links are measured with: it sends most
ALGORITHMS: Final[tuple[Algorithm, ...]] = ("flat", "hierarchical")
CLUSTER, LOAD, JOBS = "4x4:t4", 0.9, 300
POLICIES: Final = ("srtf", "afs-l")


class Prediction(NamedTuple):
    """A step as measured and as predicted."""

    where: Locality
    measured_s: float
    estimated_s: float

    @property
    def error(self) -> float:
        """How far off the estimate is, as a part of the truth."""
        return abs(self.estimated_s / self.measured_s - 1.0)


def spread_of(placement: MeasuredPlacement) -> Spread:
    """How the GPUs lie, on nodes without islands."""
    nodes = len(placement.on_nodes)
    return Spread(placement.gpus, nodes, nodes)


def links_from(measured: Measured, name: str) -> Links:
    """The links within a node and between nodes, from how a model's steps take longer on two GPUs.

    All buckets are alike, so that the time of one follows from the longest chain of them.
    """
    buckets, default = even_buckets(model_named(name)), Links()
    chain = np.arange(len(buckets.ready), 0, -1)
    speeds = []
    for placement, link in ((PAIR, default.island), (APART, default.rack)):
        found = []
        for batch, step in measured[placement].items():
            alone = measured[ONE][batch]
            computing = alone.step_s - alone.sync_s
            late = step.step_s - alone.sync_s - buckets.ready * computing
            one_s = float((late / chain).min()) - 2e-6 * link.latency_us
            sent = ring_s(2, buckets.size_bytes[:1], Link(1.0, 0.0))
            if one_s > 0.0:
                found.append(float(sent[0]) / one_s)
        speeds.append(float(np.median(found)))
    return Links(
        island=Link(speeds[0], default.island.latency_us),
        rack=Link(speeds[1], default.rack.latency_us),
    )


def predicted_steps(
    measured: Measured, name: str, links: Links, algorithm: Algorithm
) -> list[Prediction]:
    """Estimates of all steps on several GPUs, in the order of the measurements."""
    buckets, out = even_buckets(model_named(name)), []
    for placement, steps in measured.items():
        if placement == ONE:
            continue
        sync = sync_s(spread_of(placement), buckets.size_bytes, links, algorithm)
        for batch, step in steps.items():
            alone = step_at(measured[ONE], batch)
            computing = np.array(alone.step_s - alone.sync_s)
            estimated_s = float(step_s(computing, buckets.ready, sync)) + alone.sync_s
            out.append(Prediction(locality(spread_of(placement)), step.step_s, estimated_s))
    return out


def errors_after_runs(known: list[Prediction]) -> FloatColumn:
    """Errors where every step that was run corrects the estimates of those that come after it."""
    factors: dict[Locality, float] = {}
    errors = []
    for guess in known:
        factor = factors.get(guess.where, 1.0)
        errors.append(guess._replace(estimated_s=guess.estimated_s * factor).error)
        factors = corrected(factors, guess.where, guess.estimated_s, guess.measured_s)
    return np.array(errors)


def estimate(inputs: Inputs) -> Finding:
    """Predict the steps on 107 placements from those on one GPU."""
    measured = measurements(inputs.folder(DATA))
    links = links_from(measured[YARDSTICK], YARDSTICK)
    series: dict[str, list[float]] = {}
    others = [name for name in measured if name != YARDSTICK]
    for algorithm in ALGORITHMS:
        known = {name: predicted_steps(measured[name], name, links, algorithm) for name in measured}
        errors = {name: np.array([guess.error for guess in each]) for name, each in known.items()}
        series[f"one GPU, {algorithm} ring"] = _medians(errors, others)
        if algorithm == "hierarchical":
            later = {name: errors_after_runs(each) for name, each in known.items()}
            series["corrected by runs"] = _medians(later, others)
    columns = ["model", *series]
    rows = [
        [name, *(f"{values[at]:.1%}" for values in series.values())]
        for at, name in enumerate([*measured, f"all but {YARDSTICK}"])
    ]
    return Finding(
        tuple(
            Figure(f"median error, {what}, all but {YARDSTICK}", "", f"{values[-1]:.1%}")
            for what, values in series.items()
        ),
        Plot(
            "Estimates from one GPU",
            "model",
            "median error, %",
            bars={what: [100 * each for each in values] for what, values in series.items()},
            categories=[*measured, "others"],
        ),
        (
            "No error was published: the poster asks the question.",
            f"Links, from {YARDSTICK} on two GPUs: {links.island.gb_s:.2f} GB/s in a node, "
            f"{links.rack.gb_s:.2f} between nodes.",
            "Corrected: each step, in the order of the files, by what steps of the same locality "
            "before it had been off by.",
        ),
        Details(columns, rows),
    )


def _medians(errors: Mapping[str, FloatColumn], others: list[str]) -> list[float]:
    """The median error of every model, then of the others together."""
    joined = np.concatenate([errors[name] for name in others])
    return [float(np.median(each)) for each in (*errors.values(), joined)]


class Extremes(NamedTuple):
    """The best and the worst placement of a share, and what the worst costs."""

    best: str
    worst: str
    factor: float


def extremes(measured: Measured, gpus: int) -> Extremes:
    """What the place of so many GPUs is worth to a model."""
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
            "slower, with other jobs beside it (Gandiva, OSDI '18).",
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
        "estimate-t4",
        "Step times on 107 placements, predicted from one GPU",
        f'poster "Distributed Deep Learning over Shared GPU Cluster", question; {SOURCE}',
        "The poster gives the steps of the method and no numbers. Computation comes from the "
        "measurements on one GPU, gradient bytes from the published architectures, and the two "
        f"links from {YARDSTICK} on two GPUs, in place of a sweep of the cluster. Buckets are "
        "taken to be equal and to come evenly over the backward pass.",
        estimate,
        "t4_placements",
    ),
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

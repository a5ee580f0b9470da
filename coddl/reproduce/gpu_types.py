"""GPUs of several kinds: what it is worth to know them, and to split a batch by their speed."""

import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from coddl.core.columns import FloatColumn, IntColumn
from coddl.core.registry import placement_from, policy_from
from coddl.core.speed.estimate import split_batch
from coddl.core.speed.kinds import balanced, compute_s, equal
from coddl.core.speed.nnls import nnls
from coddl.core.speed.table import Speeds
from coddl.reproduce.experiment import Details, Experiment, Figure, Finding, Inputs, Plot
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, run_cases
from coddl.sim.study import ci95
from coddl.traces.clusters import cluster_from
from coddl.traces.files import read_speeds
from coddl.traces.generators import poisson
from coddl.traces.models import speeds_on

POLICIES: Final = ("max-min", "afs-l", "afs-p")
BLIND: Final = ":kinds=ignore"
JOBS, LOADS = 200, (0.4, 0.8, 1.2)
# As many GPUs of each kind as in Gavel's simulations.
LARGE_NODES: Final = "1x36:v100+1x36:p100+1x36:k80"
SMALL_NODES: Final = "9x4:v100+9x4:p100+9x4:k80"
SMALL_LOAD: Final = 0.8
MIXES: Final[Mapping[str, Mapping[str, int]]] = {
    "1 V100 + 1 P100": {"v100": 1, "p100": 1},
    "1 V100 + 1 K80": {"v100": 1, "k80": 1},
    "1 V100 + 4 K80": {"v100": 1, "k80": 4},
    "2 V100 + 2 P100 + 2 K80": {"v100": 2, "p100": 2, "k80": 2},
}
FEW, MANY = 16, 256  # virtual nodes, of strict jobs; others cut their batch by sample
# Models whose step times lie near a line over the batch on every kind, and their largest batch.
BATCHES: Final = {"ResNet-50": 128, "LM": 80}
SIZED: Final = re.compile(r"(.+) \(batch size (\d+)\)")


def measured(inputs: Inputs) -> Speeds:
    """Rates of 26 models on the three kinds."""
    return read_speeds(inputs.folder("k80_p100_v100") / "throughputs.json.gz")


def jct_s(
    spec: str, loads: Sequence[float], table: Speeds, seeds: int
) -> dict[tuple[str, float], FloatColumn]:
    """(policy, load) -> average JCT on a cluster, by seed."""
    cluster = cluster_from(spec)
    speeds, gpus = speeds_on(table, cluster), cluster.gpus_total
    policies = [name + form for name in POLICIES for form in (BLIND, "")]
    cases = [
        Case(
            RunKey(policy, gpus, load=load, seed=seed),
            policy_from(policy),
            poisson(speeds, jobs=JOBS, gpus=gpus, load=load, seed=seed),
            cluster=cluster,
            placement=placement_from("consolidate"),
        )
        for seed, load, policy in product(range(seeds), loads, policies)
    ]
    found: dict[tuple[str, float], list[float]] = {}
    for run in run_cases(cases):
        found.setdefault((run.key.policy, run.key.load), []).append(run.metrics().avg_jct_s)
    return {key: np.array(values) for key, values in found.items()}


def awareness(inputs: Inputs) -> Finding:
    """Policies that deal GPUs by kind against the same ones that take what they find."""
    table = measured(inputs)
    by_seed = jct_s(LARGE_NODES, LOADS, table, inputs.seeds)
    large = {key: float(np.mean(each)) for key, each in by_seed.items()}
    small = {
        key: float(np.mean(each))
        for key, each in jct_s(SMALL_NODES, (SMALL_LOAD,), table, inputs.seeds).items()
    }
    gains = {
        name: [large[name + BLIND, load] / large[name, load] for load in LOADS] for name in POLICIES
    }
    published = {"max-min": "up to 3.5x"}
    figures = [
        Figure(
            f"{name} over {name}{BLIND}, average JCT",
            published.get(name, ""),
            f"{min(gain):.2f}x to {max(gain):.2f}x",
        )
        for name, gain in gains.items()
    ]
    figures += [
        Figure(
            f"the same on nodes of 4 GPUs, {name}, load {SMALL_LOAD:g}",
            "",
            f"{small[name + BLIND, SMALL_LOAD] / small[name, SMALL_LOAD]:.2f}x",
        )
        for name in POLICIES
    ]
    rows = [
        [policy, *(f"{large[policy, load] / 60:.1f}" for load in LOADS)]
        for policy in dict.fromkeys(policy for policy, _ in large)
    ]
    return Finding(
        tuple(figures),
        Plot(
            "Average JCT without / with knowledge of GPU types",
            "load, as if all GPUs were V100s",
            "average JCT without / with",
            {name: list(zip(LOADS, gain, strict=True)) for name, gain in gains.items()},
            errors={
                name: [ci95(by_seed[name + BLIND, load] / by_seed[name, load]) for load in LOADS]
                for name in POLICIES
            },
        ),
        (
            "The table is of average JCT in minutes, by load.",
            "On nodes of 4 GPUs, jobs of either sort lie on more nodes than they need, as the "
            "placement does not move jobs that resizes have spread out; that takes much of the "
            "gain.",
        ),
        Details(["policy", *(f"load {load:g}" for load in LOADS)], rows),
    )


def rates(mix: Mapping[str, int], table: Speeds) -> FloatColumn:
    """How fast a mix computes, one V100 being 1: the median model of [equal, few, many, smooth]."""
    found = []
    for factors in table.places.kinds:
        node_s = [factors[table.kinds.index(kind)] for kind, count in mix.items()
                  for _ in range(count)]  # fmt: skip
        found.append(
            [
                MANY / compute_s(equal(MANY, len(node_s)), node_s),
                FEW / compute_s(balanced(FEW, node_s), node_s),
                MANY / compute_s(balanced(MANY, node_s), node_s),
                sum(1.0 / one_s for one_s in node_s),
            ]
        )
    medians: FloatColumn = np.median(np.array(found), axis=0)
    return medians


class StepCost(NamedTuple):
    """What a step takes on a device: so much, and so much for each sample."""

    fixed_s: float
    sample_s: float


def step_cost_of(batches: Sequence[int], times_s: FloatColumn) -> StepCost:
    """The line that is closest to measured step times, by relative error."""
    sizes = np.array(batches, float)
    terms = np.stack((1.0 / times_s, sizes / times_s), axis=1)
    return StepCost(*map(float, nnls(terms, np.ones(len(sizes)))))


def step_costs_of(model: str, table: Speeds) -> dict[str, StepCost]:
    """Kind -> what a step of a model takes, from all batches it was measured with."""
    sized = [SIZED.fullmatch(name) for name in table.names]
    rows = [row for row, found in enumerate(sized) if found and found[1] == model]
    batches = [int(found[2]) for found in sized if found and found[1] == model]
    step_s = table.step_s[rows, 1][:, None] * table.places.kinds[rows]
    return {kind: step_cost_of(batches, step_s[:, at]) for at, kind in enumerate(table.kinds)}


def with_fixed_costs(batch: int, devices: Sequence[StepCost]) -> list[float]:
    """Seconds of a step on devices: samples by speed, by the line, and virtual nodes by speed.

    The speed is that with the whole batch. Each virtual node takes what a step of its size does.
    """
    fixed_s, sample_s = (np.array(column) for column in zip(*devices, strict=True))

    def step_s(samples: IntColumn) -> float:
        return float(np.where(samples > 0, fixed_s + sample_s * samples, 0.0).max())

    by_speed = balanced(batch, (fixed_s / batch + sample_s).tolist())
    node_s = (fixed_s + sample_s * batch / FEW).tolist()
    return [
        step_s(by_speed),
        step_s(split_batch(batch, fixed_s, sample_s)),
        compute_s(balanced(FEW, node_s), node_s),
    ]


def fixed_costs(table: Speeds) -> Details:
    """What splits are worth where a step has a fixed cost, over a V100 with the whole batch."""
    rows = []
    for (model, batch), (name, mix) in product(BATCHES.items(), MIXES.items()):
        lines = step_costs_of(model, table)
        devices = [lines[kind] for kind, count in mix.items() for _ in range(count)]
        alone_s = lines["v100"].fixed_s + lines["v100"].sample_s * batch
        rates_x = [f"{alone_s / step_s:.2f}x" for step_s in with_fixed_costs(batch, devices)]
        rows.append([model, str(batch), name, *rates_x])
    head = "model", "batch", "devices", "by speed", "by fixed cost too", f"{FEW} virtual nodes"
    return Details(head, rows)


def balance(inputs: Inputs) -> Finding:
    """Virtual nodes dealt alike, and by the speed of each device."""
    table = measured(inputs)
    found = {name: rates(mix, table) for name, mix in MIXES.items()}
    figures = [
        Figure(
            name,
            "",
            f"{alike:.2f}x split alike, {few:.2f}x with {FEW} virtual nodes by speed, "
            f"{many:.2f}x with {MANY}, {smooth:.2f}x without rounding",
        )
        for name, (alike, few, many, smooth) in found.items()
    ]
    series = ("split alike", f"by speed, {FEW}", f"by speed, {MANY}", "without rounding")
    return Finding(
        tuple(figures),
        Plot(
            "One batch on GPUs of several types",
            "devices",
            "speed, one V100 = 1",
            bars={name: [rate[at] for rate in found.values()] for at, name in enumerate(series)},
            categories=list(MIXES),
        ),
        (
            "No figure was published. Each is of the median of 26 models, and of computation "
            "alone: what devices exchange is left out.",
            "Split alike, a slow device holds up the fast ones: a K80 next to a V100 makes it "
            "slower than alone. By speed it never does, if time is spent on samples alone.",
            "The table is of two models with what a step takes whatever its samples, fitted to the "
            "batches they were measured with. Samples by speed let slow devices end last; by fixed "
            "cost too, all end together, and a device that would not be worth its start gets none. "
            "Virtual nodes, which only strict jobs have, run one after the other, and there each "
            "pays the fixed cost: that is the most they can lose, as a part of it, such as the "
            "update, comes once a step.",
        ),
        fixed_costs(table),
    )


EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    Experiment(
        "kinds-awareness",
        "The gain from taking GPU types into account",
        "Narayanan et al., OSDI '20 (Gavel): policies that know kinds, up to 3.5x",
        "Gavel's max-min shares time on GPUs between jobs of fixed size, with a linear program in "
        "rounds of six minutes; ours shares GPUs between elastic jobs, at every event, in one "
        "greedy pass. Models, rates and numbers of GPUs are Gavel's; arrivals and lengths are of "
        "our poisson workload. Rates of kinds are those of one GPU. Each kind is one large node, "
        "so that distance counts between kinds alone; small nodes are distinguished.",
        awareness,
        "k80_p100_v100",
    ),
    Experiment(
        "kinds-balance",
        "A batch split by the speed of GPUs of several types",
        "CoDDL's first poster: shares of the batch by device speed; rates from Gavel, OSDI '20",
        "The poster has no figures on this. In the figures time per sample is taken to be the same "
        "for any share of the batch; in the table a step takes a fixed time and one per sample, of "
        "the two models for which that fits, and the line goes on below the smallest batch that "
        "was measured.",
        balance,
        "k80_p100_v100",
    ),
)

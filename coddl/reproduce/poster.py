"""The poster that CoDDL began with: static against dynamic allocation, and where GPUs lie."""

from collections.abc import Mapping
from typing import Final

from coddl.reproduce.experiment import Details, Experiment, Figure, Finding, Inputs, Plot
from coddl.sim.api import simulate
from coddl.traces.pollux import read_pollux

SOURCE: Final = 'poster "Distributed Deep Learning over Shared GPU Cluster"'
GPUS: Final = 512
POLICIES: Final = {"static (fifo)": "fifo", "dynamic (max-min)": "max-min", "afs-l": "afs-l"}


def static_or_dynamic(inputs: Inputs) -> Finding:
    """512 jobs of 8 models on 512 GPUs."""
    study = simulate("poster", list(POLICIES.values()), gpus=GPUS, seeds=inputs.seeds)
    jct, makespan = "average JCT, h", "makespan, h"
    hours = {
        shown: [float(study[column][at]) / 3600 for at in range(len(POLICIES))]
        for shown, column in ((jct, "avg_jct_s"), (makespan, "makespan_s"))
    }
    errors = {
        shown: (study[f"{column}_ci95"] / 3600).tolist()
        for shown, column in ((jct, "avg_jct_s"), (makespan, "makespan_s"))
        if inputs.seeds > 1
    }

    def cell(shown: str, at: int) -> str:
        return f"{hours[shown][at]:.2f}" + (f" ± {errors[shown][at]:.2f}" if errors else "")

    rows = [[name, cell(jct, at), cell(makespan, at)] for at, name in enumerate(POLICIES)]
    return Finding(
        tuple(
            Figure(
                f"{shown.partition(',')[0]}, static / dynamic",
                "dynamic is better",
                f"{values[0] / values[1]:.2f}x",
            )
            for shown, values in hours.items()
        ),
        Plot(
            "512 jobs on 512 GPUs",
            "allocation",
            "hours",
            bars=hours,
            categories=list(POLICIES),
            errors=errors,
        ),
        (
            "The poster shows both as bars without numbers.",
            f"Means of {inputs.seeds} seeds, with 95 % intervals in the table.",
        ),
        Details(["allocation", jct, makespan], rows),
    )


# (GPUs, nodes) as people say them.
TWO_OR_THREE: Final[Mapping[str, tuple[int, int]]] = {
    "2 GPUs, one node": (2, 1),
    "3 GPUs, two nodes": (3, 2),
    "3 GPUs, one node": (3, 1),
}

ALIKE: Final = 0.05


def two_or_three(inputs: Inputs) -> Finding:
    """Two GPUs in a node against three across two, as measured."""
    speeds = read_pollux(inputs.folder("t4_placements"))
    near, far, _ = TWO_OR_THREE
    speedup: dict[str, list[float]] = {
        place: [
            float(
                speeds.step_s[curve, 1]
                / (speeds.step_s[curve, gpus] * speeds.places.nodes[curve, gpus, nodes])
            )
            for curve in range(len(speeds.names))
        ]
        for place, (gpus, nodes) in TWO_OR_THREE.items()
    }
    ratios = [b / a for a, b in zip(speedup[near], speedup[far], strict=True)]
    named = sorted(zip(ratios, speeds.names, strict=True))
    faster = sum(ratio > 1 + ALIKE for ratio in ratios)
    slower = sum(ratio < 1 - ALIKE for ratio in ratios)
    return Finding(
        (
            Figure(
                "3 GPUs across two nodes against 2 in one",
                "which one performs better?",
                f"{faster} models faster, {slower} slower, {len(ratios) - faster - slower} alike",
            ),
            *(Figure(f"{name}: 3 across / 2 in one", "", f"{ratio:.2f}x") for ratio, name in named),
        ),
        Plot(
            "Speed-up over one T4 GPU at a fixed global batch",
            "model",
            "times as fast as one GPU",
            bars=speedup,
            categories=speeds.names,
        ),
        (
            "The poster asks the question and leaves it open: it depends on the model.",
            f"Alike: within {ALIKE:.0%}, as each placement was measured once.",
            "More than 1.5x (cifar10) is no gain of the network: in these measurements two of its "
            "GPUs are slower in one node than on two nodes, and at two GPUs a batch takes two "
            "passes, at three one.",
        ),
    )


EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    Experiment(
        "poster-512",
        "Static against dynamic allocation of 512 jobs",
        f"{SOURCE}, experiment: online job submission",
        "The poster states jobs, models and cluster, but no requests, lengths or arrivals. "
        "Here a job asks for all GPUs its model can use, runs for 10 to 120 minutes on those "
        "(uniform), and comes a minute (exponential) after the one before. The eight models, "
        "which the poster does not name, are those of the AFS authors' code of the time.",
        static_or_dynamic,
    ),
    Experiment(
        "poster-2-or-3",
        "Two GPUs in a node, or three across two nodes",
        f"{SOURCE}, topology-aware resource allocation",
        "Measured on nodes of four T4 GPUs (Pollux artifact, OSDI '21), not on the poster's GTX "
        "1080. Each model's global batch is divided among its GPUs.",
        two_or_three,
        "t4_placements",
    ),
)

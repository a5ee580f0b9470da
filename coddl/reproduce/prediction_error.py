"""Wrong predictions: how much the policies lose that trust lengths and speeds."""

from itertools import product
from typing import Final

import numpy as np

from coddl.core.registry import policy_from
from coddl.reproduce.experiment import Details, Experiment, Figure, Finding, Inputs, Plot
from coddl.sim.prediction_error import PredictionError, beliefs_of
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, run_cases
from coddl.sim.study import ci95
from coddl.traces.generators import poisson

POLICIES: Final = (  # that look at lengths or speeds; those by kind need several kinds
    *("afs-l", "afs-p", "optimus", "optimus-ps", "max-speedup", "max-min"),
    *("srtf", "srsf", "tetris", "themis", "gandiva"),
)
GPUS, LOAD = 64, 1.0
LENGTHS: Final = (0.1, 0.2, 0.3, 0.4, 0.5)
SPEEDS: Final = (0.1, 0.2, 0.3)
SAME: Final = 0.3  # the error at which lengths and speeds are compared
TRUTH: Final = PredictionError()
ERRORS: Final = (
    TRUTH,
    *(PredictionError(length=each) for each in LENGTHS),
    *(PredictionError(speed=each) for each in SPEEDS),
)
PUBLISHED: Final = {"optimus": "speeds hurt more than lengths"}
OF_SPEED: Final = tuple(error for error in ERRORS if not error.length)


def jct_by_seed(seeds: int) -> dict[tuple[str, PredictionError], list[float]]:
    """Average JCT of every policy with each error, by seed."""
    jct_s: dict[tuple[str, PredictionError], list[float]] = {}
    todo = list(product(range(seeds), ERRORS, POLICIES))
    traces = [poisson(gpus=GPUS, load=LOAD, seed=seed) for seed in range(seeds)]
    cases = [
        Case(
            RunKey(policy, GPUS, seed=seed),
            policy_from(policy),
            traces[seed],
            beliefs=beliefs_of(traces[seed], error, seed) if error != TRUTH else None,
        )
        for seed, error, policy in todo
    ]
    for (_, error, policy), run in zip(todo, run_cases(cases), strict=True):
        jct_s.setdefault((policy, error), []).append(run.metrics().avg_jct_s)
    return jct_s


def sensitivity(inputs: Inputs) -> Finding:
    """Average JCT of every policy with each error, against what it is with none."""
    jct_s = jct_by_seed(inputs.seeds)
    more = {
        (policy, error): (float(np.mean(found)) / float(np.mean(jct_s[policy, TRUTH])) - 1) * 100
        for (policy, error), found in jct_s.items()
    }
    length, speed = PredictionError(length=SAME), PredictionError(speed=SAME)
    return Finding(
        tuple(
            Figure(
                f"{policy}, average JCT, lengths / speeds off by up to {SAME:.0%}",
                PUBLISHED.get(policy, ""),
                f"{more[policy, length]:+.1f} % / {more[policy, speed]:+.1f} %",
            )
            for policy in POLICIES
        ),
        Plot(
            "Prediction error of speeds",
            "speeds off by up to",
            "average JCT, % more",
            {
                policy: [(error.speed, more[policy, error]) for error in OF_SPEED]
                for policy in POLICIES
            },
            errors={
                policy: [
                    100.0 * ci95(np.divide(jct_s[policy, error], jct_s[policy, TRUTH]))
                    for error in OF_SPEED
                ]
                for policy in POLICIES
            },
        ),
        (
            "The table is of average JCT, in % more than with true predictions.",
            "afs-p, max-speedup, max-min and gandiva do not look at lengths.",
            "optimus-ps and tetris have no parameter servers here, and decide every 10 minutes.",
        ),
        Details(
            [
                "policy",
                *(f"lengths {each:.0%}" for each in LENGTHS),
                *(f"speeds {each:.0%}" for each in SPEEDS),
            ],
            [
                [policy, *(f"{more[policy, error]:+.1f}" for error in ERRORS[1:])]
                for policy in POLICIES
            ],
        ),
    )


EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    Experiment(
        "prediction-errors",
        "The cost of prediction errors, by policy",
        "Peng et al., EuroSys '18 (Optimus): errors of speed hurt more than those of convergence",
        "Optimus trains with parameter servers, on a testbed and its own simulator, and its errors "
        "of convergence fall as a job goes on. Here jobs are elastic workers of our poisson "
        "workload at load 1; a length is off by one factor as long as the job lives, and a speed "
        "by another at each share; nothing is measured again while it runs.",
        sensitivity,
    ),
)

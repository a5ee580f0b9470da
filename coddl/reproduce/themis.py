"""Themis, as in *Themis: Fair and Efficient GPU Cluster Scheduling*, NSDI '20."""

from dataclasses import replace
from typing import Final

import numpy as np

from coddl.core.columns import FloatColumn
from coddl.core.registry import policy_from
from coddl.reproduce.experiment import Details, Experiment, Figure, Finding, Inputs, Plot
from coddl.sim.run import Run
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, run_cases
from coddl.sim.study import ci95
from coddl.traces.generators import poisson
from coddl.traces.trace import Trace

GPUS: Final = 64
JOBS: Final = 200
LOAD: Final = 1.2
LONGER: Final = 10.0  # than the jobs that `poisson` makes
POLICIES: Final = (
    "themis", "themis:form=max-min", "themis:form=greedy",
    "afs-l", "max-min", "tiresias-l", "gandiva",
)  # fmt: skip
FILTERS: Final = (0.0, 0.4, 0.8, 0.95)


def workload(seed: int) -> Trace:
    """Jobs of a few hours: leases are short beside them."""
    trace = poisson(jobs=JOBS, gpus=GPUS, load=LOAD, seed=seed)
    return replace(
        trace, iterations=trace.iterations * LONGER, submitted_s=trace.submitted_s * LONGER
    )


def jain(values: FloatColumn) -> float:
    """Jain's index of fairness: 1 if all are equal, 1/n if one has it all."""
    return float(values.sum() ** 2 / (values.size * (values**2).sum()))


def runs_of(inputs: Inputs, policies: tuple[str, ...]) -> dict[str, list[Run]]:
    """Every policy on every seed."""
    traces = [workload(seed) for seed in range(inputs.seeds)]
    runs = run_cases([Case(RunKey(p, GPUS), policy_from(p), t) for p in policies for t in traces])
    return {p: [run for run in runs if run.key.policy == p] for p in policies}


def fairness(inputs: Inputs) -> Finding:
    """Finish-time fairness of several policies on the same jobs."""
    runs = runs_of(inputs, POLICIES)
    worst_by_seed = {p: [float(run.rho.max()) for run in each] for p, each in runs.items()}
    worst = {p: float(np.mean(each)) for p, each in worst_by_seed.items()}
    equal = {p: float(np.mean([jain(run.rho) for run in each])) for p, each in runs.items()}
    jct_s = {p: float(np.mean([run.jct_s.mean() for run in each])) for p, each in runs.items()}
    slower = [
        theirs.jct_s.mean() / afs.jct_s.mean()
        for theirs, afs in zip(runs["themis"], runs["afs-l"], strict=True)
    ]
    figures = (
        Figure("worst rho with Themis", "about 1.2", f"{worst['themis']:.2f}"),
        Figure("worst rho, Tiresias-L over Themis", "above 2.25x",
               f"{worst['tiresias-l'] / worst['themis']:.2f}x"),
        Figure("worst rho, Gandiva over Themis", "above 2.25x",
               f"{worst['gandiva'] / worst['themis']:.2f}x"),
        Figure("average JCT, Themis over AFS-L (AFS, NSDI '21)", "up to 2.2x",
               f"up to {max(slower):.2f}x"),
    )  # fmt: skip
    rows = [[p, f"{worst[p]:.2f}", f"{equal[p]:.3f}", f"{jct_s[p] / 3600:.2f}"] for p in POLICIES]
    bars = {"worst rho": [worst[p] for p in POLICIES]}
    plot = Plot(
        "Finish-time fairness",
        "policy",
        "worst rho",
        bars=bars,
        categories=POLICIES,
        errors={"worst rho": [ci95(each) for each in worst_by_seed.values()]},
    )
    notes = (
        "rho is the JCT over that of an equal share alone; Jain's index is over all jobs' rho.",
        "A lower worst rho than the auction has: "
        + (", ".join(p for p in POLICIES if worst[p] < worst["themis"]) or "none of the others")
        + ". Policies that give every job a share at once need no lease to be fair.",
    )
    head = ("policy", "worst rho", "Jain's index", "average JCT, hours")
    return Finding(figures, plot, notes, Details(head, rows))


def filters(inputs: Inputs) -> Finding:
    """What the filter trades: who is asked at all."""
    specs = tuple(f"themis:filter={f:g}" for f in FILTERS)
    runs = runs_of(inputs, specs)
    worst_by_seed = [[float(run.rho.max()) for run in runs[spec]] for spec in specs]
    worst = [float(np.mean(each)) for each in worst_by_seed]
    jct_h = [float(np.mean([run.jct_s.mean() for run in runs[spec]])) / 3600 for spec in specs]
    best = FILTERS[int(np.argmin(worst))]
    figures = (
        Figure("the filter with the lowest worst rho", "0.8", f"{best:g}"),
        *(Figure(f"worst rho and average JCT in hours at {f:g}", "", f"{w:.2f}, {j:.2f}")
          for f, w, j in zip(FILTERS, worst, jct_h, strict=True)),
    )  # fmt: skip
    lines = {"worst rho": list(zip(FILTERS, worst, strict=True))}
    errors = {"worst rho": [ci95(each) for each in worst_by_seed]}
    plot = Plot("Which apps take part", "filter f", "worst rho", lines=lines, errors=errors)
    return Finding(figures, plot)


SOURCE: Final = "Mahajan et al., NSDI '20 (Themis)"
DIFFERS: Final = (
    "Themis' jobs are not public. Ours are 200 on 64 GPUs at load 1.2, with log-normal lengths of "
    "a few hours, each an app of its own; shares only, no placement. A lease is 20 minutes, as the "
    "paper's length is not known to us, and leases end in eight lots, not one by one. Payments are "
    "rounded to whole GPUs in the bidder's favour. What the auction leaves starts waiting apps "
    "before it lets others grow; the paper looks for good places there."
)
EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    Experiment(
        "themis-fairness",
        "Finish-time fairness of an auction against other policies",
        SOURCE,
        DIFFERS,
        fairness,
    ),
    Experiment(
        "themis-filter",
        "How many apps take part in the auction",
        SOURCE,
        DIFFERS,
        filters,
    ),
)

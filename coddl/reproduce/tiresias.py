"""Tiresias, as in *Tiresias: A GPU Cluster Manager for Distributed Deep Learning*, NSDI '19."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from coddl.core.allocation import Allocation, because
from coddl.core.columns import FloatMatrix
from coddl.core.policies.policy import Policy
from coddl.core.registry import placement_from, policy_from
from coddl.core.snapshot import Snapshot
from coddl.core.speed.table import interpolated
from coddl.reproduce import tiresias_philly
from coddl.reproduce.experiment import Details, Experiment, Figure, Finding, Inputs, Plot
from coddl.reproduce.tiresias_philly import GPUS, HOUR_S, SOURCE, TESTBED
from coddl.sim.run import Run
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, run_case, run_cases
from coddl.sim.study import ci95
from coddl.traces.generators import poisson, tiresias
from coddl.traces.models import speeds_on
from coddl.traces.trace import Trace, trace_of

JOBS: Final = 240
LOADS: Final = (1.0, 4.0)
# A placement that gathers all jobs lets them wait for it, as production does.
AGAINST_FIFO: Final = {
    "FIFO, consolidated": ("fifo", "tiresias:pack_limit=0"),
    "Tiresias-L": ("tiresias-l", "tiresias"),
    "Tiresias-G": ("tiresias-g", "tiresias"),
    "SRSF": ("srsf", "tiresias"),
}
BY_PROFILE: Final = {
    "skewed models consolidated": ("tiresias-l", "tiresias"),
    "all jobs consolidated": ("tiresias-l", "tiresias:pack_limit=0"),
    "no job consolidated": ("tiresias-l", "tiresias:pack_limit=1"),
    "by a fitted limit": ("tiresias-l", "tiresias:fit=true"),
}
ALIKE: Final = 0.05  # less is no difference worth the name
EXAMPLE: Final = ((2, 2), (1, 8), (2, 6))  # GPUs and hours of each job
PUBLISHED_H: Final = {"SRSF": "9.3", "2D-Gittins": "10.0", "2D-LAS": "11.7"}


def least_attained(snapshot: Snapshot) -> Allocation:
    """Run the jobs with the least GPU-time, and look again every hour: 2D-LAS without queues."""
    jobs, free = snapshot.jobs, snapshot.cluster.gpus_total
    shares = np.zeros(jobs.size, np.int64)
    for row in np.lexsort((jobs.id, jobs.attained_gpu_s)):
        if jobs.gpus_requested[row] <= free:
            shares[row] = jobs.gpus_requested[row]
            free -= shares[row]
    waiting = because(shares == 0, "Resources", "jobs that have had less GPU-time hold the GPUs")
    wake_at_s = snapshot.now_s + HOUR_S if (shares == 0).any() else np.inf
    return Allocation(shares, waiting, wake_at_s)


def worked_example(policy: str) -> Run:
    """Three jobs of 4, 8 and 12 GPU-hours that come together, on two GPUs."""
    policies: dict[str, Policy] = {
        "SRSF": policy_from("srsf"),
        "2D-Gittins": policy_from("tiresias-g:threshold_gpu_h=4,services_gpu_h=4/8/12"),
        "2D-LAS": least_attained,
    }
    gpus, hours = np.array(EXAMPLE).T
    step_s = np.array([2.0, 1.0])  # twice as fast on two GPUs
    trace = trace_of(
        "example",
        interpolated({"linear": [(1, 2.0), (2, 1.0)]}),
        submitted_s=np.zeros(3),
        curve=np.zeros(3, np.int64),
        gpus_requested=gpus,
        iterations=hours * HOUR_S / step_s[gpus - 1],
    )
    return run_case(Case(RunKey(policy, 2), policies[policy], trace))


def example(_inputs: Inputs) -> Finding:
    """What each order of three jobs costs."""
    jct_h = {name: worked_example(name).jct_s / HOUR_S for name in PUBLISHED_H}
    figures = (
        Figure(f"average JCT with {name}, hours", published, f"{jct_h[name].mean():.1f}")
        for name, published in PUBLISHED_H.items()
    )
    categories = [f"{gpus} GPU{'s' * (gpus > 1)} for {hours} h" for gpus, hours in EXAMPLE]
    bars = {name: times_h.tolist() for name, times_h in jct_h.items()}
    plot = Plot("Three jobs on two GPUs", "job", "JCT, hours", bars=bars, categories=categories)
    return Finding(tuple(figures), plot)


def workloads(inputs: Inputs) -> dict[str, list[Trace]]:
    """Jobs for the testbed of the paper, one trace a seed."""
    made: dict[str, list[Trace]] = {}
    for load in LOADS:
        traces = (
            poisson(jobs=JOBS, gpus=GPUS, load=load, seed=seed) for seed in range(inputs.seeds)
        )
        made[f"long tail, load {load:g}"] = list(traces)
    made["2 to 120 min"] = [tiresias(seed=seed) for seed in range(inputs.seeds)]
    return {
        name: [replace(trace, speeds=speeds_on(trace.speeds, TESTBED)) for trace in traces]
        for name, traces in made.items()
    }


def jct_h_of(inputs: Inputs, systems: Mapping[str, tuple[str, str]]) -> dict[str, FloatMatrix]:
    """Hours by system (policy, placement), [workload, what]: average and median JCT, the means of
    all seeds, and the error of the first.
    """
    by_workload = workloads(inputs)
    cases = [
        Case(
            RunKey(name, GPUS),
            policy_from(policy),
            trace,
            cluster=TESTBED,
            placement=placement_from(at),
        )
        for traces in by_workload.values()
        for trace in traces
        for name, (policy, at) in systems.items()
    ]
    found = [run.metrics() for run in run_cases(cases)]
    table = np.array([(each.avg_jct_s, each.p50_jct_s) for each in found]) / HOUR_S
    table = table.reshape(len(by_workload), inputs.seeds, len(systems), 2)
    errors = np.array([[ci95(each[:, at, 0]) for at in range(len(systems))] for each in table])
    found_h = np.concatenate((table.mean(axis=1), errors[..., None]), axis=2)
    return {name: found_h[:, at] for at, name in enumerate(systems)}


def plot_of(title: str, jct_h: Mapping[str, FloatMatrix], workloads: Sequence[str]) -> Plot:
    """Average JCT of each system on each workload."""
    return Plot(
        title,
        "workload",
        "average JCT, hours",
        bars={name: times_h[:, 0].tolist() for name, times_h in jct_h.items()},
        categories=workloads,
        errors={name: times_h[:, 2].tolist() for name, times_h in jct_h.items()},
    )


def against_fifo(inputs: Inputs) -> Finding:
    """What age-based scheduling gains over first come, first served."""
    jct_h, names = jct_h_of(inputs, AGAINST_FIFO), list(workloads(replace(inputs, seeds=1)))
    fifo_h = jct_h["FIFO, consolidated"][:, :2]
    gain = {name: fifo_h / times_h[:, :2] for name, times_h in jct_h.items()}
    figures = [
        Figure(f"average JCT, FIFO over {name}", published, f"up to {gain[name][:, 0].max():.1f}x")
        for name, published in (("Tiresias-L", "up to 5.5x"), ("Tiresias-G", ""), ("SRSF", ""))
    ]
    median = gain["Tiresias-L"][:, 1].max()
    figures.append(Figure("median JCT, FIFO over Tiresias-L", "", f"up to {median:.1f}x"))
    plot = plot_of("Tiresias and FIFO on generated jobs", jct_h, names)
    rows = [[name, *(f"{hours:.2f}" for hours in line)] for name, line in plot.bars.items()]
    notes = (
        "SRSF knows what is left of each job: it shows how much there is to gain at all. Requests "
        "are of 8 GPUs at most, so that little is held up behind a job that does not fit; Philly's "
        "jobs ask for up to 48.",
    )
    return Finding(tuple(figures), plot, notes, Details(("average JCT, hours", *names), rows))


def by_profile(inputs: Inputs) -> Finding:
    """What it is worth to gather only those that need it."""
    found, names = jct_h_of(inputs, BY_PROFILE), list(workloads(replace(inputs, seeds=1)))
    skewed, *others = BY_PROFILE
    figures = tuple(
        Figure(f"average JCT, {other} over {skewed}: {name}", "", f"{ratio:.2f}x")
        for other in others
        for name, ratio in zip(names, found[other][:, 0] / found[skewed][:, 0], strict=True)
    )
    plot = plot_of("Which jobs are kept together", found, names)
    most = max(
        float(np.abs(found[other][:, 0] / found[skewed][:, 0] - 1).max()) for other in others
    )
    notes = (
        f"The largest difference is {most:.1%}"
        + (": which jobs are consolidated hardly matters here." if most < ALIKE else "."),
    )
    return Finding(figures, plot, notes)


EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    Experiment(
        "tiresias-example",
        "Average JCT of three jobs, by what is known of them",
        SOURCE,
        "The talk that shows the example states the jobs' GPU-time, 4, 8 and 12, and the averages. "
        "GPUs and hours are ours: 2 x 2, 1 x 8 and 2 x 6, all at once on two GPUs. 2D-Gittins has "
        "queues that part at 4 GPU-hours, 2D-LAS checks every hour which job has had least.",
        example,
    ),
    tiresias_philly.EXPERIMENT,
    Experiment(
        "tiresias-generated",
        "Age-based scheduling against first come, first served on generated jobs",
        SOURCE,
        "The paper's jobs are not public. Ours are 240 with log-normal lengths at two loads, and "
        "240 of 2 to 120 minutes, as in the AFS evaluation. FIFO stands for YARN: strict order, "
        "all GPUs at once, on the fewest nodes or not at all. One threshold of a GPU-hour, no "
        "promotion, no cost of preemption; slowdowns across nodes are estimated.",
        against_fifo,
    ),
    Experiment(
        "tiresias-placement",
        "Consolidating only the jobs whose models are skewed",
        SOURCE,
        "The same jobs and nodes, under Tiresias-L. The paper gives no number for this part alone. "
        "What spread costs a model is estimated here from its parameters, not measured.",
        by_profile,
    ),
)

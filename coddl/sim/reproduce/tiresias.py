"""Tiresias, as in *Tiresias: A GPU Cluster Manager for Distributed Deep Learning*, NSDI '19."""

from typing import Final

import numpy as np

from coddl.core.allocation import Allocation, because
from coddl.core.policies.policy import Policy
from coddl.core.policies.registry import policy_from
from coddl.core.snapshot import Snapshot
from coddl.core.speed.table import interpolated
from coddl.sim.reproduce.experiment import Experiment, Figure, Finding, Plot, Setting
from coddl.sim.run import Run
from coddl.sim.simulate import Case, run_case
from coddl.traces.trace import trace_of

SOURCE: Final = "Gu et al., NSDI '19 (Tiresias)"
HOUR_S: Final = 3600.0
EXAMPLE: Final = ((2, 2), (1, 8), (2, 6))  # GPUs and hours of each job
PUBLISHED_H: Final = {"SRSF": "9.3", "2D-Gittins": "10.0", "2D-LAS": "11.7"}


def least_attained(snapshot: Snapshot) -> Allocation:
    """Run who has had least GPU-time, and look again every hour: 2D-LAS without queues."""
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
    return run_case(Case(policy, policies[policy], trace, 2))


def example(_setting: Setting) -> Finding:
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


EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    Experiment(
        "tiresias-example",
        "What is known of three jobs decides their average JCT",
        SOURCE,
        "The talk that shows the example states the jobs' GPU-time, 4, 8 and 12, and the averages. "
        "GPUs and hours are ours: 2 x 2, 1 x 8 and 2 x 6, all at once on two GPUs. 2D-Gittins has "
        "queues that part at 4 GPU-hours, 2D-LAS looks every hour who has had least.",
        example,
    ),
)

"""AFS against each system it is compared with, each with its own placement, on equal machines."""

from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from coddl.core.cluster import Cluster
from coddl.core.registry import placement_from, policy_from
from coddl.reproduce.experiment import Details, Experiment, Figure, Finding, Inputs, Plot
from coddl.sim.run import Run
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, run_cases
from coddl.traces.files import read_trace
from coddl.traces.models import speeds_on
from coddl.traces.trace import Trace

NODES, NODE_GPUS = 16, 4  # the testbed of the AFS paper
QUEUES: Final = {"ed69ec": "a quiet cluster", "2869ce": "a crowded cluster"}  # of Philly
JOBS: Final = 300  # of each, from its start: policies that take turns decide every minute


class System(NamedTuple):
    """A scheduler as its authors run it."""

    policy: str
    placement: str = "consolidate"


SYSTEMS: Final = {
    "afs-l": System("afs-l"),
    "afs-p": System("afs-p"),
    "srtf": System("srtf"),
    "optimus": System("optimus", "optimus"),
    "max-min": System("max-min"),
    "themis": System("themis"),
    "tiresias-l": System("tiresias-l:preset=afs", "tiresias"),
    "tiresias-g": System("tiresias-g", "tiresias"),
    "gandiva": System("gandiva", "gandiva"),
    "philly": System("philly", "philly"),
    "fifo": System("fifo"),
}
# Average JCT of the other over that of AFS, at best.
PUBLISHED: Final = {
    ("srtf", "afs-l"): "up to 2.67x",
    ("tiresias-l", "afs-p"): "up to 3.11x",
    ("themis", "afs-p"): "up to 2.2x",
}


def case_of(name: str, trace: Trace, queue: str) -> Case:
    """One system on one cluster of its own."""
    system, cluster = SYSTEMS[name], Cluster.of(NODES * NODE_GPUS, NODE_GPUS)
    part = trace.of_queue(queue)
    part = part.rows(np.arange(part.size) < JOBS)
    return Case(
        RunKey(name, NODES * NODE_GPUS, queue=queue),
        policy_from(system.policy),
        replace(part, speeds=speeds_on(part.speeds, cluster)),
        cluster=cluster,
        placement=placement_from(system.placement),
    )


def against_all(inputs: Inputs) -> Finding:
    """Run every system on every cluster."""
    trace = read_trace(inputs.folder("philly") / "jobs.csv.gz")
    runs = run_cases([case_of(name, trace, queue) for queue in QUEUES for name in SYSTEMS])
    found: dict[tuple[str, str], Run] = {(run.key.policy, run.key.queue or ""): run for run in runs}
    jct_s = {key: run.metrics().avg_jct_s for key, run in found.items()}

    def over(other: str, ours: str) -> str:
        ratios = [jct_s[other, q] / jct_s[ours, q] for q in QUEUES]
        return " · ".join(f"{ratio:.2f}x" for ratio in ratios)

    minutes = {
        f"{said} ({queue})": [jct_s[name, queue] / 60 for name in SYSTEMS]
        for queue, said in QUEUES.items()
    }
    rows = [
        [
            name,
            *(f"{jct_s[name, queue] / 60:,.1f}" for queue in QUEUES),
            *(f"{np.nanpercentile(found[name, queue].rho, 95):,.2f}" for queue in QUEUES),
            *(f"{found[name, queue].reallocations:,}" for queue in QUEUES),
        ]
        for name in SYSTEMS
    ]
    measures = ("avg JCT, min", "p95 of rho", "changes of share")
    return Finding(
        (
            *(
                Figure(f"{ours} over {other}, average JCT", published, over(other, ours))
                for (other, ours), published in PUBLISHED.items()
            ),
            *(
                Figure(f"afs-p over {other}, average JCT", "", over(other, "afs-p"))
                for other in SYSTEMS
                if not other.startswith("afs") and (other, "afs-p") not in PUBLISHED
            ),
        ),
        Plot(
            f"Every system on {NODES} nodes of {NODE_GPUS} GPUs",
            "system",
            "average JCT, min",
            bars=minutes,
            categories=list(SYSTEMS),
        ),
        (
            f"Clusters: {' · '.join(QUEUES)}. Published figures are the best of all clusters.",
            "The table has the 95th percentile of rho, as the largest is that of a job of seconds: "
            "whatever it waits is many times its length.",
        ),
        Details(["system", *(f"{m}, {queue}" for m in measures for queue in QUEUES)], rows),
    )


EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    Experiment(
        "afs-all",
        "AFS against every other system, with placement",
        "Hwang et al., NSDI '21 (AFS): up to 2.67x over SRTF, 3.11x over Tiresias-L, 2.2x over "
        "Themis",
        f"The first {JOBS} jobs of two of Philly's clusters, {NODES} nodes of {NODE_GPUS} GPUs, "
        "and placement by each system's own rule, with slowdowns of places that are estimated from "
        "facts on the models; the published comparison covers whole clusters, and more of them. "
        "Resizing, suspending and moving are free. Parameters of the systems are our defaults, "
        "those of Tiresias-L the AFS evaluation's.",
        against_all,
        "philly",
    ),
)

"""Every policy on Microsoft's Philly jobs, with placement: does it hold, and how long does it take?

    python benchmarks/philly.py --jobs 20000 --gpus 1024 --json
    taskset -c 0 python benchmarks/philly.py --policy afs-l --policy srtf --policy tiresias-l \
        --jobs 0 --gpus 1024 --gpus 2490

The trace has twelve virtual clusters, and the times of each start with its own first job. Here they
are aligned at that zero and share one cluster: all twelve begin at once, without quotas. Nodes have
8 GPUs (and the last what is left), all in one rack. A step takes longer where a job lies on more
nodes than it must, as estimated from each model's size. Every decision is checked. `cpu_s` is what
one core worked for a run, `wall_s` how long that took on this machine; compiling is not counted.

Locality is the part of GPU-time in which jobs lay on the fewest nodes that could hold them.
"""

import argparse
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.cluster import Cluster, ClusterColumns
from coddl.core.columns import IntColumn
from coddl.core.compiling import kernel
from coddl.core.placement.placement import Placed, Placement
from coddl.core.policies.policy import Policy
from coddl.core.registry import POLICIES, placement_from, policy_from
from coddl.core.slots import Slots
from coddl.core.snapshot import Snapshot
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, Watch, run_case
from coddl.sim.world import Reconfigure
from coddl.traces.files import read_trace
from coddl.traces.models import speeds_on
from coddl.traces.trace import Trace

PHILLY = Path(__file__).parents[2] / "shared" / "data" / "philly"
GPUS_PER_NODE = 8
WARM_UP_JOBS = 300
COLUMNS = ("case", "gpus", "jobs", "finished", "avg_jct_h", "locality", "migrations", "events",
           "cpu_s", "wall_s")  # fmt: skip


@kernel
def close_gpus(columns: ClusterColumns, slots: Slots, per_node: int) -> IntColumn:
    """GPUs of all jobs, and of those that lie on no more nodes than they must."""
    out = np.zeros(2, np.int64)
    for row in range(slots.first.shape[0] - 1):
        gpus, nodes, last = 0, 0, -1
        for i in range(slots.first[row], slots.first[row + 1]):
            gpus += slots.gpus[i]
            nodes += columns.island_node[slots.island[i]] != last
            last = columns.island_node[slots.island[i]]
        out[0] += gpus
        if nodes * per_node < gpus + per_node:
            out[1] += gpus
    return out


@dataclass
class Locality:
    """Integrates over time how close together jobs lie."""

    since_s: float = 0.0
    gpus: IntColumn = field(default_factory=lambda: np.zeros(2, np.int64))
    gpu_s: float = 0.0
    close_gpu_s: float = 0.0

    def see(self, snapshot: Snapshot, slots: Slots) -> None:
        """Note where jobs are from now on."""
        past_s = snapshot.now_s - self.since_s
        self.gpu_s += past_s * float(self.gpus[0])
        self.close_gpu_s += past_s * float(self.gpus[1])
        self.since_s = snapshot.now_s
        self.gpus = close_gpus(snapshot.cluster.columns, slots, GPUS_PER_NODE)

    def seen(self, policy: Policy, placement: Placement) -> tuple[Policy, Placement]:
        """The same two, looked at."""

        def decide(snapshot: Snapshot) -> Allocation:
            allocation = policy(snapshot)
            if allocation.slots is not None:
                self.see(snapshot, allocation.slots)
            return allocation

        def place(snapshot: Snapshot, allocation: Allocation) -> Placed:
            placed = placement(snapshot, allocation)
            self.see(snapshot, placed.slots)
            return placed

        return decide, place


def cases(options: argparse.Namespace, trace: Trace) -> Iterator[Case]:
    """Every run that was asked for."""
    for gpus in options.gpus or [1024]:
        cluster = Cluster.of(gpus, GPUS_PER_NODE)
        placed = replace(trace, speeds=speeds_on(trace.speeds, cluster))
        for spec in options.policy or POLICIES:
            for name in options.placement or ["consolidate"]:
                yield Case(
                    RunKey(f"{spec} + {name}", gpus),
                    policy_from(spec),
                    placed,
                    reconfigure=Reconfigure("stall", pause_s=options.pause_s),
                    cluster=cluster,
                    placement=placement_from(name),
                )


def measure(case: Case, limit_s: float) -> dict[str, object]:
    """Run a case, a short one first so that all is compiled; stop it after `limit_s`."""
    assert case.placement is not None
    first = np.arange(case.trace.size) < WARM_UP_JOBS
    run_case(replace(case, trace=case.trace.rows(first)))
    locality, watch = Locality(), Watch()
    policy, placement = locality.seen(case.policy, case.placement)
    timer = threading.Timer(limit_s, watch.stop.set)
    timer.start()
    cpu_s = time.process_time()
    run = run_case(replace(case, policy=policy, placement=placement), watch)
    cpu_s = time.process_time() - cpu_s
    timer.cancel()
    metrics = run.metrics()
    return {
        "case": case.key.policy,
        "gpus": case.key.gpus,
        "jobs": case.trace.size,
        "finished": metrics.jobs,
        "avg_jct_h": metrics.avg_jct_s / 3600.0,
        "locality": locality.close_gpu_s / locality.gpu_s if locality.gpu_s else np.nan,
        "migrations": metrics.migrations,
        "events": metrics.events,
        "cpu_s": cpu_s,
        "wall_s": metrics.wall_s,
    }


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=PHILLY, help="folder with jobs.csv.gz")
    parser.add_argument("--policy", action="append", help="only this policy; repeat for several")
    parser.add_argument(
        "--jobs", type=int, default=20_000, help="number of jobs from the start; 0: all"
    )
    parser.add_argument("--gpus", type=int, action="append", help="repeat for several")
    parser.add_argument("--placement", action="append", help="repeat for several")
    parser.add_argument("--pause-s", type=float, default=0.0, help="what each change costs a job")
    parser.add_argument("--limit-s", type=float, default=1800.0, help="stop a run after that")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    options = parser.parse_args()
    whole = read_trace(options.data / "jobs.csv.gz")
    trace = whole.rows(np.arange(whole.size) < (options.jobs or whole.size))
    if not options.json:
        print(f"{len(set(trace.queue.tolist()))} virtual clusters, aligned at their first jobs, "
              f"share one cluster")  # fmt: skip
        print(" ".join(f"{name:>11}" for name in COLUMNS))
    for case in cases(options, trace):
        result = measure(case, options.limit_s)
        line = " ".join(f"{result[name]:>11.4g}" if isinstance(result[name], float)
                        else f"{result[name]:>11}" for name in COLUMNS)  # fmt: skip
        print(json.dumps(result) if options.json else line, flush=True)


if __name__ == "__main__":
    main()

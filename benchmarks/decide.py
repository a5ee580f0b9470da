"""How long one decision takes on a very large cluster.

    python benchmarks/decide.py --jobs 4000 --nodes 16000 --gpus-per-node 8 --gpus-max 256 --policy
    afs-l --json

Each of 20 warm decisions is made on its own snapshot, with its own jobs, lengths and speed
curves: no decision can reuse what another has computed. The answer is compared with that of the
rule's uncompiled twin.

With --placement a decision also chooses GPUs. `seconds` is then for an empty cluster, on which
every job must be placed; `seconds_seated` for one where four of five jobs hold GPUs.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.cluster import Cluster
from coddl.core.jobs import JobTable
from coddl.core.plan import Plan
from coddl.core.policies.policy import RulePolicy
from coddl.core.registry import placement_from, policy_from
from coddl.core.scheduler import Scheduler
from coddl.core.slots import Slots
from coddl.core.snapshot import Snapshot, empty_memory
from coddl.core.speed.table import speeds_of
from coddl.testing import twin


def busy_snapshot(jobs: int, nodes: int, gpus_per_node: int, gpus_max: int, seed: int) -> Snapshot:
    """A busy cluster: each job has its own sublinear curve and length; most hold GPUs."""
    random = np.random.default_rng(seed)
    shares = np.arange(gpus_max + 1)
    serial = random.uniform(0.0005, 0.05, (jobs, 1))  # Amdahl's part that does not scale
    step_s = np.full((jobs, gpus_max + 1), np.inf)
    step_s[:, 1:] = random.uniform(0.1, 4.0, (jobs, 1)) * (serial + (1 - serial) / shares[1:])
    now_s = 1e6
    started = random.random(jobs) < 0.8
    submitted_s = np.sort(random.uniform(0.0, now_s, jobs))
    start_s = np.where(started, random.uniform(submitted_s, now_s), np.inf)
    gpus = nodes * gpus_per_node
    held = np.where(started, random.integers(1, max(2, min(gpus_max, gpus // jobs)), jobs), 0)
    table = JobTable.of(
        jobs,
        submitted_s=submitted_s,
        curve=np.arange(jobs),
        gpus_max=gpus_max,
        gpus_requested=random.choice([1, 2, 4, 8, 16], jobs),
        gpus=held,
        remaining_iterations=random.lognormal(9.0, 2.0, jobs),
        starts=started,
        first_start_s=start_s,
        last_start_s=start_s,
    )
    cluster = Cluster.of(gpus, gpus_per_node)
    speeds = speeds_of(tuple(map(str, range(jobs))), step_s, np.ones(step_s.shape, np.bool_))
    return Snapshot(now_s, cluster, table, speeds, empty_memory(jobs), seed + 1)


def empty(snapshot: Snapshot) -> Snapshot:
    """The same snapshot before any job has been placed."""
    return replace(snapshot, slots=Slots.none(snapshot.jobs.size))


def seated(snapshot: Snapshot) -> Snapshot:
    """The same snapshot, with GPUs placed for the jobs that hold some."""
    held = Allocation(snapshot.jobs.gpus)
    return replace(snapshot, slots=placement_from("consolidate")(empty(snapshot), held).slots)


class Timed(NamedTuple):
    """How long decisions took, and the last of them."""

    seconds: list[float]
    cpu_seconds: list[float]  # processor time, which a busy machine disturbs less
    last: Plan


def timed(scheduler: Scheduler, snapshots: Iterator[Snapshot]) -> Timed:
    """Time a decision on each snapshot; the first is for compiling."""
    seconds, cpu_seconds = [], []
    plan = scheduler.decide(next(snapshots))
    for snapshot in snapshots:
        start_s, cpu_s = time.perf_counter(), time.process_time()
        plan = scheduler.decide(snapshot)
        seconds.append(time.perf_counter() - start_s)
        cpu_seconds.append(time.process_time() - cpu_s)
    return Timed(seconds, cpu_seconds, plan)


def measure(
    spec: str, placement: str | None, size: dict[str, int], repeats: int
) -> dict[str, object]:
    """Time decisions on different snapshots; check one against the twin."""
    policy = policy_from(spec)
    assert isinstance(policy, RulePolicy)
    scheduler = Scheduler(policy, placement=placement_from(placement) if placement else None)
    seeds = range(repeats + 1)
    look: Callable[[Snapshot], Snapshot] = empty if placement else lambda snapshot: snapshot
    seconds, cpu_seconds, last = timed(
        scheduler, (look(busy_snapshot(**size, seed=s)) for s in seeds)
    )
    shares = np.zeros(size["jobs"], np.int64)
    start_s = time.perf_counter()
    memory = last.snapshot.memory.copy()
    twin(policy.rule)(last.snapshot.for_kernels(), policy.parameters, memory, shares)
    result: dict[str, object] = {
        "policy": spec,
        "placement": placement,
        **size,
        "seconds": statistics.median(seconds),
        "seconds_max": max(seconds),
        "cpu_seconds": statistics.median(cpu_seconds),
        "twin_seconds": time.perf_counter() - start_s,
        "shares_equal_twin": bool(np.array_equal(shares, last.shares)),
        "gpus_given": int(last.shares.sum()),
    }
    if placement:
        snapshots = (seated(busy_snapshot(**size, seed=s)) for s in seeds)
        seconds, cpu_seconds, last = timed(scheduler, snapshots)
        result["seconds_seated"] = statistics.median(seconds)
        result["seconds_seated_max"] = max(seconds)
        result["cpu_seconds_seated"] = statistics.median(cpu_seconds)
        result["jobs_moved"] = int(last.moved.sum())
    return result


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=4000)
    parser.add_argument("--nodes", type=int, default=16000)
    parser.add_argument("--gpus-per-node", type=int, default=8)
    parser.add_argument("--gpus-max", type=int, default=256)
    parser.add_argument("--policy", default="afs-l")
    parser.add_argument("--placement", help="say which GPUs, too: consolidate, estimate, …")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = vars(parser.parse_args())
    as_json, repeats = options.pop("json"), options.pop("repeats")
    spec, placement = options.pop("policy"), options.pop("placement")
    result = measure(spec, placement, options, repeats)
    print(json.dumps(result) if as_json else "\n".join(f"{k:18} {v}" for k, v in result.items()))


if __name__ == "__main__":
    main()

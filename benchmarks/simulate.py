"""How fast the simulator is, against an honest event loop in plain Python.

    python benchmarks/simulate.py --json

Both simulate the same jobs on 64 GPUs, in this process, one after the other: the Philly clusters
ed69ec and 103959 and the first 5,000 jobs of 6214e9 (`--data` names the folder; where there is
none, a generated trace). Event lists are compared; a policy whose lists differ is an error.
Policies that the plain loop does not know are left out.
`engine_us` is what the step-by-step loop costs per event besides the policy.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.policies.policy import Policy
from coddl.core.registry import POLICIES, policy_from
from coddl.core.snapshot import Snapshot
from coddl.sim.run import Run
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, run_case
from coddl.traces.files import read_trace
from coddl.traces.generators import poisson
from coddl.traces.trace import Trace
from tests import oracle

PHILLY = Path(__file__).parents[2] / "shared" / "data" / "philly"


def workloads(folder: Path) -> list[Trace]:
    """What is simulated."""
    if not folder.is_dir():
        return [poisson(jobs=5000, gpus=64, load=1.2)]
    whole = read_trace(folder / "jobs.csv.gz")
    named = [whole.of_queue(name) for name in ("ed69ec", "103959", "6214e9")]
    return [*named[:2], named[2].rows(np.arange(named[2].size) < 5000)]


def events_of(run: Run) -> Iterator[tuple[float, int, int, int]]:
    """A run's events as the oracle writes them."""
    assert run.events is not None
    return zip(*(column.tolist() for column in run.events), strict=True)


def measure(name: str, traces: list[Trace]) -> dict[str, float]:
    """Jobs per second of the compiled loop, and how many times the plain one's that is."""
    jobs = compiled_s = plain_s = 0.0
    for trace in traces:
        case = Case(RunKey(name, 64), policy_from(name), trace)
        runs = [run_case(case) for _ in range(3)]
        recorded = run_case(replace(case, keep_events=True))
        start_s = time.perf_counter()
        want = oracle.simulate(trace, 64, name, seed=1)
        plain_s += time.perf_counter() - start_s
        compiled_s += min(run.wall_s for run in runs)
        jobs += trace.size
        if list(events_of(recorded)) != want:
            raise SystemExit(f"{name}: the compiled loop and the oracle differ on {trace.name}")
    return {"jobs_per_s": jobs / compiled_s, "ratio_to_plain_python": plain_s / compiled_s}


def engine_us(trace: Trace) -> float:
    """Microseconds per event of the step-by-step loop, without what its policy takes."""
    inside = 0.0

    def timed(policy: Policy) -> Policy:
        def decide(snapshot: Snapshot) -> Allocation:
            nonlocal inside
            start_s = time.perf_counter()
            allocation = policy(snapshot)
            inside += time.perf_counter() - start_s
            return allocation

        return decide

    case = Case(RunKey("afs-l", 64), timed(policy_from("afs-l")), trace)
    run_case(case)
    inside = 0.0
    run = run_case(case)
    return (run.wall_s - inside) / run.event_count * 1e6


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=PHILLY, help="folder with jobs.csv.gz")
    known = [name for name in POLICIES if name in oracle.policies_of({})]
    parser.add_argument("--policy", action="append", choices=known, help="repeat for several")
    parser.add_argument("--jobs", type=int, help="only the first jobs of each trace")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    traces = [trace.rows(np.arange(trace.size) < (options.jobs or trace.size))
              for trace in workloads(options.data)]  # fmt: skip
    results = {name: measure(name, traces) for name in options.policy or known}
    overhead_us = engine_us(traces[0])
    if options.json:
        print(json.dumps({"policies": results, "engine_us": overhead_us}))
        return
    for name, result in results.items():
        speed, ratio = result["jobs_per_s"], result["ratio_to_plain_python"]
        print(f"{name:12} {speed:10,.0f} jobs/s   {ratio:6.1f} x plain Python")
    print(f"step-by-step loop, besides the policy: {overhead_us:.0f} µs an event")


if __name__ == "__main__":
    main()

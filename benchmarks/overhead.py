"""What the elastic runtime adds to a training step, against plain DDP.

    python benchmarks/overhead.py --json

Two equal models are trained by the same processes, one prepared by us under a supervisor, one by
DDP over a Gloo group of its own, with the same data pipeline and one thread per process. Blocks of
steps alternate, ours, DDP, DDP, ours; two neighbours are a pair and give one ratio.

`ratio_median` is our time by DDP's, with its 95 % interval `ci95` by order statistics; `added_us`
is the median of what we add to a step. "default" runs each virtual node as a pass of its own, and
is set against DDP that accumulates the same micro-batches without sync; "fuse" is set against DDP
that runs them as one batch. The price of virtual nodes is "default" against the latter.
"""

import argparse
import json
import statistics
from typing import Any, NamedTuple

from benchmarks.elastic.job import RunningJob, machine, scratch


class Case(NamedTuple):
    """One comparison."""

    what: str
    model: str
    wish: str
    against: str
    steps: int  # in a block

    def cell(self, workers: int) -> str:
        return f"{self.what}, {self.model}, {workers} worker{'s' if workers > 1 else ''}"


CASES = (
    Case("default", "small", "default", "accumulation", 20),
    Case("default", "large", "default", "accumulation", 2),
    Case("fuse", "large", "fuse", "full", 2),
    Case("strict", "large", "strict", "accumulation", 2),
    Case("virtual nodes", "large", "default", "full", 2),
)
WORKERS = (1, 2)


Pair = tuple[float, float]  # ours, DDP's


def blocks(case: Case, workers: int, pairs: int) -> tuple[list[Pair], list[Pair]]:
    """Train both; gives the blocks' seconds, and their seconds of processor time."""
    with scratch() as folder:
        arguments = [case.model, case.wish, case.against, *map(str, (workers, pairs, case.steps))]
        with RunningJob("twins.py", [*arguments, str(folder)], workers) as job:
            job.finish()
        found = json.loads((folder / "pairs.json").read_text())
    wall, processor = ([(a[i], b[i]) for a, b in found] for i in range(2))
    return wall, processor


def interval(values: list[float]) -> tuple[float, float]:
    """Give a 95 % interval of the median: two order statistics, whatever the distribution."""
    count = len(values)
    outside = below = 0.5**count  # the chance that so few lie below the median
    rank = 0
    while 2 * (outside + (below := below * (count - rank) / (rank + 1))) <= 0.05:
        outside += below
        rank += 1
    ordered = sorted(values)
    return ordered[rank], ordered[count - 1 - rank]


def measure(case: Case, workers: int, pairs: int) -> dict[str, Any]:
    """Compare once."""
    found, processor = blocks(case, workers, pairs)
    ratios = [ours_s / theirs_s for ours_s, theirs_s in found]
    return {
        "ratio_median": statistics.median(ratios),
        "ci95": interval(ratios),
        "added_us": statistics.median((a - b) / case.steps * 1e6 for a, b in found),
        "step_ms": statistics.median(a / case.steps * 1e3 for a, _ in found),
        "ddp_step_ms": statistics.median(b / case.steps * 1e3 for _, b in found),
        "cpu_ratio_median": statistics.median(a / b for a, b in processor),
        "cpu_added_us": statistics.median((a - b) / case.steps * 1e6 for a, b in processor),
        "cpu_ddp_step_ms": statistics.median(b / case.steps * 1e3 for _, b in processor),
        "pairs": pairs,
    }


def row(name: str, result: dict[str, Any]) -> str:
    """Show one comparison to people."""
    low, high = result["ci95"]
    return (
        f"{name:34} {result['ratio_median']:6.3f}  [{low:.3f}, {high:.3f}]"
        f"  {result['added_us']:+9.0f} µs  {result['ddp_step_ms']:7.2f} ms"
    )


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", action="append", help="only this one; repeat for several")
    parser.add_argument("--model", choices=("small", "large"), help="only this one")
    parser.add_argument("--workers", type=int, choices=WORKERS, help="only so many")
    parser.add_argument("--pairs", type=int, default=100, help="per comparison, at least 20")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if not options.json:
        print(f"{'':34} {'ratio':>6}  {'95 %':16}  {'added a step':>11}  {'DDP step':>9}")
    results = {}
    for case in CASES:
        for workers in WORKERS:
            if options.case and case.what not in options.case:
                continue
            if options.model not in (None, case.model) or options.workers not in (None, workers):
                continue
            name = case.cell(workers)
            results[name] = measure(case, workers, options.pairs)
            if not options.json:
                print(row(name, results[name]), flush=True)
    on = machine()
    if options.json:
        print(json.dumps({"cases": results, "machine": on}))
    else:
        print(", ".join(f"{name} {value}" for name, value in on.items()))


if __name__ == "__main__":
    main()

"""What the elastic runtime adds to a training step, against plain DDP.

    python benchmarks/overhead.py --json

Two equal models are trained by the same processes, one prepared by us under a supervisor, one by
DDP over a Gloo group of its own, with the same data pipeline and one thread per process. Blocks of
steps alternate, ours, DDP, DDP, ours; two neighbours are a pair and give one ratio.

`ratio_median` is our time by DDP's, with its 95 % interval `ci95` by order statistics; `added_us`
is the median of what we add to a step. `cpu_*` are the same of the main worker's processor time,
which other programs disturb less, and in which waiting does not show.

"default" runs each virtual node as a pass of its own, and is set against DDP that accumulates the
same micro-batches without sync; so is "strict". "fuse" is set against DDP that runs a worker's
samples as one batch. "virtual nodes" is their price: "default" against DDP with one batch.
"""

import argparse
import itertools
import json
import math
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

    def name(self, workers: int) -> str:
        """Name it at a number of workers."""
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
    chances = (math.comb(count, below) / 2**count for below in range(count))
    outside = itertools.takewhile(lambda chance: chance <= 0.025, itertools.accumulate(chances))
    rank = sum(1 for _ in outside) - 1
    ordered = sorted(values)
    return ordered[rank], ordered[-1 - rank]


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
        f"{name:32} {result['ratio_median']:5.3f}  [{low:.3f}, {high:.3f}]"
        f"  {result['added_us']:+9.0f} µs  {result['ddp_step_ms']:6.2f} ms"
        f"  {result['cpu_ratio_median']:9.3f}  {result['cpu_added_us']:+9.0f} µs"
    )


HEAD = (
    f"{'':32} {'ratio':5}  {'95 %':14}  {'added a step':>12}  {'DDP step':>9}"
    f"  {'CPU ratio':>9}  {'CPU added':>12}"
)


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help='comparisons with this in their name: "strict"')
    parser.add_argument("--pairs", type=int, default=60, help="per comparison, at least 20")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.pairs < 20:
        parser.error("--pairs must be at least 20")
    results = {}
    if not options.json:
        print(HEAD)
    for case, workers in itertools.product(CASES, WORKERS):
        name = case.name(workers)
        if options.only in name:
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

"""What the runtime adds to a step of an ordinary training script while nothing is resized.

    python benchmarks/plain.py --json

One worker: a script with `coddl.prepare` and `coddl.epochs` against the same script without, by
plain python or under a supervisor (`--under run`). Two workers: the prepared script under a
supervisor against DDP with the same slice per worker, both over gloo, or over NCCL on one GPU
(`--backend nccl`). Both train in the same process, in blocks of steps that alternate, so that
whatever else the machine does affects both.

`ratio` is the median of the prepared script's block times by the plain script's next to them, with
a bootstrap interval of 95 %; `ratio_total` is the ratio of their sums, which includes what happens
rarely. `added_us` is the median difference per step. `noise` is what the same measure gives for a
second plain script in the same run: smaller differences mean nothing. `cpu_ratio` is the ratio of
processor time, in which waiting does not show. `memory_ratio` compares peak GPU memory, of each
script alone in a process of its own.

`--waits` measures a part of what several workers cost over NCCL, which workers that share a GPU
hide: the host waits after each backward, so that the GPU has nothing to do until it goes on.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.elastic.alternate import CONTROL, PLAIN, PREPARED, Plan
from benchmarks.elastic.job import ENVIRONMENT, HERE, RunningJob, machine, scratch
from coddl.runtime.supervisor.environment import ON_ONE_GPU

RESAMPLES = 2000
PAIRS, PAIRS_QUICK = 60, 12
CASE_S = 300.0  # a comparison that takes longer hangs
BY_PYTHON, BY_RUN = "python", "run"

Block = list[float]  # elapsed seconds, seconds of processor time
Rounds = list[dict[str, Block]]


class Kind(NamedTuple):
    """A model, and how many of its steps make a block.

    Loader processes fetch batches while another script runs: a block with them is longer than the
    queue they fill, or it would not show what loading costs.
    """

    model: str
    compiled: bool
    steps: int
    steps_with_loaders: int
    steps_with_peers: int

    @property
    def name(self) -> str:
        return f"{self.model} compiled" if self.compiled else self.model


KINDS = {
    "cuda": (
        Kind("resnet", False, 4, 16, 2),
        Kind("gpt", False, 3, 12, 1),
        Kind("gpt", True, 3, 12, 1),
        Kind("mlp", False, 100, 200, 50),
    ),
    "cpu": (
        Kind("resnet", False, 2, 8, 2),
        Kind("gpt", False, 2, 8, 2),
        Kind("gpt", True, 2, 8, 2),
        Kind("mlp", False, 50, 100, 25),
    ),
}


class Comparison(NamedTuple):
    """One comparison."""

    name: str
    plan: Plan
    under: str
    with_memory: bool


def cases(options: argparse.Namespace) -> list[Comparison]:
    """List the comparisons that are asked for."""
    found = []
    for workers in (1, 2) if options.workers is None else (options.workers,):
        for kind in KINDS[options.device]:
            for loaders in (0,) if workers > 1 else (0, options.loader_workers):
                if workers > 1 and kind.compiled:
                    continue  # what a compiled model adds does not depend on its peers
                against = "DDP" if workers > 1 else "plain"
                unit = "worker" if workers == 1 else "workers"
                name = f"{kind.name}, {loaders} loaders, {workers} {unit} against {against}"
                steps = kind.steps_with_loaders if loaders else kind.steps
                plan = Plan(
                    model=kind.model,
                    compiled=kind.compiled,
                    device=options.device,
                    loader_workers=loaders,
                    workers=workers,
                    rounds=options.pairs,
                    steps=kind.steps_with_peers if workers > 1 else steps,
                    alone="",
                    folder="",
                    backend=options.backend,
                    waits=options.waits,
                )
                memory = options.device == "cuda" and workers == 1 and not loaders
                found.append(
                    Comparison(name, plan, BY_RUN if workers > 1 else options.under, memory)
                )
    return [case for case in found if options.only in case.name]


def run(plan: Plan, under: str) -> Any:
    """Train as planned in a process of its own, or in several under a supervisor."""
    # On a CPU, one thread: the cores are for the loaders and the other worker.
    env = {**(os.environ if plan.on_gpu else ENVIRONMENT)}
    if plan.backend == "nccl":
        env[ON_ONE_GPU] = "1"
    env["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1]), env.get("PYTHONPATH", "")])
    with scratch() as folder:
        arguments = [json.dumps({**asdict(plan), "folder": str(folder)})]
        if under == BY_RUN:
            by_supervisor(arguments, plan.workers, env, folder / "found.json")
        else:
            by_python([str(HERE / "alternate.py"), *arguments], env)
        return json.loads((folder / "found.json").read_text())


def by_python(command: list[str], env: dict[str, str]) -> None:
    """Run a script with plain python; raise with the end of its output if it fails."""
    done = subprocess.run(
        [sys.executable, *command], env=env, capture_output=True, text=True, timeout=CASE_S
    )
    if done.returncode:
        raise SystemExit(f"the script ended with {done.returncode}\n{done.stderr[-2000:]}")


def by_supervisor(arguments: list[str], workers: int, env: dict[str, str], written: Path) -> None:
    """Run the script under a supervisor until it has written its result."""
    deadline_s = time.monotonic() + CASE_S
    with RunningJob("alternate.py", arguments, workers, env) as job:
        while not written.exists():
            job.check()
            if time.monotonic() > deadline_s:
                raise SystemExit(f"the job has written no result in {CASE_S:.0f} s")
            time.sleep(0.1)
        job.finish()


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Give a 95 % bootstrap interval of the median."""
    dice = random.Random(1)
    medians = sorted(
        statistics.median(dice.choices(values, k=len(values))) for _ in range(RESAMPLES)
    )
    tail = RESAMPLES // 40
    return medians[tail], medians[-1 - tail]


def ratios(rounds: Rounds, twin: str, clock: int = 0) -> list[float]:
    """Give a script's time by the plain one's, per round."""
    return [each[twin][clock] / each[PLAIN][clock] for each in rounds]


def summary(rounds: Rounds, steps: int) -> dict[str, Any]:
    """Work out one comparison from the times of its blocks."""
    ours, noise = ratios(rounds, PREPARED), ratios(rounds, CONTROL)
    plain_s = [each[PLAIN][0] for each in rounds]
    added_us = [(each[PREPARED][0] - each[PLAIN][0]) / steps * 1e6 for each in rounds]
    return {
        "ratio": statistics.median(ours),
        "ci95": interval(ours),
        "ratio_total": sum(each[PREPARED][0] for each in rounds) / sum(plain_s),
        "added_us": statistics.median(added_us),
        "added_us_ci95": interval(added_us),
        "plain_step_ms": statistics.median(plain_s) / steps * 1e3,
        "noise": statistics.median(noise),
        "noise_ci95": interval(noise),
        "cpu_ratio": statistics.median(ratios(rounds, PREPARED, clock=1)),
        "pairs": len(rounds),
        "steps_in_block": steps,
    }


def measure(case: Comparison) -> dict[str, Any]:
    """Compare once."""
    result = summary(run(case.plan, case.under), case.plan.steps)
    if case.with_memory:
        alone = {**asdict(case.plan)}
        plain = run(Plan(**{**alone, "alone": PLAIN}), BY_PYTHON)
        ours = run(Plan(**{**alone, "alone": PREPARED}), case.under)
        result |= {"memory_ratio": ours / plain, "plain_peak_mib": plain / 2**20}
    return result


HEAD = (
    f"{'':48} {'ratio':5}  {'95 %':14}  {'added a step':>12}  {'plain step':>10}"
    f"  {'noise':5}  {'95 %':14}  {'CPU':>5}  {'memory':>6}"
)


def row(name: str, result: dict[str, Any]) -> str:
    """Show one comparison to people."""
    if "error" in result:
        return f"{name:48} {result['error']}"
    (low, high), (noise_low, noise_high) = result["ci95"], result["noise_ci95"]
    memory = f"{result['memory_ratio']:6.3f}" if "memory_ratio" in result else f"{'-':>6}"
    return (
        f"{name:48} {result['ratio']:5.3f}  [{low:.3f}, {high:.3f}]"
        f"  {result['added_us']:+9.0f} µs  {result['plain_step_ms']:7.2f} ms"
        f"  {result['noise']:5.3f}  [{noise_low:.3f}, {noise_high:.3f}]"
        f"  {result['cpu_ratio']:5.3f}  {memory}"
    )


def measure_all(
    wanted: Sequence[Comparison], show: Callable[[str, dict[str, Any]], None]
) -> dict[str, dict[str, Any]]:
    """Compare everything; a comparison that fails does not end the others."""
    results = {}
    for case in wanted:
        try:
            results[case.name] = measure(case)
        except (SystemExit, subprocess.TimeoutExpired) as error:
            results[case.name] = {"error": str(error)}
        show(case.name, results[case.name])
    return results


def options_from(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cores = len(os.sched_getaffinity(0))
    add = parser.add_argument
    add("--only", default="", help='comparisons with this in their name: "gpt"')
    add("--pairs", type=int, help=f"of blocks per comparison (default: {PAIRS})")
    add("--quick", action="store_true", help=f"{PAIRS_QUICK} pairs of blocks")
    add("--device", choices=("cpu", "cuda"), help="default: cuda if there is a GPU")
    add("--workers", type=int, choices=(1, 2), help="default: both")
    add("--under", choices=(BY_PYTHON, BY_RUN), default=BY_PYTHON, help="how one worker is started")
    add(
        "--waits",
        action="store_true",
        help="instead of the prepared script: the plain one, waiting for the GPU after backward()",
    )
    add("--backend", choices=("gloo", "nccl"), default="gloo", help="of two workers")
    add(
        "--loader-workers", type=int, default=min(4, cores), help="besides 0 (default: %(default)s)"
    )
    add("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if options.pairs is None:
        options.pairs = PAIRS_QUICK if options.quick else PAIRS
    if options.pairs < 1:
        parser.error("--pairs must be at least 1")
    if options.loader_workers < 1:
        parser.error("--loader-workers must be at least 1")
    if options.waits and options.workers != 1:
        parser.error("--waits needs --workers 1")
    if options.device is None:
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    return options


def main() -> None:
    """Measure and print."""
    options = options_from()

    def show(name: str, result: dict[str, Any]) -> None:
        if not options.json:
            print(row(name, result), flush=True)

    if not options.json:
        print(HEAD)
    results = measure_all(cases(options), show)
    on = machine() | {"device": options.device}
    if options.device == "cuda":
        on["gpu"] = torch.cuda.get_device_name()
    if options.json:
        print(json.dumps({"cases": results, "under": options.under, "machine": on}))
    else:
        print(", ".join(f"{name} {value}" for name, value in on.items()))
    if any("error" in result for result in results.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()

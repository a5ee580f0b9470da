"""How long a resize holds up a training, against a restart by torchrun.

    python benchmarks/resize.py --json

Both train the same model with 25 MB of parameters and optimizer state, one thread per worker, and
go 1→4, 4→2, 2→3 workers. The main worker notes when each iteration was complete. The pause is the
longest gap between two of them from the command to 20 steps after the change, less the median of
the 50 steps before the command. torchrun's job is told to save a checkpoint and end, and is started
again with the other size; its pause is the gap around that, less the same median.

`starting_s`: from the command to the first joiner's start.
`serving_s`: from the command to the first step that all the new workers made. `quiet_s`: what the
same measure of pause gives for the 50 steps before the command, when nothing happened.
`steps_lost`: steps that would have been made between command and change at the pace before, less
those that were made; `lost_s` is their time. `loader_pause_s`: our pauses once more, if each
worker's DataLoader has 4 processes. `ratio`: torchrun's pause by ours, of the resize where
that is least; `torchrun_pause_s` is its shortest.
"""

import argparse
import contextlib
import json
import random
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.elastic.job import ENVIRONMENT, RunningJob, machine, scratch, torchrun
from coddl.reproduce.experiment import Plot
from coddl.reproduce.plot import write_plot

SIZES = (1, 4, 2, 3)
STEPS_BEFORE, STEPS_AFTER = 50, 20
STEPS_WARM = 15  # at each size, before anything is measured
WAIT_S = 120.0
LOADER_PROCESSES = 4

Times = dict[int, float]  # when each step was complete


def read(path: Path) -> Times:
    """Read what the main worker noted; its last line may be half written."""
    if not path.exists():
        return {}
    *whole, _ = path.read_text().split("\n")
    return {int(step): float(at_s) for step, at_s in (line.split() for line in whole)}


def wait_for_steps(path: Path, steps: int, check: Callable[[], None]) -> Times:
    """Wait until this many more steps are complete."""
    deadline_s = time.monotonic() + WAIT_S
    last = max(read(path), default=-1) + steps
    while max(times := read(path), default=-1) < last:
        check()
        if time.monotonic() > deadline_s:
            raise SystemExit(f"no {steps} steps in {WAIT_S:.0f} s")
        time.sleep(0.1)
    return times


def gaps(times: Times, first: int, last: int) -> list[float]:
    """Give the time each of these steps took, from the one before."""
    return [times[step] - times[step - 1] for step in range(first, last + 1)]


def account(times: Times, command_s: float, change: dict[str, Any]) -> dict[str, Any]:
    """Work out one resize from the steps' times; step `change["step"]` is the first new one."""
    before = max(step for step, at_s in times.items() if at_s < command_s)
    first_new = change["step"]
    usual_s = gaps(times, before - STEPS_BEFORE + 1, before)
    median_s = statistics.median(usual_s)
    during_s = gaps(times, before + 1, first_new + STEPS_AFTER - 1)
    lost_s = times[first_new - 1] - command_s - median_s * (first_new - 1 - before)
    return {
        "from": change["from"],
        "to": change["to"],
        "step": first_new,
        "pause_s": max(during_s) - median_s,
        "quiet_s": max(usual_s) - median_s,
        "serving_s": times[first_new] - command_s,
        "steps_lost": max(0.0, lost_s / median_s),
        "lost_s": max(0.0, lost_s),
        "step_s_before": median_s,
        "step_s_after": statistics.median(gaps(times, first_new + 1, first_new + STEPS_AFTER)),
        "state_s": change["state_s"],
        "swap_s": change["swap_s"],
    }


def running(folder: Path, workers: int, processes: int = 0) -> RunningJob:
    """Give the job that is resized, with that many loader processes per worker."""
    return RunningJob("train.py", [str(folder / "times"), str(processes)], workers)


def resize_elastic(
    processes: int = 0, sizes: Sequence[int] = SIZES
) -> tuple[list[dict[str, Any]], Times]:
    """Resize a running job; one account per resize, and when each step was complete."""
    accounts = []
    with scratch() as folder, running(folder, sizes[0], processes) as job:
        path = folder / "times"
        wait_for_steps(path, STEPS_WARM, job.check)
        for size in sizes[1:]:
            wait_for_steps(path, STEPS_BEFORE + 1, job.check)
            command_s = time.monotonic()
            change = job.resize(size)
            wait_for_steps(path, STEPS_AFTER + STEPS_WARM, job.check)
            started_s = [e["heard_s"] for e in job.events("starting") if e["heard_s"] > command_s]
            starting_s = min(started_s) - command_s if started_s else None
            accounts.append(account(read(path), command_s, change) | {"starting_s": starting_s})
        return accounts, read(path)


def storm() -> dict[str, Any]:
    """Ask for 100 sizes in a second, then for the one it had; how long did steps take meanwhile?

    `pause_s`: the longest step of the storm, less the median before; `quiet_s`: the same of as many
    steps before it.
    """
    dice = random.Random(1)
    with scratch() as folder, running(folder, 2) as job:
        path = folder / "times"
        quiet = wait_for_steps(path, STEPS_WARM + 100, job.check)
        start_s, before = time.monotonic(), max(quiet)
        for _ in range(100):
            job.resize(dice.choice([2, 3, 4]), wait=False)
            time.sleep(max(0.0, 0.009 - (time.monotonic() - start_s) % 0.009))
        asked_s = time.monotonic() - start_s
        job.resize(2)
        times = wait_for_steps(path, STEPS_AFTER, job.check)
        joiners = [e for e in job.events("starting") if e["heard_s"] > start_s]
        changes = [e for e in job.events("resized") if e["heard_s"] > start_s]
    usual_s = gaps(times, before - 99, before)
    median_s = statistics.median(usual_s)
    return {
        "targets": 100,
        "asked_s": asked_s,
        "joiners_started": len(joiners),
        "changes_made": len(changes),
        "pause_s": max(gaps(times, before + 1, max(times))) - median_s,
        "quiet_s": max(usual_s) - median_s,
        "step_s_before": median_s,
    }


def resize_by_restart(sizes: Sequence[int] = SIZES) -> tuple[list[float], Times]:
    """End torchrun's job and start it with the other size; one pause per resize, and the steps."""
    pauses_s = []
    with scratch() as folder:
        path = folder / "times"
        for size in sizes:
            began = max(read(path), default=-1) + 1
            with restarted(folder, size) as check:
                times = wait_for_steps(path, STEPS_BEFORE + 1, check)
            if began:
                median_s = statistics.median(gaps(times, began - STEPS_BEFORE, began - 1))
                pauses_s.append(times[began] - times[began - 1] - median_s)
    return pauses_s, times


@contextlib.contextmanager
def restarted(folder: Path, size: int) -> Iterator[Callable[[], None]]:
    """Run torchrun's job, then have it save and end; gives a call that raises if it has ended."""
    command = torchrun("train_restarted.py", [str(folder / "times"), str(folder / "saved")], size)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=ENVIRONMENT, stdout=log, stderr=log)

    def check() -> None:
        if (code := process.poll()) is not None:
            raise SystemExit(f"{(folder / 'log').read_text()}\ntorchrun ended with {code}")

    try:
        yield check
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(WAIT_S)


def picture(path: Path, ours: Times, resized: Sequence[int], theirs: Times) -> None:
    """Draw the steps that both made over time, and mark the first ones at another size."""
    names = [f"{a}→{b}" for a, b in pairwise(SIZES)]
    by_gap = sorted(range(min(theirs) + 1, max(theirs) + 1), key=lambda n: gaps(theirs, n, n))
    restarted = sorted(by_gap[-len(names) :])  # nothing else makes torchrun wait as long
    lines: dict[str, list[tuple[float, float]]] = {}
    marks: dict[str, list[tuple[float, float, str]]] = {}
    for name, times, firsts in (
        ("CoDDL", ours, resized),
        ("torchrun, restarted", theirs, restarted),
    ):
        start_s, first = min(times.values()), min(times)
        points = {step: (at_s - start_s, float(step - first)) for step, at_s in times.items()}
        lines[name] = list(points.values())
        marks[name] = [(*points[step], text) for step, text in zip(firsts, names, strict=True)]
    title = "Steps of a training that goes 1→4→2→3 workers"
    write_plot(path, Plot(title, "seconds", "steps made", lines, marks=marks))


def measure(plot: Path | None) -> dict[str, Any]:
    """Measure both sides."""
    (resizes, ours), (restarts_s, theirs) = resize_elastic(), resize_by_restart()
    if plot is not None:
        picture(plot, ours, [each["step"] for each in resizes], theirs)
    pauses_s = [each["pause_s"] for each in resizes]
    return {
        "pause_s": pauses_s,
        "pause_s_max": max(pauses_s),
        "torchrun_pause_s": min(restarts_s),
        "torchrun_pauses_s": restarts_s,
        "ratio": min(theirs / ours for ours, theirs in zip(pauses_s, restarts_s, strict=True)),
        "serving_s_max": max(each["serving_s"] for each in resizes),
        "steps_lost_max": max(each["steps_lost"] for each in resizes),
        "lost_s_max": max(each["lost_s"] for each in resizes),
        "starting_s_max": max(s for each in resizes if (s := each["starting_s"]) is not None),
        "storm": storm(),
        "loader_pause_s": [each["pause_s"] for each in resize_elastic(LOADER_PROCESSES)[0]],
        "resizes": resizes,
        "machine": machine(),
    }


def table(result: dict[str, Any]) -> str:
    """Show it to people."""
    lines = ["workers  pause ms  quiet ms  serving s  steps lost  step ms  torchrun's pause s"]
    for each, restart_s in zip(result["resizes"], result["torchrun_pauses_s"], strict=True):
        lines.append(
            f"{each['from']} → {each['to']}    {each['pause_s'] * 1e3:8.0f}"
            f"  {each['quiet_s'] * 1e3:8.0f}  {each['serving_s']:9.2f}  {each['steps_lost']:10.1f}"
            f"  {each['step_s_before'] * 1e3:7.0f}  {restart_s:19.1f}"
        )
    lines.append(
        f"longest pause {result['pause_s_max'] * 1e3:.0f} ms; "
        f"torchrun's pauses are at least {result['ratio']:.0f} times as long"
    )
    pauses = ", ".join(f"{pause_s * 1e3:.0f}" for pause_s in result["loader_pause_s"])
    lines.append(f"with {LOADER_PROCESSES} loader processes per worker: pauses of {pauses} ms")
    gale = result["storm"]
    lines.append(
        f"a joiner is started at most {result['starting_s_max'] * 1e3:.0f} ms after the command"
    )
    lines.append(
        f"100 targets in {gale['asked_s']:.1f} s started {gale['joiners_started']} joiners, made "
        f"{gale['changes_made']} changes; longest pause {gale['pause_s'] * 1e3:.0f} ms, "
        f"in quiet {gale['quiet_s'] * 1e3:.0f} ms"
    )
    lines.append(", ".join(f"{name} {value}" for name, value in result["machine"].items()))
    return "\n".join(lines)


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the steps as an SVG")
    options = parser.parse_args()
    result = measure(options.plot)
    print(json.dumps(result) if options.json else table(result))


if __name__ == "__main__":
    main()

"""Whether policies rank the same in a live pool as in the simulator, on a few contended jobs.

    python -m benchmarks.live_policies --json

For each policy a pool of `--slots` CPU slots is started, and the same elastic jobs are submitted to
it, `--every-s` seconds apart: three long ones, then five short ones. A job waits in proportion to
its slice instead of computing. The pool is not told lengths or speeds: it learns a job's length
when the job starts, and its speeds as it runs.

The same jobs run in the simulator with the step times that the script implies; there, the policy
knows lengths and speeds, and a resize costs `--reconfigure`. Ratios are to fifo, which gives each
job the largest size that it asks for, in order of submission. A change is another share for a job
that has started: a resize, a preemption, or the end of one. Errors are those in the server's log.
"""

import argparse
import contextlib
import json
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

import coddl
from benchmarks.elastic.job import HERE, machine, scratch
from coddl.api.client import Client, find
from coddl.api.code import pack
from coddl.core.speed.table import speeds_of
from coddl.traces.trace import Trace, trace_of
from tests.e2e.pool import OVER, environment

SCRIPT: Final = "waiting_job.py"
FIFO: Final = "fifo"
POLICIES: Final = ("ranked-speedup", "afs-p:tie=keep,lease_h=0.25", FIFO)
LENGTHS_S: Final = (70.0, 60.0, 50.0, 12.0, 10.0, 8.0, 6.0, 4.0)  # with 1 slot; the long ones first
MOST: Final = 3  # slots of a job; it is also what fifo takes as its request
BATCH: Final = 12
SAMPLE_S: Final = 0.02
FIXED_S: Final = 0.02
LIMIT_S: Final = 300.0
LOOK_EVERY_S: Final = 0.2


@dataclass(frozen=True)
class Outcome:
    """What a policy made of the jobs."""

    avg_jct_s: float
    makespan_s: float
    changes: int
    errors: int = 0


def step_s(slots: int) -> float:
    """Seconds per step with a number of slots, by the script: the largest slice decides."""
    return -(-BATCH // slots) * SAMPLE_S + FIXED_S


def steps_of(lengths_s: Sequence[float]) -> list[int]:
    """Steps of jobs that take this long with 1 slot."""
    return [round(length_s / step_s(1)) for length_s in lengths_s]


def trace(options: argparse.Namespace) -> Trace:
    """The jobs as the simulator sees them."""
    count = len(options.lengths_s)
    curve = np.array([[np.inf, *(step_s(slots) for slots in range(1, options.slots + 1))]])
    return trace_of(
        "live",
        speeds_of(("waiting",), curve, np.isfinite(curve)),
        submitted_s=np.arange(count) * options.every_s,
        curve=np.zeros(count, np.int64),
        iterations=np.array(steps_of(options.lengths_s), np.float64),
        gpus_requested=np.full(count, MOST),
        gpus_min=np.ones(count, np.int64),
        gpus_max=np.full(count, MOST),
    )


def simulated(options: argparse.Namespace) -> dict[str, Outcome]:
    """Run the jobs in the simulator, by each policy."""
    found = coddl.simulate(
        trace(options),
        options.policies,
        gpus=options.slots,
        cool_down_s=options.cool_down_s,
        reconfigure=options.reconfigure,
    )
    columns = zip(found["avg_jct_s"], found["makespan_s"], found["reallocations"], strict=True)
    return {
        policy: Outcome(float(jct_s), float(makespan_s), int(changes))
        for policy, (jct_s, makespan_s, changes) in zip(options.policies, columns, strict=True)
    }


def run_coddl(*words: str) -> None:
    """Run a command of ours."""
    command = [sys.executable, "-m", "coddl", *words]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"coddl {' '.join(words)}: {done.stdout}{done.stderr}")


def live(options: argparse.Namespace, policy: str, folder: Path) -> Outcome:
    """Run the jobs in a pool of this policy."""
    state = folder / "state"
    words = ["--slots", str(options.slots), "--policy", policy, "--port", "0"]
    words += ["--cool-down", str(options.cool_down_s), "--state-dir", str(state)]
    run_coddl("up", *words)
    try:
        with Client(find("", str(state))) as client:
            views = finished(client, submitted(client, options, folder))
    finally:
        run_coddl("down", "--cancel-jobs", "--state-dir", str(state))
    return outcome_of(views, state)


def submitted(client: Client, options: argparse.Namespace, folder: Path) -> list[int]:
    """Submit the jobs, one after the other; return their numbers."""
    project = folder / "project"
    project.mkdir()
    shutil.copy(HERE / SCRIPT, project)
    archive = pack(project, folder / "project.tar.gz")
    with archive.path.open("rb") as file:
        client.send_code(archive.hash, file)
    begin_s, jobs = time.monotonic(), []
    for number, steps in enumerate(steps_of(options.lengths_s)):
        time.sleep(max(0.0, begin_s + number * options.every_s - time.monotonic()))
        args = ["--steps", steps, "--batch", BATCH, "--sample-s", SAMPLE_S, "--fixed-s", FIXED_S]
        request = {"script": SCRIPT, "args": [str(each) for each in args], "code": archive.hash}
        request |= {"name": f"job-{number}", "gpus": f"1..{MOST}"}
        jobs.append(int(client.submit(request)["id"]))
    return jobs


def finished(client: Client, jobs: Sequence[int]) -> list[dict[str, Any]]:
    """Wait until all jobs have succeeded; return them as they are then."""
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        views = [client.get(f"/jobs/{job}") for job in jobs]
        for view in views:
            if view["state"] in OVER and view["state"] != "SUCCEEDED":
                raise SystemExit(f"{view['name']} is {view['state']}: {view['reason']}")
        if all(view["state"] in OVER for view in views):
            return views
        time.sleep(LOOK_EVERY_S)
    raise SystemExit(f"jobs did not finish within {LIMIT_S:g} s")


def outcome_of(views: Sequence[dict[str, Any]], state: Path) -> Outcome:
    """Sum up jobs that have finished."""
    sizes = sizes_of(state)
    for view in views:
        path = " → ".join(map(str, sizes[view["id"]]))
        say(f"  {view['name']}: JCT {view['jct_s']:.1f} s, slots {path}")
    log = (state / "output" / "server.log").read_text(errors="replace")
    return Outcome(
        sum(view["jct_s"] for view in views) / len(views),
        max(view["ended_s"] for view in views) - min(view["submitted_s"] for view in views),
        sum(len(each) - 1 for each in sizes.values()),
        sum("[error" in line for line in log.splitlines()),
    )


def sizes_of(state: Path) -> dict[int, list[int]]:
    """Read from the journal the sizes that each job has had, one after the other; 0: preempted."""
    query = "SELECT body FROM records WHERE kind = 'Aimed' ORDER BY seq"
    with contextlib.closing(sqlite3.connect(state / "journal.db")) as journal:
        aims = [json.loads(body) for (body,) in journal.execute(query)]
    sizes: dict[int, list[int]] = {}
    for aim in aims:
        had, size = sizes.setdefault(aim["job"], []), len(aim["slots"])
        if not had or had[-1] != size:
            had.append(size)
    return sizes


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the jobs by each policy, in a pool and in the simulator."""
    in_simulator, rows = simulated(options), {}
    for policy in options.policies:
        say(policy)
        with scratch() as folder:
            in_pool = live(options, policy, folder)
        rows[policy] = {"live": vars(in_pool), "simulated": vars(in_simulator[policy])}
    for each in rows.values() if FIFO in rows else ():
        for where, outcome in each.items():
            base_s = rows[FIFO][where]["avg_jct_s"]
            each[where] = {**outcome, "over_fifo": outcome["avg_jct_s"] / base_s}
    orders = {
        where: sorted(rows, key=lambda policy: rows[policy][where]["avg_jct_s"])
        for where in ("live", "simulated")
    }
    return {
        "slots": options.slots,
        "lengths_s": list(options.lengths_s),
        "policies": rows,
        "orders": orders,
        "same_order": orders["live"] == orders["simulated"],
    }


def summary(found: dict[str, Any]) -> list[str]:
    """Say in lines what was found."""
    lines = [f"{'policy':<28} {'':<9} {'avg JCT':>8} {'to fifo':>8} {'makespan':>9} {'changes':>8}"]
    for policy, row in found["policies"].items():
        for where, each in row.items():
            ratio = f"{each['over_fifo']:.2f}" if "over_fifo" in each else "-"
            times = f"{each['avg_jct_s']:>6.1f} s {ratio:>8} {each['makespan_s']:>7.1f} s"
            lines.append(f"{policy:<28} {where:<9} {times} {each['changes']:>8}")
    if found["same_order"]:
        lines.append(
            f"order by average JCT, live and simulated: {', '.join(found['orders']['live'])}"
        )
        return lines
    orders = (f"{where} {', '.join(names)}" for where, names in found["orders"].items())
    return [*lines, f"orders by average JCT differ: {'; '.join(orders)}"]


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the options."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--policies", nargs="+", default=POLICIES)
    options.add_argument("--slots", type=int, default=6)
    options.add_argument(
        "--lengths-s", nargs="+", type=float, default=LENGTHS_S, help="with 1 slot"
    )
    options.add_argument("--every-s", type=float, default=1.0, help="between two submissions")
    options.add_argument("--cool-down-s", type=float, default=2.0)
    options.add_argument("--reconfigure", default="concurrent:1,0.1", help="in the simulator")
    options.add_argument("--json", action="store_true")
    found = options.parse_args(words)
    if found.slots < MOST:
        options.error(f"--slots must be at least {MOST}: the jobs ask for 1..{MOST}")
    return found


def main() -> None:
    """Measure, and print what was found."""
    options = parsed()
    found = measure(options)
    if options.json:
        print(json.dumps({**found, "machine": machine()}, indent=2))
        return
    print("\n".join(summary(found)))


if __name__ == "__main__":
    main()

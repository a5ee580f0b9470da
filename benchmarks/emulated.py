"""Whether the simulator tells what a pool does: the same jobs in an emulated pool and simulated.

    python -m benchmarks.emulated --json

`--jobs` generated jobs arrive within `--hours`. For each policy and time scale an emulated pool is
started: the server, the agents, the journal and the lines between them are real, and trainings
advance by the speeds of the table. `coddl replay` submits the jobs with these speeds, so both sides
know them. The simulator has the pool's cool-down and reservation and the same cost of a resize, and
gives a job its minimum until its first step, as a pool does. It places nothing: speeds are the same
anywhere, so the pools place jobs with `consolidate`, which leaves shares as the policy wants them.

*Latency* is how long a resize takes in the pool, from the decision until the job trains, beyond
what it costs: real time of a real server, which counts `--time-scales` times as much in the pool's
time. It is simulated too, as preparation. Jittered runs delay each arrival by up to twice the mean
latency; the spread of a job is that of its completion time over these runs. If the pool were one
more run of the simulator, a part of (n - 1) / (n + 1) of its jobs would be within the spread of n.
"""

import argparse
import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

import coddl
from benchmarks.elastic.job import machine
from coddl.core.columns import FloatColumn
from coddl.core.pool.decision import POOL_STABILITY
from coddl.core.reconfigure import reconfigure_of
from coddl.core.registry import policy_from
from coddl.engines.pool import supervisor_of
from coddl.traces.clusters import cluster_from
from coddl.traces.files import write_trace
from coddl.traces.generators import poisson
from coddl.traces.trace import Trace
from tests.e2e.pool import environment

POLICIES: Final = ("afs-l", "afs-p", "tiresias-l")
FIFO: Final = "fifo"
JITTERED: Final = 100  # runs
SEED: Final = 1


@dataclass(frozen=True)
class Outcome:
    """Completion times of all jobs, and how often jobs were resized."""

    jct_s: FloatColumn
    changes: int

    @property
    def avg_jct_s(self) -> float:
        return float(self.jct_s.mean())


@dataclass(frozen=True)
class Live(Outcome):
    """What a pool made of the jobs, and what that took."""

    latency_s: float = 0.0  # of a resize, in the pool's time
    late_s: float = 0.0  # submissions after their time, on average
    wall_s: float = 0.0
    server_cpu: float = 0.0  # cores
    agents_cpu: float = 0.0
    load: float = 0.0  # of the machine, by the end


def trace_of(options: argparse.Namespace) -> Trace:
    """The jobs: the last one arrives when the hours are over, and none is too long."""
    gpus = cluster_from(options.cluster).gpus_total
    made = poisson(jobs=options.jobs, gpus=gpus, load=1.0, seed=options.seed)
    part = np.minimum(1.0, options.longest_h * 3600.0 / made.length_s)
    made = replace(made, iterations=np.ceil(made.iterations * part))
    return made.at_load(float(made.submitted_s[-1]) / (options.hours * 3600.0))


def simulated(
    trace: Trace, policy: str, options: argparse.Namespace, latency_s: float = 0.0
) -> Outcome:
    """Run the jobs in the simulator as a pool has them; with a latency, resizes take longer."""
    study = coddl.simulate(
        as_requested(trace) if is_rigid(policy) else trace,
        policy,
        gpus=cluster_from(options.cluster).gpus_total,
        cool_down_s=POOL_STABILITY.cool_down_s,
        reserve_s=POOL_STABILITY.reserve_s,
        reconfigure=with_latency(options.reconfigure, latency_s),
        prerun=True,
    )
    (run,) = study.runs
    return Outcome(run.finish_s - trace.submitted_s, int(study["reallocations"][0]))


def as_requested(trace: Trace) -> Trace:
    """The same jobs, each with the GPUs that it asks for and no others."""
    gpus = trace.gpus_requested
    return replace(trace, gpus_min=gpus, gpus_max=gpus)


def with_latency(reconfigure: str, latency_s: float) -> str:
    """Give a cost of resizes whose preparation takes longer."""
    if not latency_s:
        return reconfigure
    cost = reconfigure_of(reconfigure)
    return f"concurrent:{cost.prepare_s + latency_s:.3f},{cost.pause_s:.3f}"


def spread(
    trace: Trace, policy: str, options: argparse.Namespace, latency_s: float
) -> tuple[FloatColumn, FloatColumn]:
    """Give the least and the most that each job's completion takes when arrivals are jittered."""
    rng, found = np.random.default_rng(0), []
    for _ in range(options.jittered):
        delay_s = rng.uniform(0.0, 2.0 * latency_s, trace.size)
        order = np.argsort(trace.submitted_s + delay_s, kind="stable")
        shaken = replace(
            trace.rows(np.ones(trace.size, np.bool_)),
            **{
                name: getattr(trace, name)[order]
                for name in (
                    *("curve", "iterations", "gpus_requested", "gpus_min", "gpus_max"),
                    *("queue", "user"),
                )
            },
            submitted_s=(trace.submitted_s + delay_s)[order],
        )
        jct_s = np.empty(trace.size)
        jct_s[order] = simulated(shaken, policy, options, latency_s).jct_s
        found.append(jct_s)
    return np.min(found, axis=0), np.max(found, axis=0)


def run_coddl(*words: str) -> str:
    """Run a command of ours; give what it printed."""
    command = [sys.executable, "-m", "coddl", *words]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"coddl {' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout


@contextlib.contextmanager
def pool(options: argparse.Namespace, policy: str, scale: float) -> Iterator[Path]:
    """An emulated pool of this policy; give its state folder."""
    with tempfile.TemporaryDirectory(prefix="coddl-bench-") as folder:
        state = Path(folder) / "state"
        words = ["--emulate", options.cluster, "--time-scale", str(scale), "--policy", policy]
        words += ["--reconfigure", options.reconfigure, "--port", "0", "--state-dir", str(state)]
        words += ["--placement", options.placement]
        run_coddl("up", *words)
        try:
            yield state
        finally:
            run_coddl("down", "--cancel-jobs", "--state-dir", str(state))


def live(trace: Trace, policy: str, options: argparse.Namespace, scale: float) -> Live:
    """Run the jobs in an emulated pool."""
    with pool(options, policy, scale) as state:
        path = state / "jobs.csv"
        write_trace(trace, path)
        began, began_s = cpu_of(state), time.monotonic()
        words = [str(path), "--state-dir", str(state), "-o", "json"]
        # Those that never resize jobs get what a job asks for; in a pool that is its only size.
        words += ["--gpus", "request"] if is_rigid(policy) else []
        found = json.loads(run_coddl("replay", *words))
        wall_s, ended = time.monotonic() - began_s, cpu_of(state)
        latency_s = latency_of(state) - cost_s(options.reconfigure)
    if found["succeeded"] != trace.size:
        raise SystemExit(f"{policy}: {found['succeeded']} of {trace.size} jobs finished")
    jobs = found["jobs"]
    server_cpu, agents_cpu = (
        (after - before) / wall_s for before, after in zip(began, ended, strict=True)
    )
    return Live(
        np.array([job["jct_s"] for job in jobs]),
        sum(job["resizes"] + job["restarts"] for job in jobs),
        latency_s=latency_s,
        late_s=float(np.mean([job["late_s"] for job in jobs])),
        wall_s=wall_s,
        server_cpu=server_cpu,
        agents_cpu=agents_cpu,
        load=os.getloadavg()[0],
    )


def is_rigid(policy: str) -> bool:
    """Tell whether a policy gives jobs what they ask for, or nothing."""
    return bool(getattr(policy_from(policy), "rigid", False))


def cost_s(reconfigure: str) -> float:
    """Seconds from an order until the job trains, at no latency."""
    cost = reconfigure_of(reconfigure)
    return float(cost.prepare_s + cost.pause_s)


def cpu_of(state: Path) -> tuple[float, float]:
    """Seconds of CPU that the server and the agents of a pool have used."""
    supervisor = psutil.Process(supervisor_of(state))
    used = {"server": 0.0, "agent": 0.0}
    for child in supervisor.children():
        words = child.cmdline()
        for name in used:
            if name in words:
                times = child.cpu_times()
                used[name] = times.user + times.system
    return used["server"], used["agent"]


def latency_of(state: Path) -> float:
    """Mean seconds from a decision on a job's GPUs until it trains on them, in the pool's time."""
    query = "SELECT at_s, kind, body FROM records WHERE kind IN ('Decided', 'RunChanged')"
    decided: dict[int, float] = {}
    took_s = []
    with contextlib.closing(sqlite3.connect(state / "journal.db")) as journal:
        for at_s, kind, body in journal.execute(f"{query} ORDER BY seq"):
            about = json.loads(body)
            if kind == "Decided":
                changed = (int(job) for job, target in about["targets"].items() if target["slots"])
                decided |= dict.fromkeys(changed, at_s)
            elif (since_s := decided.pop(about["job"], None)) is not None:
                took_s.append(at_s - since_s)
    return float(np.mean(took_s)) if took_s else 0.0


def compared(
    trace: Trace, policy: str, options: argparse.Namespace, scale: float
) -> dict[str, Any]:
    """Run the jobs by a policy in a pool and in the simulator; tell how they compare."""
    in_pool, at_once = live(trace, policy, options, scale), simulated(trace, policy, options)
    delayed = simulated(trace, policy, options, in_pool.latency_s)
    least_s, most_s = spread(trace, policy, options, in_pool.latency_s)
    margin_s = 2.0 * in_pool.latency_s
    within = (in_pool.jct_s >= least_s - margin_s) & (in_pool.jct_s <= most_s + margin_s)
    off = in_pool.jct_s / delayed.jct_s - 1.0
    return {
        "policy": policy,
        "time_scale": scale,
        "live_avg_jct_s": in_pool.avg_jct_s,
        "simulated_avg_jct_s": at_once.avg_jct_s,
        "ratio": in_pool.avg_jct_s / at_once.avg_jct_s,
        "delayed_avg_jct_s": delayed.avg_jct_s,
        "delayed_ratio": in_pool.avg_jct_s / delayed.avg_jct_s,
        "within_spread": float(within.mean()),
        "job_off_median": float(np.median(np.abs(off))),
        "job_off_p90": float(np.percentile(np.abs(off), 90)),
        "live_changes": in_pool.changes,
        "simulated_changes": at_once.changes,
        "delayed_changes": delayed.changes,
        "latency_s": in_pool.latency_s,
        "latency_ms": in_pool.latency_s / scale * 1e3,
        "late_s": in_pool.late_s,
        "wall_s": in_pool.wall_s,
        "server_cpu": in_pool.server_cpu,
        "agents_cpu": in_pool.agents_cpu,
        "load": in_pool.load,
        "live_jct_s": [round(each, 2) for each in in_pool.jct_s.tolist()],
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Compare all policies at all time scales."""
    trace = trace_of(options)
    fifo, best = (simulated(trace, policy, options) for policy in (FIFO, options.policies[0]))
    rows = []
    for scale in options.time_scales:
        for policy in options.policies:
            rows.append(compared(trace, policy, options, scale))
            print(line_of(rows[-1]), file=sys.stderr, flush=True)
    return {
        "jobs": trace.size,
        "cluster": options.cluster,
        "hours": options.hours,
        "reconfigure": options.reconfigure,
        "contention": fifo.avg_jct_s / best.avg_jct_s,
        "rows": rows,
    }


def line_of(row: dict[str, Any]) -> str:
    """Say what one comparison has found."""
    return (
        f"{row['policy']:<12} {row['time_scale']:>5g}x  live {row['live_avg_jct_s']:7.1f} s, "
        f"simulated {row['simulated_avg_jct_s']:7.1f} s: {row['ratio'] - 1:+.1%}; "
        f"with latency {row['delayed_ratio'] - 1:+.1%}; "
        f"{row['within_spread']:.0%} of jobs within the spread; "
        f"latency {row['latency_ms']:.0f} ms; changes {row['live_changes']} and "
        f"{row['simulated_changes']}; {row['wall_s']:.0f} s, CPU {row['server_cpu']:.2f} and "
        f"{row['agents_cpu']:.2f}, load {row['load']:.1f}"
    )


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the options."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--policies", nargs="+", default=POLICIES)
    options.add_argument("--time-scales", nargs="+", type=float, default=(100.0, 50.0))
    options.add_argument("--jobs", type=int, default=200)
    options.add_argument("--hours", type=float, default=6.0, help="between the first and the last")
    options.add_argument("--longest-h", type=float, default=2.0, help="at the GPUs it asks for")
    options.add_argument("--cluster", default="16x4")
    options.add_argument("--placement", default="consolidate", help="of the pools")
    options.add_argument("--seed", type=int, default=SEED)
    options.add_argument("--reconfigure", default="concurrent:1,0.1", help="what a resize costs")
    options.add_argument("--jittered", type=int, default=JITTERED, help="runs of the simulator")
    options.add_argument("--json", action="store_true")
    return options.parse_args(words)


def main() -> None:
    """Measure, and print what was found."""
    options = parsed()
    found = measure(options)
    if options.json:
        print(json.dumps({**found, "machine": machine()}, indent=2))
        return
    print(f"fifo over {options.policies[0]}, simulated: {found['contention']:.2f}")


if __name__ == "__main__":
    main()

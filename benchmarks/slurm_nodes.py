"""How long nodes of a Slurm cluster take to come and go, beside what Slurm itself takes for a job.

    python -m benchmarks.slurm_nodes --json

A real Slurm on this machine (needs root), with four nodes and GPUs that only Slurm counts; two of
the nodes are held by others. Medians of a few rounds, each of them first with jobs that only
sleep, then with a pool:

    a job       handed in until it runs; a pool without nodes: a job submitted until the pilot job
                runs, until its node has joined, and until the first step
    scancel     until the job has left the queue; of a pilot job: with a training on it, which goes
                on elsewhere
    preemption  a job handed in that preempts another, until it runs
    the end     `scancel` of two jobs until the queue is empty of them; `coddl down` with two nodes
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.elastic.job import machine, scratch
from benchmarks.elastic.noted_job import BATCH, awaited, hand_in, steps_of
from coddl.api.client import Client, find
from tests.engines.slurm_cluster import SlurmCluster, why_not

GPUS = 2  # of each machine
URGENT = "--partition=urgent"  # preempts the default one, and is not preempted


class Queue:
    """The jobs of Slurm, as one who waits for them looks at them."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster = cluster

    def sleep(self, *options: str) -> str:
        """Hand in a job that holds the GPUs of a machine; give its number."""
        words = (f"--gres=gpu:{GPUS}", "--no-requeue", *options)
        return self.cluster.submit(*words, script="sleep 3600")

    def running(self, name: str = "") -> list[str]:
        """Give the jobs that run, all or those whose name begins so."""
        jobs = self.cluster.jobs("%i %T %j")
        return [id_ for id_, state, job in jobs if state == "RUNNING" and job.startswith(name)]

    def await_running(self, *jobs: str) -> float:
        return awaited(lambda: {*jobs} <= {*self.running()})

    def await_gone(self, *jobs: str) -> float:
        return awaited(lambda: not {*jobs} & {id_ for id_, _ in self.cluster.jobs()})

    def cancel(self, *jobs: str) -> float:
        """Cancel jobs; return the seconds until they have left the queue."""
        begin_s = time.monotonic()
        self.cluster.run("scancel", *jobs)
        self.await_gone(*jobs)
        return time.monotonic() - begin_s

    def preempt(self) -> float:
        """Hand in a job that preempts another; return the seconds until it runs."""
        begin_s = time.monotonic()
        urgent = self.sleep(URGENT)
        self.await_running(urgent)
        taken_s = time.monotonic() - begin_s
        self.cancel(urgent)
        return taken_s


def by_slurm_alone(queue: Queue) -> dict[str, float]:
    """Start jobs, cancel one, preempt one and end them, as any user of Slurm does."""
    begin_s = time.monotonic()
    first = queue.sleep()
    queue.await_running(first)
    found = {"slurm_running_s": time.monotonic() - begin_s}
    found["slurm_cancel_s"] = queue.cancel(first)
    jobs = [queue.sleep() for _ in range(2)]
    queue.await_running(*jobs)
    found["slurm_preempt_s"] = queue.preempt()
    left = set(jobs) & set(queue.running())
    jobs = [*left, *(queue.sleep() for _ in range(2 - len(left)))]
    queue.await_running(*jobs)
    found["slurm_end_s"] = queue.cancel(*jobs)
    return found


@contextlib.contextmanager
def pool_on(cluster: SlurmCluster, state: Path) -> Iterator[Client]:
    """Run a pool without nodes of its own."""
    words = ["up", "--host", "127.0.0.1", "--port", "0", "--engine", "slurm", "--nodes", "0..2"]
    words += ["--gpus-per-node", str(GPUS), "--slots", str(GPUS), "--cool-down", "1"]
    coddl(cluster, state, *words)
    try:
        with Client(find("", str(state), env={})) as client:
            yield client
    finally:
        coddl(cluster, state, "down", "--cancel-jobs")


def coddl(cluster: SlurmCluster, state: Path, *words: str) -> None:
    """Run a command of a pool."""
    program = [sys.executable, "-P", "-m", "coddl", *words, "--state-dir", str(state)]
    env = {**os.environ, **cluster.env}
    subprocess.run(program, env=env, check=True, capture_output=True)


def by_pool(queue: Queue, folder: Path) -> dict[str, float]:
    """The same with pilot jobs that a training is on."""
    noted, state = folder / "noted", folder / "state"
    with pool_on(queue.cluster, state) as client:
        begin_s, begin_wall_s = time.monotonic(), time.time()
        job = hand_in(client, noted, {"min": GPUS, "max": 2 * GPUS})
        awaited(lambda: queue.running("coddl-"))
        running_s = time.monotonic()
        awaited(lambda: any(node["is_up"] for node in client.get("/nodes")["items"]))
        joined_s = time.monotonic()
        awaited(lambda: steps_of(noted))
        found = {
            "running_s": running_s - begin_s,
            "joined_s": joined_s - begin_s,
            "first_step_s": steps_of(noted)[0].at_s - begin_wall_s,
        }

        def await_whole() -> None:
            """Wait until it trains with all GPUs, on nodes that Slurm has started."""
            awaited(lambda: len(queue.running("coddl-")) == 2)
            awaited(lambda: client.get(f"/jobs/{job}")["gpus"] == 2 * GPUS)
            awaited(lambda: steps_of(noted)[-1].samples == BATCH // (2 * GPUS))

        await_whole()
        found["cancel_s"] = queue.cancel(queue.running("coddl-")[0])
        await_whole()
        found["preempt_s"] = queue.preempt()
        await_whole()
        pilots = queue.running("coddl-")
        begin_s = time.monotonic()
        coddl(queue.cluster, state, "down")
        queue.await_gone(*pilots)
        found["end_s"] = time.monotonic() - begin_s
    return found


def measure(rounds: int) -> dict[str, Any]:
    """Measure a cluster with two nodes that are free, and two that others hold."""
    found = []
    with scratch() as folder, SlurmCluster(4, GPUS) as cluster:
        queue = Queue(cluster)
        queue.await_running(queue.sleep(URGENT), queue.sleep(URGENT))
        for number in range(rounds):
            own = folder / str(number)
            own.mkdir()
            found.append(by_slurm_alone(queue) | by_pool(queue, own))
    medians = {key: statistics.median(each[key] for each in found) for key in found[0]}
    return {"machine": machine(), "rounds": rounds, **medians}


LINES = (
    ("submit to pilot job running, from zero nodes", "running_s", "sbatch", "slurm_running_s"),
    ("  to node joined", "joined_s", "", ""),
    ("  to first step", "first_step_s", "", ""),
    ("scancel to pilot job gone", "cancel_s", "scancel", "slurm_cancel_s"),
    ("preempting job to running", "preempt_s", "preemption", "slurm_preempt_s"),
    ("coddl down to two nodes gone", "end_s", "scancel of two", "slurm_end_s"),
)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if because := why_not():
        print(because, file=sys.stderr)
        return
    found = measure(options.rounds)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for ours, key, theirs, slurm_key in LINES:
        beside = f"   Slurm: {theirs} {found[slurm_key]:.2f} s" if theirs else ""
        print(f"{ours:45} {found[key]:6.2f} s{beside}")


if __name__ == "__main__":
    main()

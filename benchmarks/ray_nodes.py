"""How long nodes of a Ray cluster take to come and go, beside what Ray itself takes for its part.

    python -m benchmarks.ray_nodes --json

A Ray cluster of four machines on this one, with GPUs that only Ray counts, and health checks as
docs/ray.md recommends them. Medians of a few rounds; each machine can be killed only once.

    Ray alone   a placement group until it is ready; an actor in it until it answers; both removed
                until a waiting task has the GPUs; a raylet killed until Ray calls its node dead
    a node      asked for until it has joined the pool; released until a waiting task has its GPUs
    a job       submitted to a pool without nodes until its first step; a raylet killed until the
                first step without it, and until the first one with as many GPUs as before, where
                the node was the job's lead, and where it was not
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.elastic.job import machine, scratch
from benchmarks.elastic.noted_job import BATCH, WAIT_S, awaited, hand_in, steps_of
from coddl.api.client import Client, find
from coddl.engines.engine import AgentLaunch
from coddl.engines.ray import RayEngine
from tests.engines.ray_cluster import RayCluster, RayMachine

GPUS = 2  # of each machine


def gpu_task(gpus: int) -> Any:  # Any: Ray's reference
    """Have Ray run something with GPUs, when there are some."""
    import ray

    return ray.remote(lambda: None).options(num_gpus=gpus, num_cpus=0).remote()


def by_ray_alone() -> dict[str, float]:
    """Reserve a machine's GPUs and start an actor there, as any user of Ray does."""
    import ray
    from ray.util import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    class Actor:
        def answer(self) -> None:
            pass

    begin_s = time.monotonic()
    group = placement_group([{"GPU": GPUS}], "STRICT_PACK")
    ray.get(group.ready())
    ready_s = time.monotonic()
    where = PlacementGroupSchedulingStrategy(group, 0)
    actor: Any = ray.remote(Actor).options(num_gpus=GPUS, num_cpus=0, scheduling_strategy=where)
    actor = actor.remote()  # Any: what Ray makes of a class has no types
    ray.get(actor.answer.remote())
    started_s = time.monotonic()
    task = gpu_task(GPUS)
    remove_placement_group(group)
    ray.get(task, timeout=WAIT_S)
    free_s = time.monotonic()
    return {
        "ray_group_s": ready_s - begin_s,
        "ray_actor_s": started_s - ready_s,
        "ray_free_s": free_s - started_s,
    }


def by_engine(engine: RayEngine, client: Client) -> dict[str, float]:
    """Acquire a node and release it when it has joined."""
    import ray

    begin_s = time.monotonic()
    name = engine.acquire()

    def has_joined() -> bool:
        nodes = client.get("/nodes")["items"]
        return any(node["name"] == name and node["is_up"] for node in nodes)

    awaited(has_joined)
    joined_s = time.monotonic()
    awaited(lambda: any(node.name == name and node.state == "up" for node in engine.look().nodes))
    task = gpu_task(GPUS)
    released_s = time.monotonic()
    engine.release(name, WAIT_S)
    ray.get(task, timeout=WAIT_S)
    free_s = time.monotonic()
    awaited(lambda: not engine.look().nodes)
    return {"joined_s": joined_s - begin_s, "free_s": free_s - released_s}


def nodes_come_and_go(address: str, folder: Path, rounds: int) -> dict[str, float]:
    """Measure nodes without jobs, in a cluster with one machine: what is freed is what was held."""
    state = folder / "server"
    words = ["server", "--port", "0", "--state-dir", str(state)]
    server = subprocess.Popen(
        [sys.executable, "-P", "-m", "coddl", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        awaited((state / "server.json").exists)
        with Client(find("", str(state), env={})) as client:
            awaited(client.is_ready)
            launch = AgentLaunch(
                pool=client.get("/pool")["id"],
                server=client.address.url,
                token=client.address.token,
                slots=GPUS,
                jobs_dir=str(folder / "jobs"),
            )
            engine = RayEngine(launch, gpus_per_node=GPUS, address=address)
            try:
                by_ray_alone()  # does not count: Ray starts its first workers
                found = [by_ray_alone() | by_engine(engine, client) for _ in range(rounds)]
            finally:
                engine.close()
    finally:
        server.terminate()
        server.wait(WAIT_S)
    return {key: statistics.median(each[key] for each in found) for key in found[0]}


@contextlib.contextmanager
def pool_on(address: str, folder: Path) -> Iterator[Client]:
    """Run a pool without nodes of its own."""
    state = str(folder / "pool")
    program = [sys.executable, "-P", "-m", "coddl"]
    words = ["up", "--host", "127.0.0.1", "--port", "0", "--state-dir", state]
    words += ["--engine", "ray", "--address", address]
    words += ["--nodes", "0..2", "--gpus-per-node", str(GPUS), "--slots", str(GPUS)]
    subprocess.run([*program, *words, "--cool-down", "1"], check=True, capture_output=True)
    try:
        with Client(find("", state, env={})) as client:
            yield client
    finally:
        words = ["down", "--cancel-jobs", "--state-dir", state]
        subprocess.run([*program, *words], check=True, capture_output=True)


def machine_of(client: Client, node: str) -> str:
    """Tell which machine of Ray a node is on."""
    import ray

    pool = client.get("/pool")["id"]
    actor: Any = ray.get_actor(f"coddl-{pool}-{node}", f"coddl-{pool}")  # Any: untyped methods
    report: Any = ray.get([actor.report.remote()])[0]
    return str(report.ray_node)


def job_goes_on(cluster: RayCluster, folder: Path) -> dict[str, float]:
    """Measure a job's first step from zero nodes, and its steps after the deaths of machines."""
    import ray

    noted = folder / "noted"
    found: dict[str, float] = {}
    with pool_on(cluster.address, folder) as client:
        # What a dead node held counts as the job's until its lease is over; so it may have more.
        job = hand_in(client, noted, {"min": GPUS, "max": 3 * GPUS})
        answered_s = time.time()
        awaited(lambda: steps_of(noted))
        found["first_step_s"] = steps_of(noted)[0].at_s - answered_s
        ray.init(cluster.address, log_to_driver=False, configure_logging=False)
        try:
            for which in ("other", "lead"):
                found |= _death(client, cluster, job, (which, noted))
        finally:
            ray.shutdown()
    return found


def _death(
    client: Client, cluster: RayCluster, job: int, about: tuple[str, Path]
) -> dict[str, float]:
    """Kill the machine of a job's lead, or of its other node."""
    import ray

    which, noted = about

    def view() -> Any:  # Any: JSON
        return client.get(f"/jobs/{job}")

    def is_whole() -> bool:
        return steps_of(noted)[-1].samples == BATCH // (2 * GPUS)

    awaited(is_whole)
    lead = view()["lead"]
    node = next(each for each in view()["nodes"] if (each == lead) == (which == "lead"))
    id_ = machine_of(client, node)
    victim: RayMachine = next(each for each in cluster.machines if each.id == id_)
    killed_s = time.time()
    cluster.kill(victim)
    dead_s = awaited(
        lambda: not next(each["Alive"] for each in ray.nodes() if each["NodeID"] == id_)
    )
    awaited(is_whole)
    after = [step for step in steps_of(noted) if step.at_s > killed_s]
    # A job whose lead is gone is started again; others go on with the workers that are left.
    attempt = after[0].attempt + (which == "lead")
    small = next(
        at
        for at, step in enumerate(after)
        if step.attempt == attempt and step.samples > BATCH // (2 * GPUS)
    )
    whole = next(step for step in after[small:] if step.samples == BATCH // (2 * GPUS))
    return {
        f"ray_dead_s_{which}": dead_s,
        f"goes_on_s_{which}": after[small].at_s - killed_s,
        f"whole_s_{which}": whole.at_s - killed_s,
    }


def measure(rounds: int) -> dict[str, Any]:
    """Measure nodes, then a job."""
    with scratch() as folder:
        one = RayCluster([GPUS])
        try:
            nodes = nodes_come_and_go(one.address, folder, rounds)
        finally:
            one.close()
        cluster = RayCluster([GPUS] * 4)
        try:
            job = job_goes_on(cluster, folder)
        finally:
            cluster.close()
    nodes["ray_start_s"] = nodes["ray_group_s"] + nodes["ray_actor_s"]
    return {"machine": machine(), "rounds": rounds, **nodes, **job}


LINES = (
    ("request to joined", "joined_s", "group ready and actor started", "ray_start_s"),
    ("release to free for others", "free_s", "group removed", "ray_free_s"),
    ("submit to first step, from zero nodes", "first_step_s", "", ""),
    ("raylet killed to next step", "goes_on_s_other", "node declared dead", "ray_dead_s_other"),
    ("  to all GPUs again, on another node", "whole_s_other", "", ""),
    ("the same, of the lead's node", "goes_on_s_lead", "node declared dead", "ray_dead_s_lead"),
    ("  to all GPUs again, on another node", "whole_s_lead", "", ""),
)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    found = measure(options.rounds)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for ours, key, theirs, ray_key in LINES:
        beside = f"   Ray: {theirs} {found[ray_key]:.2f} s" if theirs else ""
        print(f"{ours:38} {found[key]:6.2f} s{beside}")


if __name__ == "__main__":
    main()

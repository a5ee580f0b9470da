"""What can befall a Ray cluster of four machines, one row each: a strict training goes through it
and ends with a lone run's bits. `make test-engines` runs it.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("ray", reason="needs Ray: pip install 'coddl[ray]'")

import ray

from tests.e2e.pool import PATIENCE_S, SCRIPTS, environment
from tests.e2e.scaled_pool import GPUS, ScaledPool, check_end, lone, submit, wait_empty
from tests.engines.ray_cluster import QUICK_HEALTH_CHECK, RayCluster, free_port

pytestmark = pytest.mark.matrix

MACHINES: Final = 4
LOST_S: Final = 10  # after which Ray gives up a cluster whose head is gone; its default is 60
Start = Callable[..., RayCluster]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start clusters that end with the test."""
    clusters: list[RayCluster] = []

    def start(machines: int = MACHINES, **options: Any) -> RayCluster:  # Any: those of RayCluster
        clusters.append(RayCluster([GPUS] * machines, **options))
        return clusters[-1]

    yield start
    for cluster in clusters:
        cluster.close()


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[ScaledPool]:
    pool = ScaledPool(tmp_path)
    try:
        yield pool
    finally:
        pool.coddl("down", "--cancel-jobs")


def up(pool: ScaledPool, cluster: RayCluster, nodes: str = "0..2") -> None:
    pool.coddl(
        *("up", "--host", "127.0.0.1", "--port", 0, "--engine", "ray"),
        *("--address", cluster.address, "--nodes", nodes),
        *("--gpus-per-node", GPUS, "--slots", GPUS, "--idle", "3s", "--cool-down", 1),
    )


ASK_ACTORS: Final = """
import json, sys, ray
from ray.util import list_named_actors
ray.init(log_to_driver=False, configure_logging=False)
found = {}
for each in list_named_actors(all_namespaces=True):
    node = each["name"].split("-", 2)[2]
    if node in sys.argv[1:]:
        report = ray.get(ray.get_actor(each["name"], each["namespace"]).report.remote())
        found[node] = report.ray_node, [int(gpu) for gpu in report.gpu_ids]
print(json.dumps({"nodes": found, "free": ray.available_resources().get("GPU", 0)}))
"""


def asked(cluster: RayCluster, *nodes: str) -> dict[str, Any]:  # Any: JSON
    """Have Ray tell where nodes of a pool are and which GPUs they hold, and what is free."""
    done = subprocess.run(
        [sys.executable, "-c", ASK_ACTORS, *nodes],
        env=environment(RAY_ADDRESS=cluster.address),
        stdout=subprocess.PIPE,
        check=True,
        timeout=PATIENCE_S,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def machines_of(pool: ScaledPool, cluster: RayCluster) -> dict[str, str]:
    """Tell on which machine of Ray each node of the pool is."""
    nodes = asked(cluster, *pool.nodes())["nodes"]
    return {name: machine for name, (machine, _) in nodes.items()}


@pytest.mark.parametrize("which", ["lead", "other"])
def test_a_raylet_is_killed(pool: ScaledPool, start: Start, which: str) -> None:
    cluster = start()
    up(pool, cluster)
    result = submit(pool)
    machines, lead = machines_of(pool, cluster), pool.job("bert")["lead"]
    node = next(each for each in machines if (each == lead) == (which == "lead"))
    cluster.kill(next(each for each in cluster.machines if each.id == machines[node]))
    pool.wait("another node", lambda: set(pool.nodes()) - set(machines))
    # What a node held that did not say goodbye stays the job's until its lease is over.
    pool.wait("work there", lambda: len(set(pool.job("bert")["nodes"]) - {node}) == 2)
    pool.wait_steps("bert")
    check_end(pool, result)


def test_a_machine_is_added(pool: ScaledPool, start: Start) -> None:
    cluster = start(2)
    up(pool, cluster, "0..3")
    result = submit(pool)
    assert "has 2 GPUs free" in pool.coddl("nodes").stdout, "it waits for one more"
    machine = cluster.add(GPUS)
    pool.wait_size("bert", 3 * GPUS)
    pool.wait_steps("bert")
    assert machine.id in machines_of(pool, cluster).values()
    check_end(pool, result)
    wait_empty(pool)


def test_a_machine_is_drained_with_a_deadline(pool: ScaledPool, start: Start) -> None:
    cluster = start()
    up(pool, cluster)
    result = submit(pool)
    node, machine = next(iter(machines_of(pool, cluster).items()))
    cluster.drain(machine, 60)
    deadline_s = time.time() + 60
    pool.wait("the node to be gone", lambda: node not in pool.nodes())
    assert time.time() < deadline_s, "its jobs have moved, so it was given back before that"
    pool.wait_size("bert", 2 * GPUS)
    pool.wait_steps("bert")
    assert machine not in machines_of(pool, cluster).values()
    check_end(pool, result)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    """Run a Redis; give its address."""
    if (program := shutil.which("redis-server")) is None:
        pytest.skip("there is no redis-server: apt-get install redis-server")
    port = free_port()
    words = (program, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", tmp_path)
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as server:
        yield f"127.0.0.1:{port}"
        server.terminate()


def test_the_head_is_killed_with_redis_behind_it(
    pool: ScaledPool, start: Start, redis: str
) -> None:
    cluster = start(env={"RAY_REDIS_ADDRESS": redis})
    up(pool, cluster)
    result = submit(pool)
    before = pool.nodes()
    cluster.kill_head()
    pool.wait("the pool to notice", lambda: "does not answer" in pool.coddl("nodes").stdout)
    pool.wait_steps("bert")
    cluster.start_head()
    pool.wait("Ray to be back", lambda: "does not answer" not in pool.coddl("nodes").stdout)
    pool.wait_steps("bert")
    assert pool.nodes() == before, "nothing was lost with it"
    pool.coddl("resize", "bert", f"1..{GPUS}")
    pool.wait("a node to be given back", lambda: len(pool.nodes()) == 1)
    pool.coddl("resize", "bert", f"1..{2 * GPUS}")
    pool.wait_size("bert", 2 * GPUS)
    pool.wait_steps("bert")
    check_end(pool, result)
    wait_empty(pool)


def test_the_head_is_killed_for_good(pool: ScaledPool, start: Start) -> None:
    config = {**QUICK_HEALTH_CHECK, "gcs_rpc_server_reconnect_timeout_s": LOST_S}
    lost = start(config=config)
    up(pool, lost)
    result = submit(pool)
    pool.coddl("submit", "--name", "later", "--gpus", 1, "--", "true")
    lost.kill_head()
    pool.wait("the pool to notice", lambda: "does not answer" in pool.coddl("nodes").stdout)
    pool.wait("Ray to take its machines down", lambda: pool.job("bert")["gpus"] == 0)
    assert "does not answer" in pool.coddl("nodes").stdout
    made = len(pool.made())
    pool.coddl("down")
    up(pool, start())
    pool.wait_size("bert", 2 * GPUS)
    pool.wait_steps("bert")
    diary = pool.made()
    assert diary[made] >= diary[made - 1], "it goes on from its newest state"
    check_end(pool, result)
    pool.coddl("wait", "later")
    wait_empty(pool)


def test_a_pool_scales_to_zero_and_back(pool: ScaledPool, start: Start) -> None:
    cluster = start()
    up(pool, cluster)
    result = submit(pool)
    pool.coddl("suspend", "bert")
    wait_empty(pool)
    pool.wait("all GPUs to be free", lambda: asked(cluster)["free"] == GPUS * MACHINES)
    pool.coddl("resume", "bert")
    pool.wait_size("bert", 2 * GPUS)
    pool.wait_steps("bert")
    check_end(pool, result)
    wait_empty(pool)


@ray.remote(num_cpus=0, num_gpus=GPUS)
class OtherUser:
    """Holds the GPUs of a machine as another user of the cluster does."""

    def gpus(self) -> tuple[str, list[int]]:
        return ray.get_runtime_context().get_node_id(), [int(gpu) for gpu in ray.get_gpu_ids()]


def gpus_of(pool: ScaledPool, cluster: RayCluster) -> set[tuple[str, int]]:
    """Name the GPUs that Ray has granted to a pool, by machine."""
    nodes = asked(cluster, *pool.nodes())["nodes"]
    return {(machine, gpu) for machine, gpus in nodes.values() for gpu in gpus}


def test_another_user_of_ray_never_shares_a_gpu(pool: ScaledPool, start: Start) -> None:
    cluster = start()
    up(pool, cluster, f"0..{MACHINES}")
    ray.init(cluster.address, log_to_driver=False)
    try:
        user: Any = OtherUser  # Any: what the decorator makes of it has no types
        first = user.remote()
        machine, gpus = ray.get(first.gpus.remote(), timeout=PATIENCE_S)
        theirs = {(machine, gpu) for gpu in gpus}
        result = submit(pool, GPUS * (MACHINES - 1))
        assert len(gpus_of(pool, cluster) | theirs) == GPUS * MACHINES
        second = user.remote()
        answer = second.gpus.remote()
        pool.wait_steps("bert")
        assert not ray.wait([answer], timeout=0)[0], "there is no GPU for it"
        pool.coddl("resize", "bert", f"1..{GPUS}")
        machine, gpus = ray.get(answer, timeout=PATIENCE_S)
        theirs |= {(machine, gpu) for gpu in gpus}
        assert len(theirs) == 2 * GPUS
        assert not gpus_of(pool, cluster) & theirs
    finally:
        ray.shutdown()
    check_end(pool, result)


def test_a_job_is_submitted_by_a_job_of_ray(pool: ScaledPool, start: Start) -> None:
    pytest.importorskip("aiohttp_cors", reason="needs Ray's job server: pip install 'ray[default]'")
    cluster = start(has_dashboard=True)
    up(pool, cluster)
    found = {
        "CODDL_SERVER": json.loads((pool.state / "server.json").read_text())["url"],
        "CODDL_TOKEN": (pool.state / "token").read_text().strip(),
    }
    result = pool.folder / "bert.hash"
    of_ray = ("job", "submit", "--address", f"http://{cluster.dashboard}", "--working-dir", SCRIPTS)
    runtime = ("--runtime-env-json", json.dumps({"env_vars": found}))
    ours = (sys.executable, "-m", "coddl", "submit", "--wait", *pool.training(result))
    pool.pace.write_text("0.0")
    done = subprocess.run(
        [sys.executable, "-m", "ray.scripts.scripts", *map(str, (*of_ray, *runtime, "--", *ours))],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "submitted bert (job 1)" in done.stdout
    assert result.read_text() == lone(pool.folder)

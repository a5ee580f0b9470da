"""A pool inside a real Ray cluster: several raylets on this machine, with GPUs that only Ray
believes in; a training that ends with a lone run's bits through all of it.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.scaled_pool import STEPS, ScaledPool, lone
from tests.engines.ray_cluster import RayCluster

pytest.importorskip("ray", reason="Ray is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.matrix]

GPUS = 2  # of each machine


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    cluster = RayCluster([GPUS, GPUS])
    yield cluster
    cluster.close()


@pytest.fixture
def pool(tmp_path: Path, cluster: RayCluster) -> Iterator[ScaledPool]:
    pool = ScaledPool(tmp_path)
    pool.coddl(
        *("up", "--host", "127.0.0.1", "--port", 0, "--engine", "ray"),
        *("--address", cluster.address),
        *("--nodes", "0..2", "--gpus-per-node", GPUS, "--slots", GPUS),
        *("--idle", "3s", "--cool-down", 1),
    )
    try:
        yield pool
    finally:
        pool.coddl("down", "--cancel-jobs")


def test_a_job_spans_nodes_of_ray_through_the_loss_of_one_and_the_drain_of_another(
    pool: ScaledPool, cluster: RayCluster, tmp_path: Path
) -> None:
    assert "engine ray: 0..2 nodes of 2; 0 nodes wanted" in pool.coddl("nodes").stdout
    result = tmp_path / "bert.hash"
    pool.submit(result, 0.2)  # longer than all that follows
    pool.wait_size("bert", 2 * GPUS)
    before = pool.nodes()
    assert len(before) == 2
    cluster.add(GPUS)
    cluster.kill(cluster.machines[0])
    pool.wait("another node", lambda: set(pool.nodes()) - set(before))
    pool.wait_size("bert", 2 * GPUS)
    pool.wait_steps("bert")
    drained = pool.nodes()[0]
    pool.coddl("drain", drained, "--within", "30s")
    pool.wait("the drained node to be given back", lambda: drained not in pool.nodes())
    pool.wait_size("bert", 2 * GPUS)
    pool.wait_steps("bert")
    pool.pace.write_text("0.0")
    pool.coddl("wait", "bert")
    assert result.read_text() == lone(tmp_path)
    made = pool.made()
    assert sorted(set(made)) == list(range(STEPS))
    pool.wait("nodes to be given back", lambda: "0 nodes wanted" in pool.coddl("nodes").stdout)

"""A pool inside a real Slurm cluster: several slurmd on this machine, with GPUs that only Slurm
believes in; a training that ends with a lone run's bits through all of it.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.scaled_pool import GPUS, ScaledPool, check_end, submit
from tests.engines.slurm_cluster import SlurmCluster, why_not

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    if because := why_not():
        pytest.skip(because)
    with SlurmCluster(nodes=3, gpus=GPUS) as cluster:
        yield cluster


@pytest.fixture
def pool(tmp_path: Path, cluster: SlurmCluster) -> Iterator[ScaledPool]:
    pool = ScaledPool(tmp_path, cluster.env)
    pool.coddl(
        *("up", "--engine", "slurm", "--partition", "gpu", "--time", "30"),
        *("--nodes", "0..2", "--gpus-per-node", GPUS, "--slots", GPUS),
        *("--host", "127.0.0.1", "--port", 0, "--idle", "3s", "--cool-down", 1),
    )
    try:
        yield pool
    finally:
        pool.coddl("down", "--cancel-jobs")


def test_a_job_goes_on_when_slurm_takes_one_node_after_the_other(
    pool: ScaledPool, cluster: SlurmCluster
) -> None:
    assert "engine slurm: 0..2 nodes of 2; 0 nodes wanted" in pool.coddl("nodes").stdout
    assert not cluster.jobs(), "what is not needed is not asked for"
    result = submit(pool)
    lead = pool.job("bert")["lead"]
    cluster.run("scancel", lead.removeprefix("slurm-"))
    pool.wait("another node in its place", lambda: lead not in pool.nodes())
    pool.wait_size("bert", 2 * GPUS)
    pool.wait_steps("bert")
    # With the third machine in use there is no other way than to preempt.
    urgent = ("--partition=urgent", f"--gres=gpu:{GPUS}", "--time=5")
    jobs = [cluster.submit(*urgent, script="sleep 600") for _ in range(2)]
    pool.wait("urgent jobs", lambda: {cluster.state_of(job) for job in jobs} == {"RUNNING"})
    pool.wait_steps("bert")
    waits = "waits in the queue (Resources"
    pool.wait("other nodes to be asked for", lambda: waits in pool.coddl("nodes").stdout)
    cluster.run("scancel", *jobs)
    pool.wait_size("bert", 2 * GPUS)
    check_end(pool, result, is_planned=True)
    pool.wait("all nodes to be given back", lambda: not cluster.jobs())


@pytest.mark.matrix
def test_a_pool_that_stops_leaves_nothing_in_the_queue(
    pool: ScaledPool, cluster: SlurmCluster
) -> None:
    result = submit(pool)
    pool.coddl("down")
    assert not cluster.jobs()
    pool.coddl(
        *("up", "--engine", "slurm", "--server-in-job", "--time", "30", "--host", "127.0.0.1"),
        *("--nodes", "0..2", "--gpus-per-node", GPUS, "--slots", GPUS, "--idle", "3s"),
    )
    pool.wait_steps("bert")
    check_end(pool, result)
    pool.coddl("down")
    assert not cluster.jobs()

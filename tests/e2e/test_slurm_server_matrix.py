"""What can befall the server of a pool in a Slurm cluster, one row each: a strict training goes
through it and ends with a lone run's bits. `make test-engines` runs it.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from coddl.agent.orphans import Process, below, process
from coddl.engines.pool import supervisor_of
from tests.e2e.scaled_pool import GPUS, check_end, check_whole, submit, wait_empty
from tests.e2e.slurm_pool import SlurmPool, is_there, slurm_pool
from tests.engines.slurm_cluster import why_not

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "Slurm is here"),
]

LEASE_S: Final = 120.0  # of a pool's server
SERVER_MIN: Final = 7  # the limit of a server's job: its notice comes 5 minutes before that
HAND_OVER_S: Final = 300.0  # until then, and for Slurm to start another job


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[SlurmPool]:
    with slurm_pool(tmp_path) as pool:
        yield pool


def server_jobs(pool: SlurmPool) -> list[str]:
    """Give the jobs that run the pool's server, or will."""
    return [job for job, name in pool.cluster.jobs("%i %j") if name.startswith("coddl-server-")]


def server_side(pool: SlurmPool) -> list[Process]:
    """Give the processes of a pool but for its nodes: what supervises, server and connector."""
    supervisor = supervisor_of(pool.state)
    assert supervisor is not None
    found = [process(supervisor), *below(supervisor)[supervisor]]
    return [each for each in found if each is not None]


def test_the_machine_of_the_server_dies(pool: SlurmPool) -> None:
    pool.up()
    result = submit(pool)
    dead = server_side(pool)
    assert len(dead) == 3
    os.kill(dead[0].pid, signal.SIGSTOP)  # it would start the others again
    for each in reversed(dead):  # before the kernel tells them that it has ended
        os.kill(each.pid, signal.SIGKILL)
    pool.wait("their end", lambda: not any(is_there(each) for each in dead))
    before = set(pool.pilots())
    assert before, "its nodes do not know yet"
    pool.wait("its nodes to end with their lease", lambda: not pool.pilots(), 2 * LEASE_S)
    assert {pool.states()[node] for node in before} == {"COMPLETED"}, "by themselves, and well"
    made = len(pool.made())
    pool.up()
    # Slurm vouches for the end of the old ones, so that no lease of theirs is waited for.
    pool.wait("other nodes", lambda: before.isdisjoint(pool.job("bert")["nodes"] or before))
    pool.wait("steps there", lambda: len(pool.made()) > made + 3)
    assert pool.made()[made] > 0, "it goes on from its newest state"
    check_end(pool, result)
    wait_empty(pool)


def test_the_server_is_a_job(pool: SlurmPool) -> None:
    pool.up("--server-in-job")
    (job,) = server_jobs(pool)
    result = submit(pool)
    pool.coddl("down")
    assert not pool.cluster.jobs()
    assert pool.cluster.state_of(job) == "COMPLETED"
    pool.up("--server-in-job")
    pool.wait_size("bert", 2 * GPUS)
    pool.wait_steps("bert")
    check_end(pool, result, is_planned=True)
    wait_empty(pool)
    pool.coddl("down")
    assert not pool.cluster.jobs()


def test_the_job_of_the_server_is_followed_by_another_before_its_limit(pool: SlurmPool) -> None:
    pool.up("--server-in-job", f"--server-sbatch-arg=--time={SERVER_MIN}")
    (first,) = server_jobs(pool)
    result = submit(pool, pace_s=0.4)
    announced = pool.state / "server.json"
    before = json.loads(announced.read_text())["pid"]

    def has_followed() -> bool:
        return first not in server_jobs(pool) and "RUNNING" in map(
            pool.cluster.state_of, server_jobs(pool)
        )

    pool.wait("the next job of the server", has_followed, HAND_OVER_S)
    assert pool.cluster.state_of(first) == "COMPLETED", "not by its limit"
    made = len(pool.made())
    pool.wait("steps under it", lambda: len(pool.made()) > made + 3)
    assert json.loads(announced.read_text())["pid"] != before
    pool.pace.write_text("0.0")
    # There may be no server for a moment: the next one has the same limit.
    pool.wait("the end of the training", result.exists, HAND_OVER_S)
    check_whole(pool, result, is_planned=True)

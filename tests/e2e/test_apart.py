"""Nodes that share no file system: a job's code reaches each, its state goes from one to another
through an object store.
"""

from pathlib import Path

import pytest

from coddl.core.pool import records as r
from tests.agent.pool import wait_until
from tests.e2e.apart_pool import ApartPool
from tests.e2e.conftest import Alone
from tests.e2e.pool import NODES
from tests.e2e.training import Training

pytestmark = pytest.mark.slow

STEPS = 400
SLOW_S = 0.05  # per pass


def test_a_job_moves_between_nodes_that_share_no_files(tmp_path: Path, alone: Alone) -> None:
    with ApartPool(tmp_path) as pool:
        training = Training(pool, "bert", steps=STEPS, pace_s=SLOW_S, args="--strict", gpus="2..6")
        pool.wait_size(training.job, 6)
        for node in NODES:  # its code has come to each
            assert (pool.disk(node) / "jobs" / "1" / "folder" / "train.py").exists()
        training.go_on()

        pool.cli("suspend", "bert")  # to go on where nothing of it has ever been saved
        assert any("step-" in each for each in pool.objects())
        saved = [node for node in NODES if list(pool.disk(node).glob("jobs/1/checkpoints/step-*"))]
        assert not saved, "its state is in the bucket alone"
        for node in NODES[:2]:
            pool.cli("drain", node)
        pool.cli("resume", "bert")
        pool.wait_size(training.job, 2)
        assert training.view["nodes"] == [NODES[2]]
        training.go_on()
        assert len(set(training.diary())) == len(training.diary()), "no step was made twice"

        for node in NODES[:2]:
            pool.cli("drain", node, "--undo")
        # How many workers it is given now follows from the speeds that were measured.
        wait_until(lambda: len(training.view["nodes"]) > 1, "workers on other nodes")
        training.go_on()
        pool.kill(lead := training.lead)  # survivors go on; another node leads
        training.go_on(10)
        pool.start_agent(lead)
        training.finish()
        assert training.hash == alone(STEPS)
        assert sorted(set(training.diary())) == list(range(STEPS))
        assert not pool.told(r.RunUnsaved, training.job)


@pytest.mark.matrix
def test_a_job_that_loses_all_workers_goes_on_from_the_bucket(tmp_path: Path, alone: Alone) -> None:
    with ApartPool(tmp_path) as pool:
        training = Training(
            pool, "bert", steps=STEPS, pace_s=SLOW_S, args="--strict", gpus="2", tier="elastic"
        )
        pool.wait_size(training.job, 2)
        pool.wait("a checkpoint", lambda: any("step-" in each for each in pool.objects()))
        (home,) = training.view["nodes"]
        pool.kill(home)
        pool.wait_job(training.job, "another node", lambda view: home not in view["nodes"])
        pool.start_agent(home)
        training.go_on()
        training.finish()
        assert training.hash == alone(STEPS)
        assert sorted(set(training.diary())) == list(range(STEPS))


@pytest.mark.matrix
def test_without_its_object_store_a_suspended_job_stays_in_memory_and_is_not_lost(
    tmp_path: Path, alone: Alone
) -> None:
    with ApartPool(tmp_path) as pool:
        training = Training(pool, "bert", steps=STEPS, pace_s=SLOW_S, args="--strict", gpus="2")
        pool.wait_size(training.job, 2)
        pool.stop_s3()
        said = pool.cli("suspend", "bert", code=1)
        assert "s3://jobs/team" in said + pool.cli("explain", "bert")
        pool.wait_job(training.job, "free slots", lambda view: not view["gpus"])
        assert training.view["state"] == "STOPPING"
        pool.start_s3()
        pool.wait_job(training.job, "suspended", lambda view: view["state"] == "SUSPENDED")
        made = training.diary()
        assert made == list(range(len(made)))
        pool.cli("resume", "bert")
        training.finish()
        assert training.hash == alone(STEPS)
        assert training.diary() == list(range(STEPS))

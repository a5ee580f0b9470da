"""An agent is cut off from its server, or stopped: for less than a lease, and for longer."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from coddl.core.pool import records as r
from tests.e2e.conftest import Alone
from tests.e2e.pool import Pool
from tests.e2e.training import Training

pytestmark = pytest.mark.slow

STEPS = 120
SLOW_S = 0.25  # per pass
LEASE_S = 15.0  # so that a line that breaks can be mended before jobs are suspended

NODES: Final[dict[str, Callable[[Training], str]]] = {
    "its lead": lambda training: training.lead,
    "another node": lambda training: training.others[0],
}


@pytest.mark.parametrize(
    "which", ["its lead", pytest.param("another node", marks=pytest.mark.matrix)]
)
def test_a_job_outlives_a_cut_between_the_server_and(
    which: str, tmp_path: Path, alone: Alone
) -> None:
    with Pool(tmp_path, lease_s=LEASE_S) as pool:
        strict = Training(pool, "strict", steps=STEPS, pace_s=SLOW_S, args="--strict", gpus="3..6")
        pool.wait_size(strict.job, 6)
        node = NODES[which](strict)

        # Shorter than the lease: nobody notices.
        since = pool.last_seq()
        pool.cluster.cut(node)
        strict.go_on()
        pool.wait("the agent to notice", lambda: "has been silent" in pool.log(node))
        strict.go_on()
        pool.cluster.mend(node)
        pool.wait("the agent to be back", lambda: pool.log(node).count("server_connected") >= 2)
        begun = strict.view
        pool.wait_steps(strict.job)
        assert not [n for n in pool.records(since) if isinstance(n.record, r.NodeLost | r.Aimed)]
        assert (begun["attempt"], begun["gpus"]) == (1, 6)

        # Longer: the agent lets go of its devices by itself, and the job goes on elsewhere.
        pool.cluster.cut(node)
        pool.wait_record(since, f"loss of {node}", lambda each: isinstance(each, r.NodeLost))
        pool.wait("nobody on it", lambda: not pool.sitters_on(node))
        went_on = pool.wait_job(
            strict.job,
            "going on elsewhere",
            lambda view: view["state"] == "RUNNING" and node not in view["nodes"],
        )
        strict.go_on()
        assert went_on["step"] >= begun["step"], "what was made is kept"

        # It is back, and used again.
        pool.cluster.mend(node)
        assert node in pool.wait_size(strict.job, 6)["nodes"]
        strict.finish()
        assert strict.hash == alone(STEPS)


@pytest.mark.parametrize(
    "which", [pytest.param("its lead", marks=pytest.mark.matrix), "another node"]
)
def test_a_job_outlives_a_stop_of_the_agent_of(which: str, tmp_path: Path, alone: Alone) -> None:
    with Pool(tmp_path, lease_s=LEASE_S) as pool:
        strict = Training(pool, "strict", steps=STEPS, pace_s=SLOW_S, args="--strict", gpus="3..6")
        pool.wait_size(strict.job, 6)
        node, since = NODES[which](strict), pool.last_seq()
        stopped, begun = pool.sitters_on(node), strict.view
        assert stopped, "it has workers there"

        os.kill(pool.pid(node), signal.SIGSTOP)
        pool.wait_record(since, f"loss of {node}", lambda each: isinstance(each, r.NodeLost))
        assert not [each for each in stopped if each.lives], "they were gone before"
        went_on = pool.wait_job(
            strict.job,
            "going on elsewhere",
            lambda view: view["state"] == "RUNNING" and node not in view["nodes"],
        )
        strict.go_on()
        assert went_on["step"] >= begun["step"], "what was made is kept"

        os.kill(pool.pid(node), signal.SIGCONT)
        assert node in pool.wait_size(strict.job, 6)["nodes"]
        strict.finish()
        assert strict.hash == alone(STEPS)

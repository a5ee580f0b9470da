"""Machines that go away on notice: jobs move in time, and lose nothing."""

import time
from pathlib import Path

import pytest

from coddl.agent.options import SERVER_GONE
from coddl.core.pool import records as r
from tests.e2e.conftest import Alone
from tests.e2e.deciding import folded
from tests.e2e.pool import PATIENCE_S, Pool
from tests.e2e.training import Training, completed

pytestmark = pytest.mark.slow

STEPS = 240
SLOW_S = 0.05  # per pass


def leave(pool: Pool, node: str, within_s: float) -> None:
    """Give notice to an agent, which ends in time, in order."""
    begun_s = time.monotonic()
    pool.give_notice(node, within_s)
    pool.wait_left(node)
    assert time.monotonic() - begun_s < within_s


def test_a_job_moves_away_from_machines_that_go_and_loses_no_step(
    tmp_path: Path, alone: Alone
) -> None:
    with Pool(tmp_path, lease_s=600.0) as pool:
        strict = Training(pool, "strict", steps=STEPS, pace_s=SLOW_S, args="--strict", gpus="2..6")
        pool.wait_size(strict.job, 6)

        leave(pool, strict.others[0], PATIENCE_S)
        assert pool.wait_size(strict.job, 4)["attempt"] == 1, "its lead has not changed"
        strict.go_on()

        lead = strict.lead
        leave(pool, lead, PATIENCE_S)
        view = pool.wait_size(strict.job, 2)
        assert (view["attempt"], view["lead"] != lead) == (2, True), "led anew, and not restarted"
        assert not pool.told(r.RunEnded, strict.job)
        strict.go_on()

        (last,) = view["nodes"]
        leave(pool, last, 16.0)  # there is nowhere to go
        (ended,) = pool.told(r.RunEnded, strict.job)
        assert ended.outcome == "retired"
        made = strict.diary()
        assert strict.view["state"] == "PREEMPTED"

        pool.start_agent(last)
        strict.go_on()
        strict.finish()
        assert strict.diary()[: len(made)] == made
        assert completed(strict.diary()) == list(range(STEPS)), "no step was lost"
        assert strict.hash == alone(STEPS)
        drained = [(each.node, each.by) for each in pool.told(r.NodeDrained)]
        assert {by for _, by in drained} == {"its agent"}
        folded(pool.records())


def test_an_agent_that_ends_with_its_lease_does_so_when_the_server_is_gone(tmp_path: Path) -> None:
    with Pool(tmp_path, lease_s=6.0) as pool:
        pool.kill("n1")
        pool.start_agent("n1", "--ends-with-lease")
        pool.wait("n1", lambda: pool.log("n1").count("server_connected") == 2)
        pool.kill("server")
        pool.wait_left("n1", code=SERVER_GONE)
        assert "error: the agent has ended" in pool.log("n1")
        pool.start_server()
        pool.wait("the others", lambda: pool.nodes_in("UP") == ["n2", "n3"])

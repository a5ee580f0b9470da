"""A pool whose nodes come and go with its jobs: the engine of this machine, real agents, a real
training.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.scaled_pool import STEPS, ScaledPool, lone

pytestmark = [pytest.mark.slow, pytest.mark.matrix]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[ScaledPool]:
    pool = ScaledPool(tmp_path)
    pool.coddl(
        *("up", "--port", 0, "--nodes", "0..3", "--slots", 2),
        *("--idle", "3s", "--cool-down", 1),
    )
    try:
        yield pool
    finally:
        pool.coddl("down", "--cancel-jobs")


def test_nodes_come_with_the_work_and_go_with_it(pool: ScaledPool, tmp_path: Path) -> None:
    assert pool.nodes() == []
    assert "0 nodes wanted" in pool.coddl("nodes").stdout
    result = tmp_path / "bert.hash"
    pool.submit(result, 0.2)  # longer than all that follows
    pool.wait_size("bert", 6)
    before = pool.nodes()
    assert len(before) == 3
    pool.kill_server()
    pool.wait_steps("bert")
    assert pool.nodes() == before, "what the engine has brought is known again"
    pool.pace.write_text("0.0")
    pool.coddl("wait", "bert")
    assert result.read_text() == lone(tmp_path)
    made = pool.made()
    assert made == list(range(STEPS)), "no step was lost, and none made twice"
    pool.wait("all nodes to be given back", lambda: not pool.nodes())
    said = pool.coddl("events", "--tail", 500).stdout
    assert "drained by scaling: fewer nodes are needed" in said
    assert "left for good: local no longer has it" in said

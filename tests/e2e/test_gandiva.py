"""Gandiva in a live pool: jobs grow into idle slots of their node, and make room for others."""

from pathlib import Path

import pytest

from coddl.core.pool import records as r
from tests.e2e.conftest import Alone
from tests.e2e.pool import Pool
from tests.e2e.training import Training

pytestmark = pytest.mark.slow

STEPS = 240
SLOW_S = 0.05  # per pass
GROWS = "gandiva:asks=minimum,grow_after_s=1,quantum_s=5"


def test_jobs_grow_into_idle_slots_and_give_them_back(tmp_path: Path, alone: Alone) -> None:
    with Pool(tmp_path) as pool:
        pool.cli("policy", GROWS)
        first = Training(pool, "first", steps=STEPS, pace_s=SLOW_S, args="--strict", gpus="1..6")
        (node,) = pool.wait_size(first.job, 2)["nodes"]  # it takes those of its node alone
        for other in {"n1", "n2", "n3"} - {node}:
            pool.cli("drain", other)
        second = Training(pool, "second", steps=STEPS, pace_s=SLOW_S, args="--strict", gpus="1")
        pool.wait_size(second.job, 1)
        assert pool.wait_size(first.job, 1)["nodes"] == second.view["nodes"] == [node]
        pool.cli("cancel", "second")
        pool.wait_size(first.job, 2)
        first.finish()
        assert first.view["attempt"] == 1
        assert first.hash == alone(STEPS)
        kinds = {each.kind for each in pool.told(r.RunChanged, first.job)}
        # Speeds of a busy machine may differ, so that workers are dealt other slices.
        assert kinds - {"rebalanced"} == {"started", "resized"}

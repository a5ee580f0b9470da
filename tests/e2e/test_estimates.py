"""Estimates in a pool: jobs are not tried in vain, and learn from earlier ones."""

from pathlib import Path

import pytest

from coddl.agent.inspection.hardware import look_at_hardware
from coddl.agent.inspection.store import store_inspection
from coddl.core.pool import records as r
from coddl.core.speed.inspection import Inspection, LinkSpeed
from tests.e2e.pool import Pool
from tests.e2e.training import Training

pytestmark = pytest.mark.slow

SLOTS = 3
PACE_S = 0.002  # of a sample


def test_a_job_whose_training_is_known_is_not_tried_where_it_would_be_slower(
    tmp_path: Path,
) -> None:
    pool = Pool(tmp_path, nodes=("n1",), slots=SLOTS)
    slow = LinkSpeed(gb_s=10.0, latency_us=0.0, call_us=1e6, backend="gloo")
    words = look_at_hardware(SLOTS).hardware
    store_inspection(pool.state, Inspection(words, {"node": slow}, {}, {}))
    with pool:
        pool.cli("policy", "afs-p")
        first = Training(pool, "first", steps=2000, pace_s=PACE_S, gpus="1")
        pool.wait("its profile", lambda: pool.told(r.RunProfiled, first.job) or None)
        first.finish()
        second = Training(pool, "second", steps=4000, pace_s=PACE_S, gpus=f"1..{SLOTS}")
        pool.wait("its speed", lambda: sources(pool, second.job)[1] == "measured")
        assert sources(pool, second.job) == {1: "measured", 2: "estimated", 3: "estimated"}
        second.go_on(50)
        assert [len(each.slots) for each in pool.told(r.RunChanged, second.job)] == [1]
        second.finish()


@pytest.mark.matrix
def test_what_a_job_has_measured_counts_for_the_next_one_after_a_restart_too(
    tmp_path: Path,
) -> None:
    with Pool(tmp_path, nodes=("n1",), slots=2) as pool:
        first = Training(pool, "first", steps=4000, pace_s=PACE_S, gpus="1..2")
        pool.wait("its profile", lambda: pool.told(r.RunProfiled, first.job) or None)
        both = {1: "measured", 2: "measured"}
        pool.wait("its speeds", lambda: sources(pool, first.job) == both)
        first.go_on(20)
        pool.kill("server")
        pool.start_server()
        first.finish()
        second = Training(pool, "second", steps=4000, pace_s=PACE_S, gpus="1..2")
        pool.wait("its start", lambda: pool.told(r.RunPrepared, second.job) or None)
        known = pool.get(f"/jobs/{second.job}/estimate")["remembered"]
        assert [each["gpus"] for each in known] == [1, 2]
        shown = pool.cli("estimate", str(second.job), "--on", "2")
        assert "no node of the pool was inspected" in shown
        second.finish()


def sources(pool: Pool, job: int) -> dict[int, str]:
    """Tell how its speed is known, by size."""
    speeds = pool.get(f"/jobs/{job}/explain")["speeds"]
    return {each["gpus"]: each["source"] for each in speeds}

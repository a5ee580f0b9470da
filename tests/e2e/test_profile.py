"""A job of a pool tells what its training costs one worker; a later one like it knows."""

import json
from pathlib import Path

import pytest

from coddl.core.pool import records as r
from coddl.core.speed.profile import TrainingProfile
from tests.e2e.pool import Pool
from tests.e2e.training import Training

pytestmark = pytest.mark.slow

PACE_S = 0.005  # of a pass, at least


def test_a_job_has_a_profile_and_the_next_one_like_it_has_it_at_once(tmp_path: Path) -> None:
    with Pool(tmp_path) as pool:
        first = Training(pool, "first", steps=400, pace_s=PACE_S, gpus="1")
        pool.wait("its profile", lambda: pool.told(r.RunProfiled, first.job) or None)
        found = TrainingProfile.from_data(json.loads(pool.cli("profile", "first", "-o", "json")))
        assert found == pool.told(r.RunProfiled, first.job)[-1].profile
        assert sum(each.bytes_ for each in found.buckets) > 0
        assert found.buckets[-1].ready == 1.0
        assert "signature" in pool.cli("profile", "first")
        first.finish()

        measures_nothing = {"CODDL_INSPECT": "0"}
        second = Training(pool, "second", steps=400, pace_s=PACE_S, gpus="1", env=measures_nothing)
        pool.wait_steps(second.job)
        told = json.loads(pool.cli("profile", "second", "-o", "json"))
        assert TrainingProfile.from_data(told) == found
        assert not pool.told(r.RunProfiled, second.job)
        second.finish()
        missing = pool.hand_in({"command": ["true"], "name": "plain"})
        pool.wait_end(missing)
        pool.cli("profile", "plain", code=102)

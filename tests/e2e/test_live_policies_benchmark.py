"""The benchmark of live policies runs and reports what it promises; its figures are not tested."""

import pytest

from benchmarks.live_policies import measure, parsed, summary

pytestmark = pytest.mark.slow


def test_jobs_run_by_a_policy_live_and_simulated() -> None:
    jobs = ["--slots", "3", "--every-s", "0.5", "--lengths-s", "8", "3", "2", "2"]
    found = measure(parsed(["--policies", "ranked-speedup", *jobs]))
    assert found["orders"] == {"live": ["ranked-speedup"], "simulated": ["ranked-speedup"]}
    row = found["policies"]["ranked-speedup"]
    assert row["live"]["errors"] == 0
    for outcome in row.values():
        assert outcome["makespan_s"] >= outcome["avg_jct_s"] > 0
        assert outcome["changes"] >= 0
    assert len(summary(found)) == 4

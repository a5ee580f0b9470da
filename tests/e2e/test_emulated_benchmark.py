"""The benchmark of emulated pools runs and reports what it promises; its figures are not tested."""

import pytest

from benchmarks.emulated import line_of, measure, parsed

pytestmark = pytest.mark.slow


def test_jobs_in_an_emulated_pool_and_simulated() -> None:
    few = ["--jobs", "6", "--hours", "0.1", "--longest-h", "0.1", "--cluster", "2x4"]
    few += ["--time-scales", "60", "--policies", "afs-l", "--jittered", "2"]
    found = measure(parsed(few))
    (row,) = found["rows"]
    assert found["jobs"] == 6
    assert found["contention"] > 0
    assert row["live_avg_jct_s"] > 0.9 * row["simulated_avg_jct_s"] > 0
    assert 0 <= row["within_spread"] <= 1
    assert row["latency_s"] > 0
    assert row["server_cpu"] > 0
    assert "afs-l" in line_of(row)

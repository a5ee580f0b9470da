"""The benchmark of sharing runs and reports what it promises; its figures are not tested."""

import pytest

from benchmarks.sharing import measure, parsed

pytestmark = pytest.mark.slow


def test_a_suspension_turns_and_a_search_are_measured() -> None:
    turns = ("--jobs", "2", "--quantum", "2", "--turns", "2")
    search = ("--trials", "2", "--trial-mb", "2", "--trial-steps", "200", "--trial-quantum", "1")
    found = measure(parsed(["--cpu", "--state-mb", "2", *turns, *search]))
    assert found["suspend"]["later"]["free_s"] > 0
    assert found["suspend"]["later"]["first_step_s"] > 0
    assert found["suspend"]["disk_s"] > 0
    for (two,) in (found["turns"], found["resident"]):
        assert two["ratio"] > 0
        assert sum(two["parts"]) == pytest.approx(1.0)
    assert found["search"]["turns"]["all_s"] >= found["search"]["turns"]["mean_s"] > 0
    assert found["search"]["one_after_another"]["all_s"] > 0

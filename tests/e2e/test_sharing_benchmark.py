"""The benchmark of sharing runs and reports what it promises; its figures are not tested."""

from typing import Any

import pytest

from benchmarks.sharing import measure, parsed

pytestmark = pytest.mark.slow


def measured(*parts: str) -> dict[str, Any]:
    turns = ("--jobs", "2", "--quantum", "2", "--turns", "2")
    search = ("--trials", "2", "--trial-mb", "2", "--trial-steps", "200", "--trial-quantum", "1")
    return measure(parsed(["--cpu", "--state-mb", "2", *turns, *search, "--parts", *parts]))


def check_turns(two: dict[str, Any]) -> None:
    assert two["ratio"] > 0
    assert sum(two["parts"]) == pytest.approx(1.0)


def test_a_suspension_and_turns_are_measured() -> None:
    found = measured("suspend", "turns")
    assert found["suspend"]["later"]["free_s"] > 0
    assert found["suspend"]["later"]["first_step_s"] > 0
    assert found["suspend"]["disk_s"] > 0
    (two,) = found["turns"]
    check_turns(two)


@pytest.mark.matrix
def test_turns_of_resident_jobs_and_a_search_are_measured() -> None:
    found = measured("resident", "search")
    (two,) = found["resident"]
    check_turns(two)
    assert found["search"]["turns"]["all_s"] >= found["search"]["turns"]["mean_s"] > 0
    assert found["search"]["one_after_another"]["all_s"] > 0

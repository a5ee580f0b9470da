"""The benchmark that takes stock of a GPU's memory runs; without a GPU its load does."""

import pytest

from benchmarks.gpu_memory import measure, parsed

pytestmark = pytest.mark.slow


def test_a_load_leaves_nothing_behind() -> None:
    found = measure(parsed(["--cpu", "--minutes", "0.1", "--largest-mb", "2"]))
    assert found["done"]["submitted"] > 0
    assert found["records"] > 0
    assert found["steps_of_two_jobs_at_once"] == 0

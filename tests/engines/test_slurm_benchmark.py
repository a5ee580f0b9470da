"""The benchmark of nodes in Slurm runs and reports what it promises; its figures are not tested."""

import pytest

from benchmarks.slurm_nodes import LINES, measure
from tests.engines.slurm_cluster import why_not


@pytest.mark.matrix
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "Slurm is here")
def test_nodes_of_slurm_and_a_job_on_them_are_measured() -> None:
    found = measure(rounds=1)
    keys = {key for line in LINES for key in (line[1], line[3]) if key}
    assert all(found[key] > 0 for key in keys)
    assert found["running_s"] < found["joined_s"] < found["first_step_s"]

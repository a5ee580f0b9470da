"""The benchmark of nodes in Ray runs and reports what it promises; its figures are not tested."""

import pytest

from benchmarks.ray_nodes import LINES, measure

pytest.importorskip("ray", reason="needs Ray: pip install 'coddl[ray]'")


@pytest.mark.matrix
def test_nodes_of_ray_and_a_job_on_them_are_measured() -> None:
    found = measure(rounds=1)
    keys = {key for line in LINES for key in (line[1], line[3]) if key}
    assert all(found[key] > 0 for key in keys)
    assert found["whole_s_lead"] > found["goes_on_s_lead"]

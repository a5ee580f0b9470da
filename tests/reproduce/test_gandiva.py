"""Gandiva's packing: what Table 1 allows, and what groups on one GPU reach of it."""

import pytest

from coddl.core.allocation import Allocation, group_sizes
from coddl.core.cluster import Cluster
from coddl.core.placement.gandiva import GandivaPlacement
from coddl.core.policies.gandiva.policy import Gandiva
from coddl.core.snapshot import Snapshot
from coddl.reproduce.gandiva import HOUR_S, alike, in_pairs, most_of_table, packed_gain
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, run_case
from coddl.traces.gandiva_table import packing_speeds, packing_table


@pytest.mark.parametrize(("jobs", "want"), [(1, 0.0), (2, 0.25), (None, 0.36)])
def test_what_table_1_allows(jobs: int | None, want: float) -> None:
    assert most_of_table(0.75, jobs) == pytest.approx(want, abs=0.005)


def test_memory_holds_the_jobs_that_the_packed_rates_prove() -> None:
    assert {row.model: row.jobs for row in packing_table() if row.jobs > 2} == {
        "vae": 6,
        "super-resolution": 4,
    }


@pytest.mark.parametrize("at", [0, 1])
def test_groups_reach_what_is_published_but_for_their_trials(at: int) -> None:
    row = packing_table()[at]
    gain, kept = packed_gain(at, row.jobs)
    assert kept
    assert 0.9 * row.gain < gain <= row.gain


def test_without_memory_for_more_jobs_stay_in_pairs() -> None:
    largest = dict.fromkeys(("groups", "pairs"), 0)
    trace = alike(6, HOUR_S).on(packing_speeds())
    for name, jobs in {"groups": trace, "pairs": in_pairs(trace)}.items():

        def noting(snapshot: Snapshot, name: str = name) -> Allocation:
            answer = Gandiva()(snapshot)
            assert answer.packed_with is not None
            largest[name] = max(largest[name], int(group_sizes(answer.packed_with).max(initial=0)))
            return answer

        run_case(
            Case(
                RunKey("gandiva", 1),
                noting,
                jobs,
                cluster=Cluster.of(1),
                placement=GandivaPlacement(),
            )
        )
    assert largest == {"groups": 6, "pairs": 2}

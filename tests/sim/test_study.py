"""Studies on clusters: what a question may ask beside policies and sizes."""

from pathlib import Path
from typing import Any, cast

import pytest

import coddl
from coddl.core.allocation import Allocation
from coddl.core.cluster import Cluster
from coddl.core.errors import UserError
from coddl.core.placement.consolidate import Consolidate
from coddl.core.placement.placement import Placed, Placement
from coddl.core.snapshot import Snapshot


def test_clusters_and_placements_are_compared_side_by_side() -> None:
    results = coddl.simulate(
        policies=["afs-l", "srtf"],
        cluster=["8x8", "16x4"],
        placement=["consolidate", "spread"],
        first=60,
    )
    rows = list(zip(results["cluster"], results["policy"], results["placement"], strict=True))
    assert rows == [
        (cluster, policy, placement)
        for cluster in ("8x8", "16x4")
        for policy in ("afs-l", "srtf")
        for placement in ("consolidate", "spread")
    ]
    assert set(results["jobs"]) == {60}
    assert set(results["gpus"]) == {64}
    by_place = {row: jct_s for row, jct_s in zip(rows, results["avg_jct_s"], strict=True)}
    for cluster in ("8x8", "16x4"):
        near, far = (by_place[cluster, "srtf", place] for place in ("consolidate", "spread"))
        assert near < far, "jobs that span nodes are slower"


def test_a_cluster_and_a_placement_may_be_given_as_they_are() -> None:
    named = coddl.simulate(policies="srtf", cluster="16x4", first=40)
    given = coddl.simulate(
        policies="srtf", cluster=Cluster.of(64, 4), placement=Consolidate(), first=40
    )
    assert named["avg_jct_s"] == given["avg_jct_s"]
    assert named["placement"][0] == given["placement"][0] == "consolidate"


def test_one_node_costs_what_no_nodes_cost() -> None:
    flat, placed = (
        coddl.simulate(policies="afs-l", first=60),
        coddl.simulate(policies="afs-l", cluster="1x64", first=60),
    )
    assert flat["avg_jct_s"] == pytest.approx(placed["avg_jct_s"], rel=1e-12)


def test_errors_and_failures_change_what_happens_and_their_absence_nothing() -> None:
    plain, none, wrong = (
        coddl.simulate(policies="srtf", gpus=16, first=60, error=error)
        for error in ("", "length=0", "length=0.9")
    )
    failing = coddl.simulate(policies="srtf", first=60, failures="philly")
    assert plain["avg_jct_s"] == none["avg_jct_s"]
    assert wrong["avg_jct_s"] != plain["avg_jct_s"]
    assert failing["failed_jobs"] + failing["killed_jobs"] + failing["jobs"] == 60
    assert failing["failed_jobs"] > 0


def test_quotas_bind_a_policy_that_knows_queues(tmp_path: Path) -> None:
    lines = [f"{vc},0,resnet50,5000,4" for vc in "aaab"]
    path = tmp_path / "jobs.csv"
    path.write_text("\n".join(["vc,submitted_s,model,iterations,gpus_requested", *lines]))
    first_b = {
        quotas: coddl.simulate(path, "philly", gpus=4, quotas=quotas).runs[0].first_start_s[3]
        for quotas in ("a=0,b=4", "a=4,b=0")
    }
    assert first_b["a=0,b=4"] == 0.0
    assert first_b["a=4,b=0"] > 0.0


def test_things_without_a_name_of_their_own_are_told_apart() -> None:
    def mine(snapshot: Snapshot, allocation: Allocation) -> Placed:
        return Consolidate()(snapshot, allocation)

    placements: list[Placement] = [
        Consolidate(moves=1),
        Consolidate(moves=2),
        mine,
    ]
    results = coddl.simulate(
        policies="srtf", cluster=[Cluster.of(64, 4), Cluster.of(64, 8)],
        placement=placements, first=20,
    )  # fmt: skip
    assert results["cluster"].tolist() == ["cluster"] * 3 + ["cluster #2"] * 3
    assert results["placement"].tolist() == ["consolidate", "consolidate #2", "mine"] * 2


def test_a_class_is_no_placement() -> None:
    with pytest.raises(UserError, match="an instance"):
        coddl.simulate(policies="srtf", cluster="16x4", placement=cast(Any, Consolidate))


def test_the_first_jobs_are_the_first_of_what_is_generated_too() -> None:
    results = coddl.simulate("poisson", policies="srtf", first=7, seeds=2)
    assert results["jobs"] == 7


def test_a_queue_whose_jobs_were_cut_off_is_not_simulated(tmp_path: Path) -> None:
    lines = [f"{vc},{at},resnet50,5000,4" for at, vc in enumerate("aab")]
    path = tmp_path / "jobs.csv"
    path.write_text("\n".join(["vc,submitted_s,model,iterations,gpus_requested", *lines]))
    assert coddl.simulate(path, "fifo", gpus=4, vc="all", first=2)["vc"].tolist() == ["a"]
    assert coddl.simulate(path, "fifo", gpus=4, vc="all")["vc"].tolist() == ["a", "b"]

"""Studies on clusters: what a question may ask beside policies and sizes."""

from pathlib import Path
from typing import Any, cast

import pytest

import coddl
from coddl.core.allocation import Allocation
from coddl.core.cluster import Cluster
from coddl.core.errors import UserError
from coddl.core.parameter_server.costs import Mode
from coddl.core.placement.consolidate import Consolidate
from coddl.core.placement.placement import Placed, Placement
from coddl.core.snapshot import Snapshot
from coddl.traces.files import packaged_speeds, read_speeds, read_trace, small_trace


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


def test_a_speed_table_is_for_the_small_trace_too(tmp_path: Path) -> None:
    path = tmp_path / "speeds.csv"
    lines = [f"{name},1,1,0.5" for name in packaged_speeds().names]
    path.write_text("\n".join(["model,global_batch,gpus,step_s", *lines]))
    run = coddl.simulate(policies="srtf", first=5, speeds=path).runs[0]
    assert (run.jct_s >= 0.5 * run.trace.iterations).all()
    assert (run.trace.speeds.step_s[:, 1] == 0.5).all()


def test_a_trace_at_hand_has_its_own_speeds() -> None:
    with pytest.raises(UserError, match="its own"):
        coddl.simulate(small_trace(), "srtf", speeds="speeds.csv")


def test_a_policy_that_places_jobs_itself_runs_once() -> None:
    results = coddl.simulate(
        policies=["gandiva", "srtf"], cluster="16x4", placement=["consolidate", "spread"], first=20
    )
    rows = list(zip(results["policy"], results["placement"], strict=True))
    assert rows == [("gandiva", ""), ("srtf", "consolidate"), ("srtf", "spread")]
    with pytest.raises(UserError, match="gandiva has its own placement"):
        coddl.simulate(policies="gandiva", cluster="16x4", placement="spread", first=20)
    assert coddl.simulate(policies="gandiva", cluster="16x4", first=5)["placement"] == [""]


# A step of 4/w + 1 seconds, with as many servers as workers: 4/w + 0.5 + 0.5 w/p with p of them.
CURVE = "model,global_batch,gpus,step_s\nmine,8,1,5\nmine,8,2,3\nmine,8,3,2.3333333\nmine,8,4,2"
PAIRS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 2), (2, 3), (4, 4))  # servers, workers
POINTS = "model,servers,workers,step_s\n" + "\n".join(
    f"mine,{p},{w},{4 / w + 0.5 + 0.5 * w / p}" for p, w in PAIRS
)


def one_job(
    folder: Path, policy: str, speeds: str = CURVE, servers: Mode | None = "sync", gpus: int = 1
) -> float:
    """How long 100 iterations take on one node with 8 cores, of which a worker takes 2."""
    jobs, table, cluster = (folder / name for name in ("jobs.csv", "t.csv", "cluster.yaml"))
    header = "submitted_s,model,iterations,gpus_requested,gpus_max"
    jobs.write_text(f"{header}\n0,mine,100,{gpus},{gpus}")
    table.write_text(speeds)
    cluster.write_text("nodes: [{gpus: 4, cpus: 8}]")
    results = coddl.simulate(jobs, policy, speeds=table, servers=servers, cluster=str(cluster))
    return float(results["avg_jct_s"][0])


ONE_JOB: dict[str, tuple[str, int, float]] = {
    "a server takes all the cores that are left": ("optimus-ps:server_cpus=6", 1, 500.0),
    "there is room for two": ("optimus-ps", 1, 475.0),
    "servers are free, up to the four of the table": ("optimus-ps:server_cpus=0", 1, 462.5),
    "as many as workers": ("drf", 1, 500.0),
    "who knows nothing of servers has as many as workers": ("srtf", 2, 300.0),
}


@pytest.mark.parametrize(("policy", "gpus", "want_s"), ONE_JOB.values(), ids=ONE_JOB.keys())
def test_a_job_trains_with_parameter_servers(
    policy: str, gpus: int, want_s: float, tmp_path: Path
) -> None:
    assert one_job(tmp_path, policy, gpus=gpus) == pytest.approx(want_s, rel=1e-4)
    assert one_job(tmp_path, policy, POINTS, gpus=gpus) == pytest.approx(want_s)


def test_workers_that_do_not_wait_for_each_other_do_more(tmp_path: Path) -> None:
    """Each computes a batch by itself: (4.5 + 0.5 w/p) / w seconds."""
    assert one_job(tmp_path, "srtf", servers="async", gpus=2) == pytest.approx(250.0, rel=1e-4)


def test_without_servers_nobody_has_any(tmp_path: Path) -> None:
    for cores in (0, 6):
        policy = f"optimus-ps:server_cpus={cores}"
        assert one_job(tmp_path, policy, servers=None) == pytest.approx(500.0)


def test_points_with_servers_say_neither_how_jobs_train_nor_enough(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="their mode is not given"):
        one_job(tmp_path, "optimus-ps", POINTS, servers=None)
    with pytest.raises(UserError, match='4 lines for "mine" are too few'):
        one_job(tmp_path, "optimus-ps", "\n".join(POINTS.split("\n")[:5]))


def test_a_trace_whose_speeds_have_servers_takes_no_others(tmp_path: Path) -> None:
    one_job(tmp_path, "drf")
    (tmp_path / "t.csv").write_text(POINTS)
    trace = read_trace(tmp_path / "jobs.csv", read_speeds(tmp_path / "t.csv", "sync"))
    assert coddl.simulate(trace, "drf", cluster="1x4")["avg_jct_s"] == pytest.approx(500.0)
    with pytest.raises(UserError, match="its own"):
        coddl.simulate(trace, "drf", servers="async")


def test_workers_far_apart_pay_their_servers_alone() -> None:
    near_s, far_s = coddl.simulate(
        policies="srtf",
        cluster="16x4",
        placement=["consolidate", "spread"],
        first=20,
        servers="sync",
    )["avg_jct_s"]
    assert near_s == pytest.approx(far_s)

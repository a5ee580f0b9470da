"""Nodes that come and go in simulated time."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coddl
from coddl.core.allocation import Allocation
from coddl.core.cluster import Cluster
from coddl.core.errors import UserError
from coddl.core.node_count import NodeBounds
from coddl.core.plan import Plan
from coddl.core.registry import placement_from, policy_from
from coddl.core.scheduler import Scheduler
from coddl.core.snapshot import Snapshot
from coddl.sim.beliefs import Beliefs
from coddl.sim.loop import SimulatedCluster, StepLoop
from coddl.sim.node_scaling import NodeScaling
from coddl.sim.run import Run
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, run_case, scaling_of, world_before
from coddl.sim.study import NodeSpec
from coddl.sim.world import ACTIVE, HELD, LOGGED, MODES, NOW, PART, Reconfigure, ReconfigureMode
from coddl.testing.builders import speeds_from
from coddl.traces.generators import poisson
from coddl.traces.trace import Trace, trace_of
from tests.sim.test_loops import events_of, traces

PERFECT = [1.0 / gpus for gpus in range(1, 7)]
FADING = [1.0, 0.6, 0.5, 0.49, 0.48, 0.47]  # makes good use of 4 GPUs
POLICIES = ("afs-l", "afs-p", "fifo", "gandiva", "max-min", "optimus-ps", "themis", "tiresias-l")


def jobs(*rows: tuple[float, int, float, int, int]) -> Trace:
    """A trace of (submitted_s, curve, iterations, gpus_requested, gpus_max)."""
    submitted_s, curve, iterations, requested, most = np.array(rows).T
    return trace_of(
        "jobs",
        speeds_from([PERFECT, FADING]),
        submitted_s=submitted_s,
        curve=curve.astype(np.int64),
        iterations=iterations,
        gpus_requested=requested.astype(np.int64),
        gpus_max=most.astype(np.int64),
    )


def case_of(trace: Trace, bounds: NodeBounds, policy: str = "afs-l") -> Case:
    gpus = bounds.most * bounds.gpus
    return Case(
        RunKey(policy, gpus),
        policy_from(policy),
        trace,
        cluster=Cluster.of(gpus, bounds.gpus),
        nodes=bounds,
        placement=placement_from("consolidate"),
        keep_events=True,
    )


def counts(run: Run) -> list[tuple[float, int, int]]:
    """When the number of nodes changed: how many were held and ready from then on."""
    assert run.nodes is not None
    return [(round(at_s, 2), held, ready) for at_s, held, ready, _ in run.nodes.changes]


@dataclass(frozen=True)
class Table:
    """Jobs on 1 to 3 nodes of 2 GPUs, which take 10 s to start and are kept for 60 s."""

    trace: Trace
    want: list[tuple[float, int, int]]
    policy: str = "afs-l"
    bounds: NodeBounds = field(default_factory=lambda: NodeBounds(1, 3, 2, 10.0, 60.0))


LONG = (0.0, 0, 1000.0, 1, 1)  # on one GPU for 1,000 s
TABLES = {
    "one that can use more has nodes brought": Table(
        jobs((5.0, 0, 1220.0, 1, 6)), [(5.0, 3, 1), (15.0, 3, 3)]
    ),
    "one that is over before a node has started has none brought": Table(
        jobs((0.0, 0, 19.0, 1, 6)), [(0.0, 1, 1)]
    ),
    "no more than it makes good use of": Table(
        jobs((0.0, 1, 1000.0, 1, 6)), [(0.0, 2, 1), (10.0, 2, 2)]
    ),
    "a rigid policy gives the request, and needs nodes for that": Table(
        jobs((0.0, 1, 1000.0, 5, 6)), [(0.0, 3, 1), (10.0, 3, 3)], "fifo"
    ),
    "of the same job a rigid policy needs less if it requests less": Table(
        jobs((0.0, 0, 1000.0, 2, 6)), [(0.0, 1, 1)], "fifo"
    ),
    # 4 GPUs for 100 s after 10 s on 1 GPU: the other job ends at 110 s.
    "a node that was idle for long enough is given back": Table(
        jobs(LONG, (0.0, 0, 410.0, 1, 4)), [(0.0, 3, 1), (10.0, 3, 3), (170.0, 1, 1)]
    ),
    "a gap that is shorter than that costs no start": Table(
        jobs(LONG, (0.0, 0, 410.0, 1, 4), (150.0, 0, 400.0, 1, 4)),
        [(0.0, 3, 1), (10.0, 3, 3), (310.0, 1, 1)],
    ),
    "what was needed in the meantime is kept for longer": Table(
        jobs(LONG, (0.0, 0, 410.0, 1, 4), (120.0, 0, 60.0, 1, 2)),
        [(0.0, 3, 1), (10.0, 3, 3), (170.0, 2, 2), (230.0, 1, 1)],
    ),
    "without delays the nodes follow the need": Table(
        jobs(LONG, (100.0, 0, 400.0, 1, 4)),
        [(0.0, 1, 1), (100.0, 3, 3), (200.0, 1, 1)],
        bounds=NodeBounds(1, 3, 2, 0.0, 0.0),
    ),
    "a cluster may be empty": Table(
        jobs((0.0, 0, 40.0, 1, 2), (500.0, 0, 40.0, 1, 2)),
        [(0.0, 1, 0), (10.0, 1, 1), (90.0, 0, 0), (500.0, 1, 0), (510.0, 1, 1)],
        bounds=NodeBounds(0, 3, 2, 10.0, 60.0),
    ),
    "a fixed number stays": Table(
        jobs(LONG, (0.0, 0, 410.0, 1, 4)), [(0.0, 2, 2)], bounds=NodeBounds(2, 2, 2)
    ),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_nodes_come_and_go_with_the_need(table: Table) -> None:
    assert counts(run_case(case_of(table.trace, table.bounds, table.policy))) == table.want


def test_a_change_says_why() -> None:
    bounds = NodeBounds(1, 3, 2, 10.0, 60.0)
    run = run_case(case_of(jobs(LONG, (0.0, 0, 820.0, 1, 6)), bounds))
    assert run.nodes is not None
    assert [change.because for change in run.nodes.changes] == [
        "2 jobs can use 7 GPUs (the most: job 1, 6); at most 3 nodes",
        "asked for 10 s ago: 2 jobs can use 7 GPUs (the most: job 1, 6); at most 3 nodes",
        "not needed for 60 s: job 0 can use 1 GPU",
    ]


def test_nodes_are_held_from_when_they_are_asked_for_until_they_are_given_back() -> None:
    table = TABLES["a node that was idle for long enough is given back"]
    run = run_case(case_of(table.trace, table.bounds))
    metrics = run.metrics()
    node_s = 3 * 170.0 + 830.0
    assert metrics.gpu_hours_held == pytest.approx(2 * node_s / 3600)
    assert metrics.avg_nodes == pytest.approx(node_s / 1000)
    assert metrics.gpu_hours == pytest.approx((1000.0 + 410.0) / 3600)
    assert metrics.utilization == pytest.approx(metrics.gpu_hours / metrics.gpu_hours_held)


def test_a_job_moves_off_a_node_that_goes_and_stands_still_as_for_any_move() -> None:
    # Nodes: job 0 · jobs 1 and 2 · job 3. When job 2 has ended, jobs 1 and 3 fit on one.
    shares = [(2000.0, 2), (1000.0, 1), (100.0, 1), (1000.0, 1)]
    trace = jobs(*[(0.0, 0, iterations, gpus, gpus) for iterations, gpus in shares])
    costs = Reconfigure("stall", pause_s=7.0)
    case = replace(case_of(trace, NodeBounds(2, 3, 2, 0.0, 50.0), "fifo"), reconfigure=costs)
    run = run_case(case)
    assert counts(run) == [(0.0, 3, 3), (157.0, 2, 2)]
    assert run.migrations == 1
    assert run.finish_s.tolist() == [1007.0, 1014.0, 107.0, 1007.0]
    stays = run_case(replace(case, nodes=NodeBounds(3, 3, 2)))
    assert stays.migrations == 0
    assert stays.finish_s.tolist() == [1007.0, 1007.0, 107.0, 1007.0]


@dataclass(frozen=True, slots=True)
class CheckedScheduler(Scheduler):
    """Sees to it that jobs are on nodes that are there."""

    scaling: NodeScaling | None = None

    def decide(self, snapshot: Snapshot) -> Plan:
        """Decide as it would."""
        assert self.scaling is not None
        there = {f"node-{number}" for number in self.scaling.ready}
        assert {node.name for node in snapshot.cluster.nodes} == there
        plan = Scheduler.decide(self, snapshot)
        for slots in (snapshot.slots, plan.placed.slots if plan.placed else None):
            assert slots is not None
            assert (slots.island < len(there)).all()
        return plan


def check_run(case: Case) -> None:
    """Run a case; its nodes must stay within bounds, and have all the GPUs that jobs hold."""
    bounds, cluster, speeds = case.nodes, case.cluster, case.trace.speeds
    world = world_before(case)
    scaling = scaling_of(case, world)
    assert bounds is not None
    assert cluster is not None
    assert scaling is not None
    scheduler = CheckedScheduler(case.policy, placement=case.placement, scaling=scaling)
    simulated = SimulatedCluster(cluster, speeds, Beliefs(speeds))
    loop = StepLoop(world, simulated, scheduler, scaling)
    while loop.run(1):
        world.counts[LOGGED] = 0
        nodes = scaling.history.changes[-1].held
        assert bounds.least <= nodes <= bounds.most
        assert (world.ints[HELD] * world.floats[PART]).sum() <= nodes * bounds.gpus
    assert world.counts[ACTIVE] == 0, "all jobs end"
    held_gpu_s = scaling.history.gpu_s(float(world.clock[NOW]))
    assert world.jobs.attained_gpu_s.sum() <= held_gpu_s * (1.0 + 1e-9)


@given(
    trace=traces(),
    policy=st.sampled_from(POLICIES),
    nodes=st.tuples(st.integers(0, 4), st.integers(2, 6)),
    times_s=st.tuples(st.sampled_from([0.0, 5.0, 60.0]), st.sampled_from([0.0, 1.0, 100.0])),
    mode=st.sampled_from(MODES),
)
@settings(max_examples=100, deadline=None)
def test_nodes_stay_within_bounds_and_have_all_that_jobs_hold(
    trace: Trace,
    policy: str,
    nodes: tuple[int, int],
    times_s: tuple[float, float],
    mode: ReconfigureMode,
) -> None:
    bounds = NodeBounds(min(nodes), max(nodes), 4, *times_s)
    check_run(replace(case_of(trace, bounds, policy), reconfigure=Reconfigure(mode, 1.0, 0.5)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("policy", ["afs-l", "gandiva", "srtf"])
def test_the_same_on_a_crowded_trace(policy: str, mode: ReconfigureMode) -> None:
    trace = poisson(jobs=100, gpus=32, load=0.8, seed=3)
    case = case_of(trace, NodeBounds(1, 8, 4, 60.0, 120.0), policy)
    check_run(replace(case, reconfigure=Reconfigure(mode, 30.0, 1.0)))


@given(trace=traces(), policy=st.sampled_from(POLICIES), mode=st.sampled_from(MODES))
@settings(max_examples=60, deadline=None)
def test_a_fixed_number_of_nodes_is_a_cluster_of_so_many(
    trace: Trace, policy: str, mode: ReconfigureMode
) -> None:
    bounds = NodeBounds(3, 3, 4, 0.0, 0.0)
    case = replace(case_of(trace, bounds, policy), reconfigure=Reconfigure(mode, 1.0, 0.5))
    scaled, fixed = run_case(case), run_case(replace(case, nodes=None))
    assert events_of(scaled) == events_of(fixed)
    one, other = scaled.metrics(), fixed.metrics()
    assert one.avg_nodes == pytest.approx(3)
    assert one.gpu_hours_held == other.gpu_hours_held
    assert one.utilization == other.utilization


def test_a_study_compares_ranges_of_nodes_with_a_fixed_number() -> None:
    results = coddl.simulate(policies="afs-l", nodes=["1..4", 4], gpus_per_node=4, first=40)
    assert results["cluster"].tolist() == ["1..4x4", "4x4"]
    assert results["gpus"].tolist() == [16, 16]
    some, all_of_them = results["gpu_hours_held"]
    assert some < all_of_them
    assert results["avg_nodes"][0] < results["avg_nodes"][1] == 4
    plain = coddl.simulate(policies="afs-l", cluster="4x4", first=40)
    assert plain["avg_jct_s"] == results["avg_jct_s"][1]
    assert plain["gpu_hours_held"] == results["gpu_hours_held"][1]
    assert np.isnan(plain["avg_nodes"][0])


def test_a_policy_that_hides_that_it_is_rigid_is_found_out() -> None:
    def fifo(snapshot: Snapshot) -> Allocation:
        return policy_from("fifo")(snapshot)

    trace = jobs((0.0, 1, 100.0, 6, 6))  # makes good use of 4 GPUs
    assert coddl.simulate(trace, "fifo", nodes="1..3", gpus_per_node=2)["jobs"] == 1
    with pytest.raises(UserError, match="rigid = True"):
        coddl.simulate(trace, fifo, nodes="1..3", gpus_per_node=2)


BAD: dict[str, tuple[dict[str, Any], str]] = {  # Any: whatever a notebook passes
    "a range upside down": ({"nodes": "5..2"}, "neither a number nor a range"),
    "words": ({"nodes": "few..many"}, "neither a number nor a range"),
    "no nodes at all": ({"nodes": 0}, "neither a number nor a range"),
    "more than there can be": ({"nodes": "1..9999999"}, "at most"),
    "nodes without GPUs": ({"nodes": "1..2", "gpus_per_node": 0}, "gpus_per_node 0"),
    "a start before it is asked for": ({"nodes": "1..2", "node_start_s": -1.0}, "node_start_s"),
    "no number": ({"nodes": "1..2", "node_idle_s": float("nan")}, "node_idle_s nan"),
    "GPUs beside nodes": ({"nodes": "1..2", "gpus": 4}, "gpus 4"),
    "a cluster beside nodes": ({"nodes": "1..2", "cluster": "2x4"}, "cluster 2x4"),
    "jobs that are too large": ({"nodes": "1..2", "gpus_per_node": 1}, "cannot run on 2 GPUs"),
}


@pytest.mark.parametrize(("given", "message"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        coddl.simulate(policies="afs-l", first=20, **given)


@pytest.mark.parametrize("about", [{"gpus": 4}, {"start_s": 5.0}, {"idle_s": 9.0}])
def test_what_nodes_are_like_is_not_ignored_without_their_number(about: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="not how many there may be"):
        NodeSpec(**about)

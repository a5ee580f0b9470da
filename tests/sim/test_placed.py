"""Runs in which jobs have places."""

from dataclasses import replace

import numpy as np
import pytest

from coddl.core.cluster import Cluster
from coddl.core.registry import placement_from, policy_from
from coddl.core.speed.places import plain
from coddl.sim.run import Run
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, run_case
from coddl.sim.world import MODES, MOVE, Reconfigure, ReconfigureMode
from coddl.testing.builders import speeds_from
from coddl.traces.generators import poisson
from coddl.traces.trace import Trace, trace_of


def events_of(run: Run) -> list[tuple[float, int, int, int]]:
    assert run.events is not None
    return list(zip(*(column.tolist() for column in run.events), strict=True))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("spec", ["afs-l", "srtf", "tiresias-l", "afs-p:lease_h=0.1"])
@pytest.mark.parametrize("per_node", [12, 4])
def test_where_places_cost_nothing_shares_alone_tell_the_story(
    spec: str, mode: ReconfigureMode, per_node: int
) -> None:
    trace = poisson(jobs=60, gpus=12, load=1.2, seed=2)
    reconfigure = Reconfigure(mode, 5.0, 1.0)
    bare = Case(
        RunKey(spec, 12), policy_from(spec), trace, reconfigure=reconfigure, keep_events=True
    )
    cluster, placement = Cluster.of(12, per_node), placement_from("consolidate")
    placed = run_case(replace(bare, cluster=cluster, placement=placement))
    assert events_of(placed) == events_of(run_case(bare))
    assert placed.migrations == 0


@pytest.mark.parametrize("name", ["consolidate", "philly"])
def test_who_queued_for_a_share_starts_as_soon_as_it_has_one(name: str) -> None:
    # Between 150 s and 270 s a job of `philly` would rest, had it asked for a place at 0 s.
    trace = trace_of(
        "two",
        speeds_from([[4.0, 2.0, 1.5, 1.0]]),
        submitted_s=np.zeros(2),
        curve=np.zeros(2, np.int64),
        iterations=np.full(2, 200.0),
        gpus_requested=np.full(2, 4),
    )
    case = Case(RunKey("fifo", 4), policy_from("fifo"), trace, cluster=Cluster.of(4, 4))
    run = run_case(replace(case, placement=placement_from(name)))
    assert run.first_start_s.tolist() == pytest.approx([0.0, 200.0])


def scattering() -> Trace:
    """Two jobs of 3 GPUs for 100 s, and one of 2 GPUs for 400 s: all at once."""
    speeds = speeds_from([[6.0, 3.0, 2.0, 1.5], [2.0, 1.0]])
    by_nodes = np.ones((2, 1, 3))
    by_nodes[:, :, 2] = 1.5  # on two nodes a step takes half as long again
    return trace_of(
        "scattering",
        replace(speeds, known_places=plain(2)._replace(nodes=by_nodes)),
        submitted_s=np.zeros(3),
        curve=np.array([0, 0, 1]),
        iterations=np.array([50.0, 50.0, 400.0]),
        gpus_requested=np.array([3, 3, 2]),
    )


def test_a_scattered_job_is_slower() -> None:
    case = Case(RunKey("fifo", 8), policy_from("fifo"), scattering(), cluster=Cluster.of(8, 4))
    run = run_case(replace(case, placement=placement_from("consolidate")))
    assert run.finish_s.tolist() == pytest.approx([100.0, 100.0, 600.0])


def test_defragmenting_gathers_it_at_the_cost_of_a_pause() -> None:
    case = Case(
        RunKey("fifo", 8),
        policy_from("fifo"),
        scattering(),
        cluster=Cluster.of(8, 4),
        placement=placement_from("consolidate:defragment_h=0.05"),
        reconfigure=Reconfigure("stall", pause_s=10.0),
        keep_events=True,
    )
    run = run_case(case)
    done = (180.0 - 10.0) / 1.5  # iterations, when the first round is held; a start pauses, too
    assert run.finish_s[2] == pytest.approx(180.0 + 10.0 + (400.0 - done))
    assert [event for event in events_of(run) if event[1] == MOVE] == [(180.0, MOVE, 2, 2)]
    assert run.migrations == 1


def test_by_estimate_a_job_takes_two_near_gpus_of_three() -> None:
    """On 3 GPUs of two nodes a step would take 1.5 x 2 s, on 2 of one node it takes 2.5 s."""
    by_nodes = np.array([[[1.0, 1.0, 1.5]]])
    speeds = replace(speeds_from([[5.0, 2.5, 2.0]]), known_places=plain(1)._replace(nodes=by_nodes))
    trace = trace_of(
        "one",
        speeds,
        submitted_s=np.zeros(1),
        curve=np.zeros(1, np.int64),
        iterations=np.array([100.0]),
        gpus_requested=np.array([3]),
    )
    case = Case(RunKey("max-min", 4), policy_from("max-min"), trace, cluster=Cluster.of(4, 2))
    near, far = (
        run_case(replace(case, placement=placement_from(name))).finish_s[0]
        for name in ("estimate", "consolidate")
    )
    assert near == pytest.approx(250.0)
    assert far == pytest.approx(300.0)

"""Jobs with parameter servers in virtual time: how fast they are, and what a change costs."""

from dataclasses import replace

import numpy as np
import pytest

from coddl.core.cluster import Cluster, Node
from coddl.core.parameter_server.costs import ServerCosts, served_by, servers_of
from coddl.core.parameter_server.placement import OptimusPlacement
from coddl.core.parameter_server.tasks import COLUMN, ServedAllocation, ServedPlaced
from coddl.core.placement.placement import Placement, check_placed
from coddl.core.registry import policy_from
from coddl.core.slots import Slots
from coddl.core.snapshot import empty_memory
from coddl.core.speed.table import speeds_of
from coddl.reproduce.optimus import MOST, OneByOne, cluster_of, speeds_with_servers
from coddl.sim.run import Run
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, run_case
from coddl.sim.world import Reconfigure
from coddl.testing import job, snapshot_of
from coddl.traces.files import packaged_speeds
from coddl.traces.philly import AFS_MODELS
from coddl.traces.trace import trace_of

PAUSE_S = 7.0


def run_of(iterations: list[float], cpus: int, placement: Placement | None = None) -> Run:
    """Jobs that come together and train on one worker each; a step takes 8/w + 1.2 w/p."""
    size = len(iterations)
    table = speeds_of(("model",), np.array([[np.inf, 9.2]]), np.ones((1, 2), np.bool_))
    model = servers_of([ServerCosts((8.0, 0.0, 1.2, 0.0, 0.0))], 4)
    trace = trace_of(
        "test",
        served_by(table, model),
        submitted_s=np.zeros(size),
        curve=np.zeros(size, np.int64),
        iterations=np.array(iterations),
        gpus_requested=np.ones(size, np.int64),
    )
    case = Case(
        RunKey("optimus-ps", size),
        policy_from("optimus-ps"),
        trace,
        cluster=Cluster((Node("node", size, cpus=cpus),)),
        placement=placement,
        reconfigure=Reconfigure("stall", 0.0, PAUSE_S),
    )
    return run_case(case)


def test_a_job_is_as_fast_as_its_servers_make_it() -> None:
    assert run_of([10.0], cpus=5).jct_s == pytest.approx([PAUSE_S + 10 * (8 + 1.2)])
    assert run_of([10.0], cpus=8).jct_s == pytest.approx([PAUSE_S + 10 * (8 + 0.6)])


def test_tasks_on_one_node_exchange_for_free() -> None:
    run = run_of([10.0], cpus=5, placement=OptimusPlacement())
    assert run.jct_s == pytest.approx([PAUSE_S + 10 * 8.0])


def test_other_servers_come_with_the_next_slot_and_a_pause() -> None:
    """The short job ends at once; the long one has a second server from 600 s on."""
    run = run_of([1.0, 100.0], cpus=10)
    left = 100.0 - (600.0 - PAUSE_S) / 9.2
    assert run.migrations == 1
    assert run.jct_s[1] == pytest.approx(600.0 + PAUSE_S + left * (8 + 0.6))


def test_the_nine_models_keep_their_curves_with_as_many_servers() -> None:
    speeds, measured = speeds_with_servers(), packaged_speeds(*AFS_MODELS)
    for row, most in enumerate(measured.gpus_max.tolist()):
        shares = np.arange(1, min(most, MOST) + 1)
        off = speeds.step_s[row, shares] / measured.step_s[row, shares]
        assert (np.abs(off - 1.0) < 0.25).all(), speeds.names[row]


# Where {node: workers}, {node: servers} of two jobs go, (2, 2) and (1, 1), on two servers.
ONE_BY_ONE = {
    "by load": (False, [({0: 2}, {1: 2}), ({0: 1}, {0: 1})]),
    "by packing": (True, [({0: 2}, {0: 2}), ({0: 1}, {0: 1})]),
}


@pytest.mark.parametrize(("packs", "want"), ONE_BY_ONE.values(), ids=ONE_BY_ONE.keys())
def test_tasks_are_placed_one_by_one(
    packs: bool, want: list[tuple[dict[int, int], dict[int, int]]]
) -> None:
    snapshot = snapshot_of(16, [job("a"), job("b")])
    snapshot = replace(snapshot, cluster=cluster_of(2, 8), slots=Slots.none(2))
    memory = empty_memory(2)
    memory[:, COLUMN.servers] = (2, 1)
    allocation = ServedAllocation(np.array([2, 1]), memory=memory)
    placed = OneByOne(packs)(snapshot, allocation)
    check_placed(snapshot, allocation, placed)
    assert isinstance(placed, ServedPlaced)
    assert [(placed.slots.row(row), placed.servers.row(row)) for row in (0, 1)] == want

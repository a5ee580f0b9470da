"""`gather`: who is resized is placed anew, who keeps its share stays."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings

from coddl.core.allocation import Allocation
from coddl.core.cluster import Cluster, Node
from coddl.core.jobs import PREFERRED_NODE, JobTable
from coddl.core.placement.close import kept_back, request_of
from coddl.core.placement.estimate import place_speed
from coddl.core.placement.gather import place_gathered
from coddl.core.placement.placement import check_placed
from coddl.core.registry import placement_from
from coddl.core.speed.places import Places, plain
from coddl.testing import job, placing, snapshot_of, twin
from coddl.testing.builders import JobRow
from coddl.testing.placement_contract import Asked

FREE = 0.0  # nodes that cost nothing


def nodes(*gpus: int, island: int = 0) -> Cluster:
    return Cluster(tuple(Node(f"n{i}", n, island_gpus=island) for i, n in enumerate(gpus)))


def kinds(*sizes: tuple[int, ...]) -> Cluster:
    """Each tuple a kind, each number a node."""
    flat = [(kind, gpus) for kind, sizes_ in enumerate(sizes) for gpus in sizes_]
    names = tuple(f"kind-{kind}" for kind in range(len(sizes)))
    return Cluster(tuple(Node(f"n{i}", n, kind=kind) for i, (kind, n) in enumerate(flat)), names)


def far(curves: int, cost: float) -> Places:
    """Places where each further node adds `cost` to the factor on a step's time."""
    by_nodes = np.array([1.0, *(1.0 + cost * further for further in range(4))])
    return plain(curves)._replace(nodes=np.broadcast_to(by_nodes, (curves, 1, 5)).copy())


class Case(NamedTuple):
    cluster: Cluster
    rows: list[JobRow]
    shares: list[int]
    want: list[dict[int, int]]  # by island
    cost: float = 0.1


def new() -> JobRow:
    return job("new", 1, 99)


def at(sits: Mapping[int, int]) -> JobRow:
    return job("old", 1, 99, sits=dict(sits))


# A job alone takes 1, 1/2, 1/3 … of the time on 1, 2, 3 … GPUs.
CASES = {
    "who keeps its share stays, though scattered": Case(
        nodes(4, 4), [at({0: 1, 1: 1})], [2], [{0: 1, 1: 1}]
    ),
    "who grows comes together": Case(nodes(4, 4), [at({0: 1, 1: 1})], [4], [{0: 4}]),
    "who shrinks comes together": Case(nodes(4, 4), [at({0: 2, 1: 2})], [3], [{0: 3}]),
    "on a node of its own if they are as good": Case(nodes(4, 4), [at({1: 2})], [3], [{1: 3}]),
    "to another node rather than to cross": Case(
        nodes(2, 4), [at({0: 2}), at({1: 1})], [3, 1], [{1: 3}, {1: 1}]
    ),
    "also where it is not known what nodes cost": Case(
        nodes(2, 4), [at({0: 2}), at({1: 1})], [3, 1], [{1: 3}, {1: 1}], FREE
    ),
    "to what another leaves": Case(nodes(2, 4), [at({0: 2}), at({1: 4})], [4, 1], [{1: 4}, {0: 1}]),
    "what fits on a node before what does not": Case(
        nodes(4, 4), [new(), new()], [5, 3], [{0: 1, 1: 4}, {0: 3}]
    ),
    "one that must cross keeps its nodes": Case(
        nodes(4, 4, 4), [at({1: 4, 2: 2})], [7], [{1: 4, 2: 3}]
    ),
    "and gives up the node where it has fewest": Case(
        nodes(4, 4, 4), [at({0: 2, 1: 4, 2: 1})], [6], [{0: 2, 1: 4}]
    ),
    "less than its share, if that is faster: 1/2 < (1 + 0.6)/3": Case(
        nodes(2, 2), [new()], [3], [{0: 2}], 0.6
    ),
    "of the widest node, if it comes to less": Case(
        nodes(1, 3, 1), [at({0: 1, 1: 1, 2: 1})], [5], [{1: 3}], 0.9
    ),
    "its own islands first": Case(nodes(8, island=4), [at({1: 2})], [3], [{1: 3}]),
    "the kind that is free in one place": Case(
        kinds((4, 2), (4,)), [at({1: 2}), at({0: 1})], [4, 1], [{2: 4}, {0: 1}]
    ),
    "who can't span nodes is where all is": Case(
        nodes(2, 4), [job("old", 1, 9, sits={0: 2}, spans=False)], [3], [{1: 3}]
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_gather(case: Case) -> None:
    places = far(len(case.rows), case.cost)
    if len(case.cluster.kinds) > 1:
        places = places._replace(kinds=np.ones((len(case.rows), len(case.cluster.kinds))))
    snapshot = snapshot_of(case.cluster, case.rows, places=places)
    allocation = Allocation(np.array(case.shares))
    placed = placement_from("gather")(snapshot, allocation)
    check_placed(snapshot, allocation, placed)
    assert [placed.slots.row(row) for row in range(len(case.rows))] == case.want
    assert set(placed.why) == set(np.flatnonzero(placed.shares < allocation.gpus).tolist())


def test_workers_that_are_parked_are_preferred() -> None:
    snapshot = snapshot_of(nodes(2, 4), [new()])
    ints = snapshot.jobs.ints.copy()
    ints[PREFERRED_NODE] = 1
    snapshot = replace(snapshot, jobs=JobTable(snapshot.jobs.floats, ints))
    placed = placement_from("gather")(snapshot, Allocation(np.array([2])))
    assert placed.slots.row(0) == {1: 2}


@given(asked=placing())
@settings(max_examples=40, deadline=None)
def test_the_compiled_placement_equals_its_twin(asked: Asked) -> None:
    snapshot, allocation = asked
    request = request_of(snapshot, allocation, np.lexsort((snapshot.jobs.id, -allocation.gpus)))
    rest = (request, kept_back(snapshot))
    columns, slots = snapshot.cluster.columns, snapshot.slots
    assert slots is not None
    compiled = place_gathered(columns, slots, *rest, place_speed(snapshot))
    plain_ = twin(place_gathered)(columns, slots, *rest, place_speed(snapshot))
    assert all(map(np.array_equal, compiled, plain_))

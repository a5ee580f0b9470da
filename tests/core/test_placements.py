"""Every placement of the registry keeps the contract; `consolidate` by hand."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings

from coddl.core.allocation import Allocation
from coddl.core.cluster import Cluster, Node
from coddl.core.invariants import InvalidAllocation
from coddl.core.placement.close import PlacementRequest, place_close
from coddl.core.placement.placement import Placed, Placement, check_placed
from coddl.core.registry import PLACEMENTS, placement_from
from coddl.core.slots import Slots
from coddl.core.speed.places import Places, plain
from coddl.testing import PlacementContract, job, placing, snapshot_of, twin
from coddl.testing.builders import JobRow
from coddl.testing.placement_contract import Asked

MOVE: Mapping[str, str] = {}  # those that move jobs which keep their share, and why


class TestEveryPlacement(PlacementContract):
    @pytest.fixture(scope="class", params=sorted(PLACEMENTS.keys() - MOVE))
    @classmethod
    def placement(cls, request: pytest.FixtureRequest) -> Placement:
        return placement_from(request.param)


def nodes(*gpus: int, island: int = 0) -> Cluster:
    return Cluster(tuple(Node(f"n{i}", n, island_gpus=island) for i, n in enumerate(gpus)))


def racks(*sizes: tuple[int, ...]) -> Cluster:
    """Each tuple a rack, each number a node."""
    flat = [(rack, gpus) for rack, sizes_ in enumerate(sizes) for gpus in sizes_]
    return Cluster(tuple(Node(f"n{i}", n, rack=rack) for i, (rack, n) in enumerate(flat)))


def kinds(*sizes: tuple[int, ...]) -> Cluster:
    """Each tuple a kind, each number a node; all in one rack."""
    flat = [(kind, gpus) for kind, sizes_ in enumerate(sizes) for gpus in sizes_]
    names = tuple(f"kind-{kind}" for kind in range(len(sizes)))
    return Cluster(tuple(Node(f"n{i}", n, kind=kind) for i, (kind, n) in enumerate(flat)), names)


class Case(NamedTuple):
    cluster: Cluster
    rows: list[JobRow]
    shares: list[int] | list[list[int]]
    want: list[dict[int, int]]  # by island


def new() -> JobRow:
    return job("new", 1, 99)


def at(sits: dict[int, int]) -> JobRow:
    return job("old", 1, 99, sits=sits)


CONSOLIDATE = {
    "a job takes the node that it fills best": Case(nodes(8, 3, 4), [new()], [3], [{1: 3}]),
    "the largest goes first": Case(nodes(4, 4), [new(), new()], [1, 4], [{1: 1}, {0: 4}]),
    "of equals the first": Case(nodes(1, 2), [new(), new()], [1, 1], [{0: 1}, {1: 1}]),
    "a large one begins where most is free": Case(nodes(2, 4, 3), [new()], [6], [{0: 2, 1: 4}]),
    "and ends where the rest fits best": Case(nodes(3, 4, 1), [new()], [5], [{1: 4, 2: 1}]),
    "in the rack that it fills best": Case(racks((4, 4, 4), (4, 4)), [new()], [8], [{3: 4, 4: 4}]),
    "though another rack has larger nodes": Case(
        racks((5, 2), (3, 3)), [new()], [6], [{2: 3, 3: 3}]
    ),
    "in several racks if it must": Case(racks((4,), (4,)), [new()], [6], [{0: 4, 1: 2}]),
    "on the island that it fills best": Case(nodes(8, island=4), [new()], [4], [{0: 4}]),
    "islands of a node are filled whole first": Case(
        nodes(8, island=4), [at({0: 2}), new()], [2, 3], [{0: 2}, {1: 3}]
    ),
    "and split if they must": Case(
        nodes(8, island=4), [at({0: 1}), new()], [1, 6], [{0: 1}, {0: 2, 1: 4}]
    ),
    "who stays keeps a scattered place": Case(nodes(4, 4), [at({0: 1, 1: 1})], [2], [{0: 1, 1: 1}]),
    "who grows does so beside itself": Case(nodes(4, 8), [at({1: 2})], [6], [{1: 6}]),
    "on each of its nodes": Case(nodes(2, 4, 4), [at({1: 3, 2: 3})], [8], [{1: 4, 2: 4}]),
    "then in its rack": Case(racks((4,), (4, 4)), [at({1: 4})], [6], [{1: 4, 2: 2}]),
    "a rack without room is left": Case(racks((4, 1), (4,)), [at({0: 4})], [6], [{0: 4, 2: 2}]),
    "who shrinks leaves where it has least": Case(nodes(4, 4), [at({0: 1, 1: 3})], [3], [{1: 3}]),
    "of a node, the island where it has least": Case(
        nodes(8, island=4), [at({0: 1, 1: 3})], [3], [{1: 3}]
    ),
    "what one leaves another takes": Case(
        nodes(4, 4), [at({0: 4, 1: 4}), new()], [4, 4], [{0: 4}, {1: 4}]
    ),
    "who stops leaves": Case(nodes(4), [at({0: 4}), new()], [0, 4], [{}, {0: 4}]),
    "one kind rather than two": Case(kinds((4, 1), (2, 2)), [new()], [4], [{0: 4}]),
    "one kind, though of more nodes": Case(kinds((3,), (2, 2)), [new()], [4], [{1: 2, 2: 2}]),
    "two kinds if it must": Case(kinds((3,), (2,)), [new()], [5], [{0: 3, 1: 2}]),
    "of each kind what was decided": Case(kinds((4,), (4,)), [new()], [[1, 2]], [{0: 1, 1: 2}]),
    "who shrinks by kind keeps the other": Case(
        kinds((4,), (4,)), [at({0: 2, 1: 2})], [[0, 2]], [{1: 2}]
    ),
    "who grows by kind stays on its node": Case(
        kinds((4, 4), (4,)), [at({1: 2, 2: 1})], [[3, 1]], [{1: 3, 2: 1}]
    ),
    "who grows takes GPUs of its own kind": Case(
        kinds((4, 4), (2,)), [at({0: 4})], [6], [{0: 4, 1: 2}]
    ),
    "or of another in its rack if it must": Case(
        kinds((4,), (2,)), [at({0: 4})], [6], [{0: 4, 1: 2}]
    ),
    "who can't span grows where it is": Case(
        nodes(3, 4), [job("old", 1, 9, sits={1: 2}, spans=False)], [3], [{1: 3}]
    ),
    "and shrinks there": Case(
        nodes(1, 4), [job("old", 1, 9, sits={1: 2}, spans=False)], [1], [{1: 1}]
    ),
}


@pytest.mark.parametrize("case", CONSOLIDATE.values(), ids=CONSOLIDATE.keys())
def test_consolidate(case: Case) -> None:
    snapshot = snapshot_of(case.cluster, case.rows)
    allocation = Allocation(np.array(case.shares))
    placed = placement_from("consolidate")(snapshot, allocation)
    check_placed(snapshot, allocation, placed)
    assert [placed.slots.row(row) for row in range(len(case.rows))] == case.want


def far(curves: int, *, nodes: float = 1.0, racks: float = 1.0, nic: float = 0.0) -> Places:
    """Places where each further node, a second rack, a further job on a NIC cost so much."""
    plain_ = plain(curves)
    by_nodes = np.array([1.0, *(1.0 + nodes * further for further in range(4))])
    return plain_._replace(
        nodes=np.broadcast_to(by_nodes, (curves, 1, 5)).copy(),
        racks=np.full((curves, 1), 1.0 + racks),
        network=np.full((curves, 1), nic),
    )


class Choice(NamedTuple):
    cluster: Cluster
    rows: list[JobRow]
    shares: list[int]
    places: Places
    want: list[dict[int, int]]


# A job alone takes 1, 1/2, 1/3 … of the time on 1, 2, 3 … GPUs.
ESTIMATE = {
    "where places cost nothing, as close as can be": Choice(
        nodes(2, 2), [new()], [3], far(1, nodes=0.0), [{0: 2, 1: 1}]
    ),
    "two in a node against three in two: 1/2 < 1.6/3": Choice(
        nodes(2, 2), [new()], [3], far(1, nodes=0.6), [{0: 2}]
    ),
    "and the other way round: 1.4/3 < 1/2": Choice(
        nodes(2, 2), [new()], [3], far(1, nodes=0.4), [{0: 2, 1: 1}]
    ),
    "never fewer than it can run on": Choice(
        nodes(2, 2), [job("a", 3, 9)], [3], far(1, nodes=9.0), [{0: 2, 1: 1}]
    ),
    "who would be slower for it does not grow": Choice(
        nodes(2, 2), [at({0: 2})], [3], far(1, nodes=0.6), [{0: 2}]
    ),
    "who has started far stays": Choice(
        nodes(4, 4), [at({0: 1, 1: 1})], [2], far(1, nodes=9.0), [{0: 1, 1: 1}]
    ),
    "three nodes of a rack against two of two: 1 + 2 x 0.1 < (1 + 0.1)(1 + 0.5)": Choice(
        racks((4, 2), (2, 2, 2)), [new()], [6], far(1, nodes=0.1, racks=0.5), [{0: 4, 1: 2}]
    ),
    "a busy NIC: (1 + 0.2)(1 + 1)/4 > 1/2": Choice(
        nodes(3, 3, 2),
        [at({0: 1, 1: 2}), new()],
        [3, 4],
        far(2, nodes=0.2, nic=1.0),
        [{0: 1, 1: 2}, {0: 2}],
    ),
    "a NIC with room for both: (1 + 0.2)/4 < 1/2": Choice(
        nodes(3, 3, 2),
        [at({0: 1, 1: 2}), new()],
        [3, 4],
        far(2, nodes=0.2, nic=0.0),
        [{0: 1, 1: 2}, {0: 2, 2: 2}],
    ),
    "whoever shall be on one node is": Choice(
        nodes(2, 3), [job("a", 1, 9, spans=False)], [3], far(1), [{1: 3}]
    ),
}


@pytest.mark.parametrize("case", ESTIMATE.values(), ids=ESTIMATE.keys())
def test_estimate(case: Choice) -> None:
    snapshot = snapshot_of(case.cluster, case.rows, places=case.places)
    allocation = Allocation(np.array(case.shares))
    placed = placement_from("estimate")(snapshot, allocation)
    check_placed(snapshot, allocation, placed)
    assert [placed.slots.row(row) for row in range(len(case.rows))] == case.want
    assert set(placed.why) == set(np.flatnonzero(placed.shares < allocation.gpus).tolist())


def test_estimate_takes_the_faster_kind() -> None:
    places = plain(1, 2)._replace(kinds=np.array([[3.0, 1.0]]))
    snapshot = snapshot_of(kinds((4,), (8,)), [new()], places=places)
    placed = placement_from("estimate")(snapshot, Allocation(np.array([4])))
    assert placed.slots.row(0) == {1: 4}


class Pair(NamedTuple):
    rows: list[JobRow]
    packed_with: list[int]
    want: list[dict[int, int]]


PAIRS = {
    "two new ones share a place": Pair([new(), new()], [1, 0], [{0: 2}, {0: 2}]),
    "a new one comes to who is there": Pair([new(), at({1: 2})], [1, 0], [{1: 2}, {1: 2}]),
    "who is there first is not moved": Pair([at({1: 2}), new()], [1, 0], [{1: 2}, {1: 2}]),
    "a pair stays": Pair([at({1: 2}), at({1: 2})], [1, 0], [{1: 2}, {1: 2}]),
    "when a pair parts, the second moves": Pair(
        [at({1: 2}), at({1: 2})], [-1, -1], [{1: 2}, {0: 2}]
    ),
    "others are placed around it": Pair(
        [new(), new(), at({0: 2})], [1, 0, -1], [{1: 2}, {1: 2}, {0: 2}]
    ),
}


@pytest.mark.parametrize("case", PAIRS.values(), ids=PAIRS.keys())
def test_jobs_that_share_gpus_are_placed_as_one(case: Pair) -> None:
    snapshot = snapshot_of(nodes(2, 2), case.rows)
    allocation = Allocation(np.full(len(case.rows), 2), packed_with=np.array(case.packed_with))
    placed = placement_from("consolidate")(snapshot, allocation)
    check_placed(snapshot, allocation, placed)
    assert [placed.slots.row(row) for row in range(len(case.rows))] == case.want


def test_a_pair_is_not_cut_to_what_is_too_little_for_one_of_them() -> None:
    rows = [job("a", 1, 3), job("b", 3, 3)]
    snapshot = replace(snapshot_of(nodes(3), rows), reserved=np.array([1]))
    allocation = Allocation(np.array([3, 3]), packed_with=np.array([1, 0]))
    placed = placement_from("consolidate")(snapshot, allocation)
    assert [placed.slots.row(row) for row in (0, 1)] == [{}, {}]
    check_placed(snapshot, allocation, placed)


@given(asked=placing())
@settings(max_examples=60, deadline=None)
def test_the_compiled_placement_equals_its_twin(asked: Asked) -> None:
    snapshot, allocation = asked
    columns, slots, jobs = snapshot.cluster.columns, snapshot.slots, snapshot.jobs
    assert slots is not None
    order = np.lexsort((jobs.id, -allocation.gpus))
    wishes = PlacementRequest(allocation.by_kind, order, jobs.spans, jobs.preferred_node)
    reserved = np.zeros(len(columns.island_gpus), np.int64)
    compiled = place_close(columns, slots, wishes, reserved)
    plain = twin(place_close)(columns, slots, wishes, reserved)
    assert all(map(np.array_equal, compiled, plain))


@pytest.mark.parametrize("name", sorted(PLACEMENTS))
def test_who_waits_for_one_node_is_told_so(name: str) -> None:
    rows = [at({0: 1}), at({1: 1}), job("new", 1, 99, spans=False)]
    placed = placement_from(name)(snapshot_of(nodes(4, 4), rows), Allocation(np.array([1, 1, 4])))
    why = placed.waiting.of(2)
    assert why is not None
    assert why.code == "Topology"


WRONG = {
    "an island that is not there": ([4], {2: 4}, "none of the 2"),
    "too many of an island": ([5], {0: 5}, "island 0 has 4 GPUs, and 5 are taken"),
    "more than its share": ([3], {0: 4}, "is to have 3 GPUs and is given 4"),
    "another kind than was decided": ([[1, 2]], {0: 2, 1: 1}, "is to have [1 2] of each kind"),
    "nothing, and no reason": ([4], {}, "has no reason"),
}


@pytest.mark.parametrize(("shares", "slots", "because"), WRONG.values(), ids=WRONG.keys())
def test_what_can_not_be_carried_out_is_refused(
    shares: list[int], slots: dict[int, int], because: str
) -> None:
    snapshot = snapshot_of(kinds((4,), (4,)), [new()])
    with pytest.raises(InvalidAllocation) as raised:
        check_placed(snapshot, Allocation(np.array(shares)), Placed(Slots.of([slots])))
    assert because in raised.value.because


def test_what_is_kept_for_somebody_is_not_taken() -> None:
    snapshot = snapshot_of(nodes(4, 4), [new()])
    snapshot = replace(snapshot, reserved=np.array([1, 0]))
    placed = placement_from("consolidate")(snapshot, Allocation(np.array([4])))
    assert placed.slots.row(0) == {1: 4}

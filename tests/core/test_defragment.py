"""Moves that gather scattered jobs: when, which, and what they say."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from coddl.core.allocation import Allocation
from coddl.core.cluster import Cluster, Node
from coddl.core.placement.defragment import Defragmenting
from coddl.core.placement.placement import Placed, Placement, check_placed
from coddl.core.registry import placement_from
from coddl.core.snapshot import Snapshot
from coddl.core.speed.places import Places, plain
from coddl.testing import PlacementContract, job, snapshot_of
from coddl.testing.builders import JobRow


class TestDefragmenting(PlacementContract):
    moves = True

    @pytest.fixture(scope="class", params=["consolidate", "estimate", "gather"])
    @classmethod
    def placement(cls, request: pytest.FixtureRequest) -> Placement:
        return Defragmenting(placement_from(request.param), 500.0, 4)  # it is asked at 1000 s


def far(curves: int) -> Places:
    """Places where a step takes half as long again on two nodes."""
    return plain(curves)._replace(nodes=np.tile([1.0, 1.0, 1.5], (curves, 1, 1)))


def at(sits: dict[int, int], **options: float) -> JobRow:
    """A job with 1,000 iterations left, of a second each on one GPU, 1/n on n."""
    return job("a", 1, 8, sits=sits, left=options.pop("left", 1000.0), **options)  # type: ignore[arg-type]


def picture(nodes: int, rows: list[JobRow], now_s: float = 3600.0) -> Snapshot:
    cluster = Cluster(tuple(Node(f"n{i}", 4) for i in range(nodes)))
    return snapshot_of(cluster, rows, now_s=now_s, places=far(len(rows)))


class Case(NamedTuple):
    nodes: int  # of 4 GPUs
    rows: list[JobRow]
    want: list[dict[int, int]]
    why: Mapping[int, str]
    moves: int = 8


SCATTERED = {0: 2, 1: 2}
CASES = {
    "who is scattered is gathered": Case(
        # 1000 steps of 1.5/4 s take 375 s, of 1/4 s 250 s.
        2,
        [at(SCATTERED)],
        [{0: 4}],
        {0: "from 2 nodes to 1: steps 1.50x faster, 125 s saved"},
    ),
    "not for less than its pause": Case(2, [at(SCATTERED, pause_s=126.0)], [SCATTERED], {}),
    "but for more": Case(
        2,
        [at(SCATTERED, pause_s=100.0)],
        [{0: 4}],
        {0: "from 2 nodes to 1: steps 1.50x faster, 25 s saved"},
    ),
    "an hour counts of a job of unknown length": Case(
        2,
        [at(SCATTERED, left=np.nan)],
        [{0: 4}],
        {0: "from 2 nodes to 1: steps 1.50x faster, 1200 s saved if an hour is left"},
    ),
    "who may not be stopped is not moved": Case(2, [at(SCATTERED, pinned=True)], [SCATTERED], {}),
    "nor who has not settled": Case(2, [at(SCATTERED, settled=False)], [SCATTERED], {}),
    "who lies well stays": Case(2, [at({0: 4})], [{0: 4}], {}),
    "a smaller one makes room": Case(
        2,
        [at({0: 3, 1: 1}), at({0: 1}), at({1: 1})],
        [{0: 4}, {1: 1}, {1: 1}],
        {
            0: "from 2 nodes to 1: steps 1.50x faster, 125 s saved",
            1: "to make room for job 0",
        },
    ),
    "if it may be moved": Case(
        2,
        [at({0: 3, 1: 1}), at({0: 1}, pinned=True), at({1: 1})],
        [{1: 4}, {0: 1}, {0: 1}],
        {
            0: "from 2 nodes to 1: steps 1.50x faster, 125 s saved",
            2: "to make room for job 0",
        },
    ),
    "not if both pauses cost more": Case(
        2,
        [at({0: 3, 1: 1}, pause_s=70.0), at({0: 1}, pause_s=70.0), at({1: 1}, pause_s=70.0)],
        [{0: 3, 1: 1}, {0: 1}, {1: 1}],
        {},
    ),
    "who gains most comes first, and few are moved at a time": Case(
        4,
        [at({0: 2, 1: 2}), at({2: 2, 3: 2}, left=2000.0)],
        [{0: 2, 1: 2}, {2: 4}],
        {1: "from 2 nodes to 1: steps 1.50x faster, 250 s saved"},
        moves=1,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_round(case: Case) -> None:
    snapshot = picture(case.nodes, case.rows)
    allocation = Allocation(snapshot.jobs.gpus)
    placement = placement_from(f"consolidate:defragment_h=1,moves={case.moves}")
    placed = placement(snapshot, allocation)
    check_placed(snapshot, allocation, placed)
    assert [placed.slots.row(row) for row in range(len(case.rows))] == case.want
    assert dict(placed.why) == case.why


@pytest.mark.parametrize(
    ("now_s", "is_round", "next_s"),
    [
        (0.0, False, 3600.0),  # nothing has had time to scatter
        (1800.0, False, 3600.0),
        (3600.0, True, 7200.0),
        (3600.5, True, 7200.0),  # a driver in real time is late
        (3602.0, False, 7200.0),
        (7200.0, True, 10800.0),
    ],
)
def test_a_round_is_held_once_a_period(now_s: float, is_round: bool, next_s: float) -> None:
    snapshot = picture(2, [at(SCATTERED)], now_s)
    placed = placement_from("consolidate:defragment_h=1")(snapshot, Allocation(snapshot.jobs.gpus))
    assert (placed.slots.row(0) != SCATTERED) == is_round
    assert placed.wake_at_s == next_s


def test_where_nobody_is_scattered_nobody_is_woken() -> None:
    snapshot = picture(2, [at({0: 4}), at({1: 1})])
    placed = placement_from("consolidate:defragment_h=1")(snapshot, Allocation(snapshot.jobs.gpus))
    assert placed.wake_at_s == np.inf


def test_without_a_period_nobody_is_moved_or_woken() -> None:
    snapshot = picture(2, [at(SCATTERED)])
    placed = placement_from("consolidate")(snapshot, Allocation(snapshot.jobs.gpus))
    assert placed.slots.row(0) == SCATTERED
    assert placed.wake_at_s == np.inf


def test_who_shares_its_gpus_is_not_moved() -> None:
    snapshot = picture(2, [at(SCATTERED), at(SCATTERED)])
    allocation = Allocation(snapshot.jobs.gpus, packed_with=np.array([1, 0]))
    placed = placement_from("consolidate:defragment_h=1")(snapshot, allocation)
    assert not placed.why


def test_who_is_scattered_over_fast_gpus_is_gathered_too() -> None:
    """Two nodes of GPUs that take half the time: 0.75 of a step there, 0.5 on one of them."""
    cluster = Cluster((Node("a", 1), Node("b", 4, kind=1), Node("c", 4, kind=1)), ("old", "new"))
    places = far(1)._replace(kinds=np.array([[1.0, 0.5]]))
    snapshot = snapshot_of(cluster, [at({1: 2, 2: 2})], now_s=3600.0, places=places)
    placed = placement_from("consolidate:defragment_h=1")(snapshot, Allocation(snapshot.jobs.gpus))
    assert placed.slots.row(0) == {1: 4}


def test_others_are_moved_beside_a_pair() -> None:
    snapshot = picture(3, [at({0: 2, 1: 2}), at({0: 1}), at({0: 1})])
    allocation = Allocation(snapshot.jobs.gpus, packed_with=np.array([-1, 2, 1]))
    placed = placement_from("consolidate:defragment_h=1")(snapshot, allocation)
    check_placed(snapshot, allocation, placed)
    assert [placed.slots.row(row) for row in range(3)] == [{1: 4}, {0: 1}, {0: 1}]


def test_what_the_placement_keeps_for_somebody_is_not_taken() -> None:
    def reserving(snapshot: Snapshot, _: Allocation) -> Placed:
        assert snapshot.slots is not None
        return Placed(snapshot.slots, reserved=np.array([1, 0]))

    snapshot = picture(2, [at(SCATTERED)])
    allocation = Allocation(snapshot.jobs.gpus)
    placed = Defragmenting(reserving, 3600.0, 8)(snapshot, allocation)
    check_placed(snapshot, allocation, placed)
    assert placed.slots.row(0) == {1: 4}


def test_gpus_kept_for_somebody_are_not_taken() -> None:
    snapshot = replace(picture(2, [at(SCATTERED)]), reserved=np.array([1, 0]))
    allocation = Allocation(snapshot.jobs.gpus)
    placed = placement_from("consolidate:defragment_h=1")(snapshot, allocation)
    assert placed.slots.row(0) == {1: 4}

"""What every placement promises, as properties: inherit PlacementContract, give it yours."""

from dataclasses import replace
from typing import ClassVar, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coddl.core.allocation import Allocation, because, packed_with_of
from coddl.core.cluster import Cluster, Node
from coddl.core.columns import IntColumn, IntMatrix
from coddl.core.parameter_server.tasks import ServedPlaced
from coddl.core.placement.placement import Placed, Placement, check_placed, on_one_node
from coddl.core.plan import differs
from coddl.core.slots import Slots
from coddl.core.snapshot import Snapshot
from coddl.core.speed.places import Places
from coddl.testing.builders import JobRow, snapshot_of
from coddl.testing.contract import SETTINGS, job_rows


class Asked(NamedTuple):
    """What a placement is asked: a snapshot, and what its rows are to have."""

    snapshot: Snapshot
    allocation: Allocation


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Any few nodes: uneven, with islands, in racks, of one kind or two, some out of order."""
    kinds = draw(st.sampled_from([1, 1, 2]))
    nodes = []
    for at in range(draw(st.integers(1, 6))):
        gpus = draw(st.integers(1, 8)) if draw(st.integers(0, 9)) else 0
        node = Node(
            f"n{at}",
            gpus,
            kind=draw(st.integers(0, kinds - 1)),
            rack=draw(st.integers(0, 2)),
            island_gpus=draw(st.sampled_from([0, 0, 1, 2, 4])),
        )
        nodes.append(node)
    return Cluster(tuple(nodes), kinds=("new", "old")[:kinds])


def any_places(curves: int, kinds: int, seed: int) -> Places:
    """Places that cost something, by chance."""
    chance = np.random.default_rng(seed)
    return Places(
        1.0 + chance.random((curves, 13, 4)) * np.arange(4),
        1.0 + chance.random((curves, 13)),
        1.0 + chance.random((curves, 13)),
        chance.random((curves, 13)),
        1.0 + chance.random((curves, kinds)),
        1.0 + chance.random((curves, curves)),
        chance.random(curves),
    )


@st.composite
def placed_rows(draw: st.DrawFn, rows: list[JobRow], cluster: Cluster) -> list[JobRow]:
    """The rows, some of those that have started on GPUs that no other row has."""
    columns, out = cluster.columns, []
    free = columns.island_gpus.copy()
    for row in rows:
        sits: dict[int, int] = {}
        lone = not draw(st.integers(0, 7))
        islands = draw(st.permutations(range(len(free))))
        if lone and islands:
            islands = [
                i for i in islands if columns.island_node[i] == columns.island_node[islands[0]]
            ]
        want = draw(st.integers(row.gpus_min, row.gpus_max))
        for island in islands:
            if some := min(want - sum(sits.values()), int(free[island])):
                sits[island] = draw(st.integers(1, some))
        held = sum(sits.values())
        if row.started_s is None or not row.gpus_min <= held or draw(st.booleans()):
            sits, held = {}, 0
        for island, gpus in sits.items():
            free[island] -= gpus
        out.append(replace(row, sits=sits, holds=held, spans=not lone))
    return out


@st.composite
def placing(draw: st.DrawFn) -> Asked:
    """Any small cluster, jobs on some of it, some GPUs kept back, and shares that it can hold."""
    cluster = draw(clusters())
    rows = [draw(job_rows(str(i))) for i in range(draw(st.integers(0, 10)))]
    rows = draw(placed_rows(rows, cluster))
    places = any_places(len(rows), len(cluster.kinds), draw(st.integers(0, 99)))
    snapshot = snapshot_of(cluster, rows, now_s=1000.0, places=places)
    assert snapshot.slots is not None
    held = snapshot.slots.by_kind(cluster.columns, len(cluster.kinds))
    free = cluster.columns.island_gpus - snapshot.slots.in_use(cluster.columns)
    kept = [draw(st.integers(0, gpus)) if not draw(st.integers(0, 4)) else 0 for gpus in free]
    reserved = Slots.of([{at: gpus for at, gpus in enumerate(kept) if gpus}])
    snapshot = replace(snapshot, reserved=np.array(kept, np.int64))
    shares = np.zeros_like(held)
    left = cluster.gpus - reserved.by_kind(cluster.columns, len(cluster.kinds))[0]
    for row in draw(st.permutations(range(len(rows)))):
        wish = draw(st.sampled_from(["stay", "stay", "none", "any"]))
        if wish == "stay" and (held[row] <= left).all():
            shares[row] = held[row]
        elif wish == "any":
            most = min(rows[row].gpus_max, int(left.sum()))
            gpus = draw(st.integers(rows[row].gpus_min, most)) if most >= rows[row].gpus_min else 0
            for kind in range(len(left)):
                shares[row, kind] = min(gpus - shares[row].sum(), left[kind])
        left -= shares[row]
    by_kind = len(cluster.kinds) > 1 and draw(st.booleans())
    packed_with = draw(grouped(rows, shares)) if draw(st.booleans()) else None
    given_gpus: IntColumn = shares.sum(axis=1)
    why = because(given_gpus == 0, "Resources", "others hold the GPUs")
    return Asked(
        snapshot, Allocation(shares if by_kind else given_gpus, why, packed_with=packed_with)
    )


@st.composite
def grouped(draw: st.DrawFn, rows: list[JobRow], shares: IntMatrix) -> IntColumn:
    """Who shares whose GPUs: some rows that would get none get a mate's share, filled in."""
    firsts = np.arange(len(rows))
    for row in range(len(rows)):
        gpus = int(shares[row].sum())
        suit = [
            other
            for other, job in enumerate(rows)
            if not shares[other].any() and job.gpus_min <= gpus <= job.gpus_max
        ]
        if gpus > 0 and (firsts == firsts[row]).sum() == 1 and suit and draw(st.booleans()):
            mates = draw(st.lists(st.sampled_from(suit), min_size=1, max_size=3, unique=True))
            firsts[[row, *mates]], shares[mates] = min(row, *mates), shares[row]
    return packed_with_of(firsts)


class PlacementContract:
    """The promises. A subclass has a class-scoped fixture `placement`.

    class TestMine(PlacementContract):
        @pytest.fixture(scope="class")
        @classmethod
        def placement(cls):
            return mine
    """

    moves: ClassVar[bool] = False  # True: it may move a job that keeps its share

    @pytest.fixture(scope="class")
    @classmethod
    def placement(cls) -> Placement:
        """The placement under test."""
        raise NotImplementedError("give the contract a placement: a fixture named `placement`")

    @given(asked=placing())
    @SETTINGS
    def test_what_is_placed_can_be_carried_out_and_explains_itself(
        self, placement: Placement, asked: Asked
    ) -> None:
        placed = on_one_node(asked.snapshot, placement(*asked))
        check_placed(*asked, placed)
        assert placed.wake_at_s > asked.snapshot.now_s

    @given(asked=placing())
    @SETTINGS
    def test_islands_of_a_row_are_sorted_and_named_once(
        self, placement: Placement, asked: Asked
    ) -> None:
        slots = placement(*asked).slots
        for row in range(slots.rows):
            islands = slots.island[slots.first[row] : slots.first[row + 1]]
            assert (np.diff(islands) > 0).all()

    @given(asked=placing())
    @SETTINGS
    def test_who_keeps_its_share_stays_where_it_is(
        self, placement: Placement, asked: Asked
    ) -> None:
        if self.moves:
            pytest.skip("the placement makes no such promise")
        before = asked.snapshot.slots
        assert before is not None
        same = (asked.allocation.gpus == asked.snapshot.jobs.gpus) & (asked.allocation.gpus > 0)
        if asked.allocation.shares.ndim == 2:
            held = before.by_kind(asked.snapshot.cluster.columns, asked.allocation.shares.shape[1])
            same &= (asked.allocation.shares == held).all(axis=1)
        if asked.allocation.packed_with is not None:
            same &= asked.allocation.packed_with < 0  # it may have to come to its mate
        assert not (same & differs(before, placement(*asked).slots)).any()

    @given(asked=placing())
    @SETTINGS
    def test_rows_that_share_gpus_sit_on_the_same(self, placement: Placement, asked: Asked) -> None:
        slots, packed_with = placement(*asked).slots, asked.allocation.packed_with
        if packed_with is not None:
            assert not ((packed_with >= 0) & differs(slots, slots.take(packed_with))).any()

    @given(asked=placing())
    @SETTINGS
    def test_the_same_question_gets_the_same_answer(
        self, placement: Placement, asked: Asked
    ) -> None:
        first, second = placement(*asked), placement(*asked)
        assert _told(first) == _told(second)

    @given(asked=placing())
    @SETTINGS
    def test_the_question_stays_as_it_was(self, placement: Placement, asked: Asked) -> None:
        snapshot, allocation = asked
        assert snapshot.slots is not None
        columns = (*snapshot.slots, snapshot.jobs.ints, allocation.shares)
        before = [column.copy() for column in columns]
        placement(*asked)
        assert all(map(np.array_equal, before, columns))


def _told(placed: Placed) -> tuple[object, ...]:
    """All that a placement answers, to compare."""
    servers = placed.servers if isinstance(placed, ServedPlaced) else ()
    columns = [column.tolist() for column in (*placed.slots, *servers)]
    kept = None if placed.reserved is None else placed.reserved.tolist()
    waiting = [(covers.tolist(), why) for covers, why in placed.waiting.layers]
    return columns, kept, waiting, placed.wake_at_s, dict(placed.why)

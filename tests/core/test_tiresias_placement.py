"""Placement by profile: who is gathered, who waits for it, and who fills gaps."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pytest

from coddl.core.allocation import Allocation
from coddl.core.cluster import Cluster, Node
from coddl.core.placement.registry import placement_from
from coddl.core.policies.registry import policy_from
from coddl.core.scheduler import Scheduler
from coddl.core.snapshot import Snapshot
from coddl.core.speed.places import plain
from coddl.testing import job, snapshot_of
from coddl.testing.builders import JobRow

SKEWED, EVEN = 0.72, 0.11  # VGG19 and ResNet-50


class Row(NamedTuple):
    """A job of a test: what it shall have, how skewed its model is, what it holds by node."""

    gpus: int
    skew: float
    held: Mapping[int, int] = {}
    spans: bool = True


class Case(NamedTuple):
    nodes: tuple[int, ...]  # GPUs of each
    rows: list[Row]
    want: list[dict[int, int]]


CASES = {
    "a skewed job takes the node that it fills best": Case((4, 3, 2), [Row(2, SKEWED)], [{2: 2}]),
    "or the fewest nodes": Case((2, 2, 4, 4), [Row(8, SKEWED)], [{2: 4, 3: 4}]),
    "or waits": Case((4, 4), [Row(3, EVEN, {0: 2, 1: 1}), Row(4, SKEWED)], [{0: 2, 1: 1}, {}]),
    "an even one does not": Case(
        (4, 4), [Row(3, EVEN, {0: 2, 1: 1}), Row(4, EVEN)], [{0: 2, 1: 1}, {0: 2, 1: 2}]
    ),
    "an even job fills gaps, the smallest first": Case(
        (4, 4, 4), [Row(5, EVEN, {0: 3, 1: 2}), Row(3, EVEN)], [{0: 3, 1: 2}, {0: 1, 1: 2}]
    ),
    "a gap that holds it all is better": Case(
        (4, 4, 4), [Row(5, EVEN, {0: 3, 1: 2}), Row(2, EVEN)], [{0: 3, 1: 2}, {1: 2}]
    ),
    "without gaps it begins a node": Case((4, 4), [Row(2, EVEN)], [{0: 2}]),
    "skewed jobs choose before even ones": Case(
        (4, 4), [Row(5, EVEN), Row(3, SKEWED)], [{0: 1, 1: 4}, {0: 3}]
    ),
    "who keeps its share stays, spread or not": Case(
        (4, 4), [Row(2, SKEWED, {0: 1, 1: 1})], [{0: 1, 1: 1}]
    ),
    "a skewed job grows where it is": Case((4, 4), [Row(4, SKEWED, {0: 3})], [{0: 4}]),
    "and on to as few nodes as there could be": Case(
        (4, 4), [Row(6, SKEWED, {0: 3})], [{0: 4, 1: 2}]
    ),
    "or stays as it is": Case(
        (4, 4), [Row(1, EVEN, {0: 1}), Row(4, SKEWED, {0: 3})], [{0: 1}, {0: 3}]
    ),
    "a job that can't span has one node": Case(
        (4, 4), [Row(3, EVEN, {0: 2, 1: 1}), Row(3, EVEN, spans=False)], [{0: 2, 1: 1}, {1: 3}]
    ),
}  # fmt: skip


def picture(case: Case) -> Snapshot:
    cluster = Cluster(tuple(Node(f"n{i}", gpus) for i, gpus in enumerate(case.nodes)))
    rows = [row_of(i, row) for i, row in enumerate(case.rows)]
    places = plain(len(rows))._replace(skew=np.array([row.skew for row in case.rows]))
    return snapshot_of(cluster, rows, places=places)


def row_of(at: int, row: Row) -> JobRow:
    return job(str(at), 1, 16, sits=row.held, spans=row.spans, requested=row.gpus)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_jobs_are_placed(case: Case) -> None:
    snapshot = picture(case)
    allocation = Allocation(np.array([row.gpus for row in case.rows]))
    placed = placement_from("tiresias")(snapshot, allocation)
    assert [placed.seats.row(row) for row in range(len(case.rows))] == case.want


def test_who_waits_for_few_nodes_is_told_and_others_go_on() -> None:
    case = Case((4, 4), [Row(5, EVEN, {0: 3, 1: 2}), Row(3, SKEWED), Row(1, EVEN)], [])
    snapshot = picture(case)
    plan = Scheduler(policy_from("srsf"), placement=placement_from("tiresias")).decide(snapshot)
    assert plan.shares.tolist() == [5, 0, 1]
    why = plan.waiting(1)
    assert why is not None
    assert why.code == "Topology"


def test_the_limit_says_who_is_skewed() -> None:
    case = Case((4, 4), [Row(3, EVEN, {0: 2, 1: 1}), Row(4, SKEWED)], [])
    allocation = Allocation(np.array([3, 4]))
    placed = placement_from("tiresias:pack_limit=0.8")(picture(case), allocation)
    assert placed.shares.tolist() == [3, 4]
    assert placement_from("tiresias")(picture(case), allocation).shares.tolist() == [3, 0]

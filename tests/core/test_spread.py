"""Load balancing: where there is most room."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pytest

from coddl.core.allocation import Allocation
from coddl.core.cluster import Cluster, Node
from coddl.core.jobs import JobTable
from coddl.core.placement.placement import check_placed
from coddl.core.placement.spread import SpreadOut
from coddl.core.seats import Seats
from coddl.core.snapshot import Snapshot, no_memory
from coddl.testing.builders import speeds_from


class Row(NamedTuple):
    gpus: int
    held: Mapping[int, int] = {}
    spans: bool = True


class Case(NamedTuple):
    nodes: tuple[int, ...]  # GPUs of each
    rows: list[Row]
    want: list[dict[int, int]]


CASES = {
    "one GPU after the other, on the emptiest node": Case((2, 2), [Row(2)], [{0: 1, 1: 1}]),
    "the widest first": Case((1, 3), [Row(2)], [{1: 2}]),
    "then as even as it goes": Case((4, 4, 4), [Row(6)], [{0: 2, 1: 2, 2: 2}]),
    "the first in line first": Case((2, 2), [Row(1), Row(1)], [{0: 1}, {1: 1}]),
    "who is seated stays": Case((2, 2), [Row(2, {0: 2}), Row(1)], [{0: 2}, {1: 1}]),
    "who grows goes elsewhere": Case((2, 2), [Row(2, {0: 1})], [{0: 1, 1: 1}]),
    "who can't span gets a node": Case((3, 4), [Row(3, spans=False)], [{1: 3}]),
    "or nothing": Case((2, 2), [Row(3, spans=False)], [{}]),
    "who finds too little gets that": Case((1, 1), [Row(1, {0: 1}), Row(2)], [{0: 1}, {1: 1}]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_jobs_are_spread_out(case: Case) -> None:
    cluster = Cluster(tuple(Node(f"n{i}", gpus) for i, gpus in enumerate(case.nodes)))
    rows = len(case.rows)
    table = JobTable.of(
        rows,
        spans=[row.spans for row in case.rows],
        gpus=[sum(row.held.values()) for row in case.rows],
    )
    seats = Seats.of([dict(row.held) for row in case.rows])
    speeds = speeds_from([[1.0]] * rows)
    snapshot = Snapshot(0.0, cluster, table, speeds, no_memory(rows), seats=seats)
    allocation = Allocation(np.array([row.gpus for row in case.rows]))
    placed = SpreadOut()(snapshot, allocation)
    check_placed(snapshot, allocation, placed)
    assert [placed.seats.row(row) for row in range(rows)] == case.want

"""Who stays, who gives up what, and who is put where."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pytest

from coddl.core.allocation import Allocation
from coddl.core.cluster import Cluster, Node
from coddl.core.jobs import JobTable
from coddl.core.placement.close import placed_close
from coddl.core.seats import Seats
from coddl.core.snapshot import Snapshot, no_memory
from coddl.testing.builders import speeds_from


class Row(NamedTuple):
    """A job of a test: what it shall have, what it holds by node."""

    gpus: int
    held: Mapping[int, int] = {}
    spans: bool = True
    home: int = -1


class Case(NamedTuple):
    nodes: tuple[int, ...]  # GPUs of each
    rows: list[Row]
    want: list[dict[int, int]]


CASES = {
    "who keeps its share stays": Case((2, 2), [Row(2, {0: 1, 1: 1})], [{0: 1, 1: 1}]),
    "a job grows beside itself": Case((2, 2), [Row(2, {1: 1})], [{1: 2}]),
    "a new job takes the node it fills best": Case((1, 3, 2), [Row(2)], [{2: 2}]),
    "a large one begins where most fits": Case((1, 3, 2), [Row(4)], [{0: 1, 1: 3}]),
    "who shrinks leaves the node where it has least": Case(
        (1, 3), [Row(2, {0: 1, 1: 2})], [{1: 2}]
    ),
    "but not its home": Case((1, 3), [Row(2, {0: 1, 1: 2}, home=0)], [{0: 1, 1: 1}]),
    "what one leaves another gets": Case(
        (2, 2), [Row(3, {0: 2, 1: 2}), Row(1)], [{0: 2, 1: 1}, {1: 1}]
    ),
    "a job that can't span comes first": Case(
        (2, 2), [Row(2), Row(2, spans=False)], [{1: 2}, {0: 2}]
    ),
    "or has no room": Case(
        (2, 2), [Row(1, {0: 1}), Row(1, {1: 1}), Row(2, spans=False)], [{0: 1}, {1: 1}, {}]
    ),
    "it stays where it is": Case((3, 2), [Row(2, {0: 2}, spans=False)], [{0: 2}]),
    "and grows by moving, all of it": Case(
        (3, 4), [Row(2, {0: 2}), Row(2, {0: 1}, spans=False)], [{0: 2}, {1: 2}]
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_jobs_are_placed(case: Case) -> None:
    cluster = Cluster(tuple(Node(f"n{i}", gpus) for i, gpus in enumerate(case.nodes)))
    rows = len(case.rows)
    jobs = JobTable.of(
        rows, gpus_max=8, spans=[r.spans for r in case.rows], home=[r.home for r in case.rows]
    )
    seats = Seats.of([dict(row.held) for row in case.rows])
    snapshot = Snapshot(0.0, cluster, jobs, speeds_from([[1.0]]), no_memory(rows), seats=seats)
    allocation = Allocation(np.array([row.gpus for row in case.rows]))
    placed = placed_close(snapshot, allocation, np.arange(rows))
    assert [placed.seats.nodes(row, cluster.ground) for row in range(rows)] == case.want
    for row, want in enumerate(case.want):
        why = placed.waiting.of(row)
        assert (why is not None and why.code == "Topology") == (not want)

"""Who stays, who gives up what, and who is put where."""

import numpy as np
import pytest

from coddl.core.placement.close import placed_close
from tests.core.places import Case, Row, pictured

CASES = {
    "who keeps its share stays": Case((2, 2), [Row(2, {0: 1, 1: 1})], [{0: 1, 1: 1}]),
    "a job grows beside itself": Case((2, 2), [Row(2, {1: 1})], [{1: 2}]),
    "a new job takes the node it fills best": Case((1, 3, 2), [Row(2)], [{2: 2}]),
    "a large one begins where most fits": Case((1, 3, 2), [Row(4)], [{0: 1, 1: 3}]),
    "who shrinks leaves the node where it has least": Case(
        (1, 3), [Row(2, {0: 1, 1: 2})], [{1: 2}]
    ),
    "but not its home": Case((1, 3), [Row(2, {0: 1, 1: 2}, preferred_node=0)], [{0: 1, 1: 1}]),
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
    snapshot, allocation = pictured(case)
    rows = len(case.rows)
    placed = placed_close(snapshot, allocation, np.arange(rows))
    assert [placed.slots.row(row) for row in range(rows)] == case.want
    for row, want in enumerate(case.want):
        why = placed.waiting.of(row)
        assert (why is not None and why.code == "Topology") == (not want)

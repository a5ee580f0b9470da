"""Load balancing: where there is most room."""

import pytest

from coddl.core.placement.placement import check_placed
from coddl.core.placement.spread import SpreadOut
from tests.core.places import Case, Row, pictured

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
    snapshot, allocation = pictured(case)
    placed = SpreadOut()(snapshot, allocation)
    check_placed(snapshot, allocation, placed)
    assert [placed.slots.row(row) for row in range(len(case.rows))] == case.want

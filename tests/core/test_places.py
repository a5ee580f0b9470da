"""What a place costs, worked out by hand."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coddl.core.cluster import Cluster, Node
from coddl.core.slots import Slots
from coddl.core.speed.places import Places, plain, slowdowns
from coddl.testing.twin import twin

# Islands 0 and 1 are halves of the first node, 2 is the second node, 3 the third, far and slow.
CLUSTER = Cluster(
    (
        Node("a", 4, kind=0, rack=0, island_gpus=2),
        Node("b", 4, kind=0, rack=0),
        Node("c", 4, kind=1, rack=1),
    ),
    ("fast", "slow"),
)
# Curve 0 feels everything, curve 1 nothing but company on its GPUs.
PLACES = Places(
    nodes=np.array([[[1.0, 1.0, 1.2, 1.5]] * 3 + [[1.0, 1.0, 1.4, 1.6]], np.ones((4, 4))]),
    islands=np.array([[1.1], [1.0]]),
    racks=np.array([[1.3], [1.0]]),
    network=np.array([[0.25], [0.0]]),
    kinds=np.array([[1.0, 2.0], [1.0, 1.0]]),
    packed=np.array([[2.0, 3.0], [1.5, np.inf]]),
    skew=np.zeros(2),
    throughput=np.array([0.25, 0.5]),
)


class Case(NamedTuple):
    rows: list[dict[int, int]]
    want: list[float]
    curves: tuple[int, ...] = (0, 0, 0)
    packed_with: tuple[int, ...] = (-1, -1, -1)


CASES = {
    "who sits nowhere is not slowed down": Case([{}], [1.0]),
    "one island is the best place": Case([{0: 2}], [1.0]),
    "two islands of a node": Case([{0: 1, 1: 1}], [1.1]),
    "two nodes": Case([{0: 1, 2: 1}], [1.2]),
    "two islands there count as a node": Case([{0: 1, 1: 1, 2: 1}], [1.4]),
    "beyond the last share the table goes on": Case([{2: 4, 0: 2, 1: 2}], [1.4]),
    "two racks, with a slow half": Case([{2: 1, 3: 1}], [1.2 * 1.3 * 2 / (1 + 0.5)]),
    "slow GPUs only": Case([{3: 4}], [2.0]),
    "three nodes": Case([{0: 1, 2: 1, 3: 1}], [1.6 * 1.3 * 3 / 2.5]),
    "two jobs on a network card": Case([{0: 1, 2: 1}, {1: 1, 2: 1}], [1.5, 1.5]),
    "three, and the busiest card counts": Case(
        [{0: 1, 2: 1}, {1: 1, 2: 1}, {2: 1, 3: 1}],
        [1.2 * 1.5, 1.2 * 1.5, 1.2 * 1.5 * 1.3 * 2 / 1.5],
    ),
    "who stays on a node uses no card": Case([{0: 1, 2: 1}, {2: 3}], [1.2, 1.0]),
    "a pair on the same GPUs": Case([{2: 2}, {2: 2}], [3.0, 1.5], (0, 1), (1, 0)),
    "a pair of equals": Case([{2: 2}, {2: 2}], [2.0, 2.0], (0, 0), (1, 0)),
    "a pair that does not fit into memory": Case(
        [{2: 2}, {2: 2}], [np.inf, np.inf], (1, 1), (1, 0)
    ),
    "three of a kind at their full speed": Case([{2: 2}] * 3, [1.0] * 3, (0, 0, 0), (1, 0, 0)),
    "three, as slow as three of the worst": Case([{2: 2}] * 3, [1.5] * 3, (0, 1, 0), (1, 0, 0)),
    "another curve, another price": Case([{0: 1, 3: 1}], [1.0], (1,)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "twin"])
def test_a_place_costs(case: Case, compiled: bool) -> None:
    run = slowdowns if compiled else twin(slowdowns)
    count = len(case.rows)
    curves, packed_with = np.array(case.curves[:count]), np.array(case.packed_with[:count])
    got = run(PLACES, CLUSTER.columns, curves, Slots.of(case.rows), packed_with)
    assert got == pytest.approx(case.want, rel=1e-12)


@given(st.lists(st.dictionaries(st.integers(0, 3), st.integers(1, 2)), max_size=5), st.data())
@settings(max_examples=60, deadline=None)
def test_the_kernel_equals_its_twin(rows: list[dict[int, int]], data: st.DataObject) -> None:
    curves = np.array([data.draw(st.integers(0, 1)) for _ in rows], np.int64)
    packed_with = np.array([data.draw(st.integers(-1, len(rows) - 1)) for _ in rows], np.int64)
    scene = (PLACES, CLUSTER.columns, curves, Slots.of(rows), packed_with)
    assert np.array_equal(slowdowns(*scene), twin(slowdowns)(*scene))


def test_plain_places_cost_nothing_but_for_shared_gpus() -> None:
    slots = Slots.of([{0: 1, 2: 1, 3: 1}, {1: 1}, {1: 1}])
    got = slowdowns(plain(1), CLUSTER.columns, np.zeros(3, np.int64), slots, np.array([-1, 2, 1]))
    assert got.tolist() == [1.0, 2.0, 2.0]

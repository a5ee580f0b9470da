"""The order in which workers of a group exchange."""

import pytest

from coddl.runtime.supervisor.generations import GroupWorker, in_ring

RINGS: dict[str, tuple[dict[int, int], tuple[int, ...]]] = {
    "nobody": ({}, ()),
    "as they came": ({0: 0, 1: 1, 2: 2}, (0, 1, 2)),
    "one more on each of two nodes": ({0: 0, 1: 4, 2: 1, 3: 5}, (0, 2, 1, 3)),
    "the oldest in the middle of the slots": ({3: 1, 4: 0, 5: 6, 7: 2}, (3, 7, 5, 4)),
    "two on a slot while one of them leaves": ({2: 1, 5: 1, 3: 0}, (2, 5, 3)),
}


@pytest.mark.parametrize(("slots", "want"), RINGS.values(), ids=RINGS.keys())
def test_workers_of_a_node_are_neighbours_and_the_oldest_is_first(
    slots: dict[int, int], want: tuple[int, ...]
) -> None:
    known = {worker: GroupWorker(slot) for worker, slot in slots.items()}
    assert in_ring(reversed(list(slots)), known) == want

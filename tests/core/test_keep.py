"""Placement that moves nobody."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coddl.core.placement.keep import Wish, place

TWO = {0: "a", 1: "a", 2: "b", 3: "b"}
UNEVEN = {0: "a", 1: "b", 2: "b", 3: "b", 4: "c", 5: "c"}


class Case(NamedTuple):
    nodes: dict[int, str]
    wishes: list[Wish]
    want: dict[int, tuple[int, ...]]


CASES = {
    "who keeps its share keeps its devices": Case(TWO, [Wish(1, 2, held=(1, 3))], want={1: (1, 3)}),
    "a job grows beside itself": Case(TWO, [Wish(1, 2, held=(3,))], want={1: (3, 2)}),
    "a new job takes the node it fills best": Case(UNEVEN, [Wish(1, 2)], want={1: (4, 5)}),
    "a large one begins where most fits": Case(UNEVEN, [Wish(1, 4)], want={1: (1, 2, 3, 0)}),
    "who shrinks leaves the node where it has least": Case(
        UNEVEN, [Wish(1, 2, held=(0, 1, 2))], want={1: (1, 2)}
    ),
    "but not its home": Case(UNEVEN, [Wish(1, 2, held=(0, 1, 2), home="a")], want={1: (0, 1)}),
    "what one leaves another gets": Case(
        TWO, [Wish(1, 3, held=(0, 1, 2, 3)), Wish(2, 1)], want={1: (0, 1, 2), 2: (3,)}
    ),
    "a slot that is not usable is left": Case(
        {2: "b", 3: "b"}, [Wish(1, 2, held=(0, 1))], want={1: (2, 3)}
    ),
    "a job that can't span nodes comes first": Case(
        TWO, [Wish(1, 2), Wish(2, 2, spans=False)], want={2: (0, 1), 1: (2, 3)}
    ),
    "or has no room": Case(
        TWO,
        [Wish(1, 1, held=(0,)), Wish(2, 1, held=(2,)), Wish(3, 2, spans=False)],
        want={1: (0,), 2: (2,)},
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_jobs_are_placed(case: Case) -> None:
    assert place(case.wishes, case.nodes) == case.want


@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=5),
    st.randoms(),
)
def test_no_slot_goes_to_two_jobs(
    nodes: list[str], jobs: list[tuple[int, bool]], dice: object
) -> None:
    places = dict(enumerate(nodes))
    free = list(places)
    dice.shuffle(free)  # type: ignore[attr-defined] # random.Random
    wishes = []
    for number, (gpus, spans) in enumerate(jobs):
        held = tuple(free.pop() for _ in range(min(len(free), dice.randint(0, 3))))  # type: ignore[attr-defined]
        wishes.append(Wish(number, gpus, held if spans else (), spans=spans))
    placed = place(wishes, places)
    slots = [slot for each in placed.values() for slot in each]
    assert len(slots) == len(set(slots))
    for wish in wishes:
        got = placed.get(wish.job)
        if got is None:
            continue
        assert len(got) == wish.gpus
        assert wish.spans or len({places[slot] for slot in got}) == 1
        assert len(set(got) & set(wish.held)) == min(len(wish.held), wish.gpus)

"""A training that only advances, by a clock that the test turns."""

import math
from collections.abc import Sequence

import pytest

from coddl.agent.emulated.training import (
    Changed,
    EmulatedTraining,
    Finished,
    Stepped,
    TrainingEvent,
    Workload,
)
from coddl.core.errors import UserError
from coddl.core.reconfigure import reconfigure_of

WORKLOAD = Workload(10.0, {1: 4.0, 2: 2.0, 3: 1.5, 4: 1.0})

LATER_S = 1e6

Orders = Sequence[tuple[float, tuple[int, ...]]]  # at a time: the slots to train on


def history(cost: str, orders: Orders) -> list[TrainingEvent]:
    """Run a training to its end; give all that happened."""
    training, told = EmulatedTraining(WORKLOAD, reconfigure_of(cost)), []
    for at_s, slots in orders:
        told += training.advance(at_s)
        training.assign(slots, at_s)
    told += training.advance(LATER_S)
    assert training.is_finished
    return told


def ends(cost: str, orders: Orders) -> float:
    """Tell when a training ends."""
    (end,) = (event for event in history(cost, orders) if isinstance(event, Finished))
    return end.at_s


CASES: dict[str, tuple[str, Orders, float]] = {
    "it advances at the speed of its slots": ("none", [(0.0, (1,))], 40.0),
    "more slots are faster from then on": ("none", [(0.0, (1,)), (20.0, (1, 2))], 30.0),
    "beyond its table it is as fast as there": ("none", [(0.0, (1, 2, 3, 4, 5, 6))], 10.0),
    "a start stalls, too": ("stall:5", [(0.0, (1,))], 45.0),
    "a resize stalls it": ("stall:5", [(0.0, (1,)), (25.0, (1, 2))], 40.0),
    "a pause is added to what is left of the last": (
        "stall:5",
        [(0.0, (1,)), (25.0, (1, 2)), (27.0, (1, 2, 3, 4))],
        25.0 + 5.0 + 5.0 + 5.0,
    ),
    "a start is prepared": ("concurrent:5,1", [(0.0, (1,))], 45.0),
    "it trains on while a resize is prepared": (
        "concurrent:5,1",
        [(0.0, (1,)), (20.0, (1, 2))],  # 5 of 10 iterations are done at 25
        25.0 + 1.0 + 10.0,
    ),
    "a newer target cancels the preparation": (
        "concurrent:5,1",
        [(0.0, (1,)), (20.0, (1, 2)), (22.0, (1,))],
        45.0,
    ),
    "the slots it has need no change, in any order": (
        "stall:5",
        [(0.0, (1, 2)), (10.0, (2, 1))],
        25.0,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_when_it_ends(case: tuple[str, Orders, float]) -> None:
    cost, orders, end_s = case
    assert ends(cost, orders) == pytest.approx(end_s)


def test_it_tells_what_happens_in_order() -> None:
    told = history("concurrent:5,1", [(0.0, (1,)), (20.0, (1, 2))])
    assert told == [
        Changed(5.0, 0, (1,), 0, 0.0, 5.0),
        Stepped(9.0, 1),
        Changed(26.0, 1, (1, 2), 5, 1.0, 6.0),
        Finished(36.0),
    ]


def test_who_asks_late_hears_the_same() -> None:
    late, often = (EmulatedTraining(WORKLOAD, reconfigure_of("stall:5")) for _ in range(2))
    late.assign((1,), 0.0)
    often.assign((1,), 0.0)
    steps = [event for now_s in range(60) for event in often.advance(float(now_s))]
    assert late.advance(1000.0) == steps


def test_slots_are_kept_until_those_prepared_are_taken() -> None:
    training, seen = EmulatedTraining(WORKLOAD, reconfigure_of("concurrent:5,1")), []
    training.assign((1, 2), 0.0)
    seen.append(training.slots)  # its processes start there
    training.advance(10.0)
    training.assign((1,), 10.0)
    for now_s in (14.9, 15.0):
        training.advance(now_s)
        seen.append(training.slots)
    assert seen == [(1, 2), (1, 2), (1,)]


def test_what_it_has_done_counts_in_its_next_run() -> None:
    training = EmulatedTraining(WORKLOAD, reconfigure_of("none"))
    training.assign((1,), 0.0)
    training.advance(22.0)
    training.leave(22.0)
    assert training.slots == ()
    assert training.next_s == math.inf
    again = EmulatedTraining(WORKLOAD, reconfigure_of("none"), training.done_at(50.0))
    again.assign((1, 2), 100.0)
    told = again.advance(LATER_S)
    assert told[1] == Stepped(102.0, 6)
    assert told[-1] == Finished(100.0 + 4.5 * 2.0)


@pytest.mark.parametrize("cost", ["serial:5", "uncancelled:5,1", "stall:1,2,3"])
def test_costs_that_cannot_be_emulated_are_refused(cost: str) -> None:
    with pytest.raises(UserError, match="cannot be emulated"):
        EmulatedTraining(WORKLOAD, reconfigure_of(cost))

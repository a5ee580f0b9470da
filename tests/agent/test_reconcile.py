"""Orders compared with what is being done: tables."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from coddl.agent.reconcile import (
    AppliedOrder,
    DeclineRun,
    MarkNodesLost,
    Overstays,
    ReleaseRun,
    ResizeRun,
    RunAction,
    StartRun,
    StopRun,
    reconcile,
)
from coddl.core.pool.orders import AssignedSlot, JobOrder, Orders, Stop
from coddl.core.pool.records import RunId
from coddl.runtime.supervisor.slots import HostAddress

A, B = HostAddress("a", "10.0.0.1", 1, "x"), HostAddress("b", "10.0.0.2", 2, "y")
ADDRESSES = {"a": A, "b": B}


def lead(
    job: int, slots: Sequence[int] = (0,), *, attempt: int = 1, stop: Stop = "", adopt: bool = False
) -> JobOrder:
    """A lead's order; slots from 10 on are on node b."""
    seats = tuple(AssignedSlot(slot, "b" if slot >= 10 else "a", None) for slot in slots)
    return JobOrder(job, attempt, 1, seats, adopt, False, stop, "because")


def led(told: JobOrder) -> AppliedOrder:
    near = {seat.node: ADDRESSES[seat.node] for seat in told.seats}
    return AppliedOrder(told, near)


@dataclass(frozen=True)
class Case:
    orders: list[JobOrder]
    doing: list[JobOrder] = field(default_factory=list)
    want: list[RunAction] = field(default_factory=list)
    ended: frozenset[RunId] = frozenset()
    addresses: dict[str, HostAddress] = field(default_factory=lambda: ADDRESSES)
    table: dict[int, tuple[RunId, ...]] = field(default_factory=dict)


CASES = {
    "nothing to do": Case([]),
    "a new job begins": Case([lead(1)], want=[StartRun(lead(1), {"a": A})]),
    "orders that come twice": Case([lead(1)], [lead(1)]),
    "other seats": Case([lead(1, (0, 10))], [lead(1)], [ResizeRun(lead(1, (0, 10)), ADDRESSES)]),
    "a job that is to leave": Case(
        [lead(1, stop="retire")], [lead(1)], [StopRun(1, "retire", "because")]
    ),
    "one that was told to leave": Case([lead(1, stop="retire")], [lead(1, stop="retire")]),
    "leaving turns into cancelling": Case(
        [lead(1, stop="cancel")], [lead(1, stop="retire")], [StopRun(1, "cancel", "because")]
    ),
    "but not back": Case([lead(1, stop="retire")], [lead(1, stop="cancel")]),
    "nor into other seats": Case([lead(1, (0, 1))], [lead(1, stop="retire")]),
    "a job that is to be parked": Case(
        [lead(1, stop="park")], [lead(1)], [StopRun(1, "park", "because")]
    ),
    "one that was told to park": Case([lead(1, stop="park")], [lead(1, stop="park")]),
    "parking turns into leaving": Case(
        [lead(1, stop="retire")], [lead(1, stop="park")], [StopRun(1, "retire", "because")]
    ),
    "and into cancelling": Case(
        [lead(1, stop="cancel")], [lead(1, stop="park")], [StopRun(1, "cancel", "because")]
    ),
    "what has parked is called back": Case(
        [lead(1)], [lead(1, stop="park")], [ResizeRun(lead(1), {"a": A})]
    ),
    "what leaves is not parked": Case([lead(1, stop="park")], [lead(1, stop="retire")]),
    "a job that is led no more": Case([], [lead(1)], [ReleaseRun(1)]),
    "a newer attempt": Case(
        [lead(1, attempt=2)], [lead(1)], [ReleaseRun(1), StartRun(lead(1, attempt=2), {"a": A})]
    ),
    "a run that has ended": Case([lead(1)], ended=frozenset({RunId(1, 1)})),
    "the attempt after it": Case(
        [lead(1, attempt=2)],
        want=[StartRun(lead(1, attempt=2), {"a": A})],
        ended=frozenset({RunId(1, 1)}),
    ),
    "called off before it began": Case(
        [lead(1, stop="cancel")], want=[DeclineRun(lead(1, stop="cancel"))]
    ),
    "what others left is led until it is safe": Case(
        [lead(1, stop="retire", adopt=True)],
        want=[
            StartRun(lead(1, stop="retire", adopt=True), {"a": A}),
            StopRun(1, "retire", "because"),
        ],
    ),
    "a node that can't be reached yet": Case([lead(1, (10,))], addresses={"a": A}),
    "a seat on it": Case([lead(1, (0, 10))], [lead(1)], addresses={"a": A}),
    "what others left there waits": Case(
        [lead(1, (10,), stop="retire", adopt=True)], addresses={"a": A}
    ),
    "unless it was cancelled": Case(
        [lead(1, (10,), stop="cancel", adopt=True)],
        want=[DeclineRun(lead(1, (10,), stop="cancel", adopt=True))],
        addresses={"a": A},
    ),
    "what can't be reached may leave": Case(
        [lead(1, (10,), stop="retire")],
        [lead(1, (10,))],
        [StopRun(1, "retire", "because")],
        addresses={},
    ),
    "a node that is reached elsewhere": Case(
        [lead(1, (10,))],
        [lead(1, (10,))],
        [ResizeRun(lead(1, (10,)), {"b": replace(B, port=3)})],
        addresses={"b": replace(B, port=3)},
    ),
    "a seat that is given at last": Case(
        [lead(1)], [lead(1)], [ResizeRun(lead(1), {"a": A})], table={0: (RunId(1, 1),)}
    ),
    "a node that is lost": Case(
        [replace(lead(1), lost=("b",))],
        [lead(1, (0, 10))],
        [MarkNodesLost(1, ("b",)), ResizeRun(replace(lead(1), lost=("b",)), {"a": A})],
    ),
    "a node that is lost while the job leaves": Case(
        [replace(lead(1, stop="retire"), lost=("b",))],
        [lead(1, (0, 10), stop="retire")],
        [MarkNodesLost(1, ("b",))],
    ),
    "a seat that is another's": Case(
        [lead(1)], [lead(1)], table={0: (RunId(2, 1),), 1: (RunId(1, 2),)}
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_follows_from_orders(case: Case) -> None:
    orders = Orders(1, case.table, tuple(case.orders), {})
    doing = {told.job: led(told) for told in case.doing}
    assert list(reconcile(orders, case.addresses, doing, case.ended)) == case.want


OURS, EARLIER, THEIRS = RunId(1, 2), RunId(1, 1), RunId(9, 1)


@pytest.mark.parametrize(
    ("seats", "holding", "want"),
    [
        ({3: (OURS,)}, {3: OURS}, []),
        ({3: (OURS,)}, {3: EARLIER}, []),  # the new lead adopts them
        ({3: (OURS,)}, {3: THEIRS}, [3]),
        ({3: (OURS, THEIRS)}, {3: THEIRS}, []),
        ({}, {3: OURS, 4: OURS}, [3, 4]),
    ],
    ids=["its own", "of an earlier attempt", "another's", "by turns", "nobody's"],
)
def test_who_may_not_be_there_has_some_time_to_leave(
    seats: dict[int, tuple[RunId, ...]], holding: dict[int, RunId], want: list[int]
) -> None:
    overstays = Overstays(leave_within_s=10.0)
    assert overstays.overdue(seats, holding, 100.0) == []
    assert overstays.overdue(seats, holding, 109.9) == []
    assert overstays.overdue(seats, holding, 110.0) == want


def test_the_time_to_leave_begins_anew_for_the_next_one() -> None:
    overstays = Overstays(leave_within_s=10.0)
    overstays.overdue({}, {3: OURS}, 100.0)
    overstays.overdue({}, {}, 105.0)
    assert overstays.overdue({}, {3: OURS}, 111.0) == []

"""Compares the server's orders with what runs, and returns the actions to take. Pure.

Orders are whole (`core.pool.orders`), so they may come twice, late, or after a gap: what follows
from them depends on nothing but them and on what the agent does now.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Final, Literal

from coddl.core.pool.orders import JobOrder, Orders
from coddl.core.pool.records import RunId
from coddl.runtime.supervisor.slots import HostAddress

# How long a worker may take to leave a slot that is no longer its job's. It hands its state to
# others, which may have to start first; so this is for jobs whose runner is gone, or hangs.
LEAVE_WITHIN_S: Final = 600.0

# An order to park what was told to retire.
PARK_TOO_LATE: Final = ("park", "retire")

Addresses = Mapping[str, HostAddress]  # by node


@dataclass(frozen=True, slots=True)
class StartRun:
    """Start a job's run."""

    order: JobOrder
    addresses: Addresses


@dataclass(frozen=True, slots=True)
class ResizeRun:
    """Have a run use the slots of its order; `addresses` are those of their nodes."""

    order: JobOrder
    addresses: Addresses


@dataclass(frozen=True, slots=True)
class MarkNodesLost:
    """Have a run count its workers on these nodes as gone."""

    job: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StopRun:
    """Suspend a run, which makes its state durable first, or cancel it at once.

    "park": suspend it, and keep its workers in host memory if that can be.
    """

    job: int
    how: Literal["park", "retire", "cancel"]
    reason: str


@dataclass(frozen=True, slots=True)
class ReleaseRun:
    """Release a run: another node runs the job, or none has to."""

    job: int


@dataclass(frozen=True, slots=True)
class DeclineRun:
    """Report that a run has ended which was stopped before it started."""

    order: JobOrder


RunAction = StartRun | ResizeRun | MarkNodesLost | StopRun | ReleaseRun | DeclineRun


@dataclass(frozen=True, slots=True)
class AppliedOrder:
    """The order that a job runner was given last."""

    order: JobOrder
    addresses: Addresses
    granted_slots: frozenset[int] = (
        frozenset()
    )  # slots of this node that the table gave to the run then


def granted_slots(orders: Orders, order: JobOrder) -> frozenset[int]:
    """Tell which slots of this node the table gives to a run."""
    run_id = RunId(order.job, order.attempt)
    return frozenset(slot for slot, owners in orders.seats.items() if run_id in owners)


def reconcile(
    orders: Orders, addresses: Addresses, applied: Mapping[int, AppliedOrder], ended: Set[RunId]
) -> tuple[RunAction, ...]:
    """Tell what follows from the orders. `ended` are runs of ours that are over."""
    wanted = {order.job: order for order in orders.leads}
    actions: list[RunAction] = []
    for job, running in applied.items():
        if job not in wanted or wanted[job].attempt != running.order.attempt:
            actions.append(ReleaseRun(job))
    for job, order in wanted.items():
        if RunId(job, order.attempt) in ended:
            continue  # the server has not heard of it yet, or its word has not reached us
        now = AppliedOrder(order, _near(order, addresses), granted_slots(orders, order))
        told = applied.get(job)
        if told is None or told.order.attempt != order.attempt:
            actions += _start_actions(order, now.addresses)
        else:
            actions += [MarkNodesLost(job, order.lost)] if order.lost else []
            actions += _change_actions(now, told)
    return tuple(actions)


def _near(order: JobOrder, addresses: Addresses) -> Addresses:
    return {
        assigned.node: addresses[assigned.node]
        for assigned in order.seats
        if assigned.node in addresses
    }


def _reaches(order: JobOrder, addresses: Addresses) -> bool:
    """Tell whether all nodes of an order have an address; those that lack one are told later."""
    return all(assigned.node in addresses for assigned in order.seats)


def _start_actions(order: JobOrder, addresses: Addresses) -> Iterable[RunAction]:
    if order.stop and not order.adopt:
        return (DeclineRun(order),)
    if not _reaches(order, addresses):
        return (DeclineRun(order),) if order.stop == "cancel" else ()
    start = StartRun(order, addresses)
    return (start, StopRun(order.job, order.stop, order.reason)) if order.stop else (start,)


def _change_actions(now: AppliedOrder, told: AppliedOrder) -> Iterable[RunAction]:
    order = now.order
    if told.order.stop == "cancel":
        return ()
    if order.stop:
        # A run that retires has nothing left to park; one that is to be parked may still retire.
        is_told = order.stop == told.order.stop or (order.stop, told.order.stop) == PARK_TOO_LATE
        return () if is_told else (StopRun(order.job, order.stop, order.reason),)
    if told.order.stop == "retire":
        return ()  # what has been told to leave, leaves; the server will hear of it
    if not _reaches(order, now.addresses):
        return ()
    # One that has parked is called back, unless it is on disk by now; that the server will hear.
    # A slot that was given up because the table did not grant it may be tried again when it does.
    if told.order.stop or (order.seats, now.addresses, now.granted_slots) != (
        told.order.seats,
        told.addresses,
        told.granted_slots,
    ):
        return (ResizeRun(order, now.addresses),)
    return ()


class Overstays:
    """Tracks since when slots have had processes of a job that no longer owns them."""

    def __init__(self, leave_within_s: float = LEAVE_WITHIN_S) -> None:
        self._leave_within_s = leave_within_s
        self._since_s: dict[int, float] = {}

    def overdue(
        self,
        owners: Mapping[int, tuple[RunId, ...]],
        holding: Mapping[int, RunId],
        now_s: float,
    ) -> list[int]:
        """Give the slots whose processes have had their time to leave.

        Workers of an earlier attempt of the same job may stay: the new runner adopts them.
        """
        overstayed = [
            slot
            for slot, at in holding.items()
            if all(owner.job != at.job for owner in owners.get(slot, ()))
        ]
        self._since_s = {slot: self._since_s.get(slot, now_s) for slot in overstayed}
        return sorted(
            s for s, at_s in self._since_s.items() if now_s - at_s >= self._leave_within_s
        )

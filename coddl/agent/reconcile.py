"""What is to be done: orders compared with what is being done. Pure.

Orders are whole (`core.pool.orders`), so they may come twice, late, or after a gap: what follows
from them depends on nothing but them and on what the agent does now.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Final, Literal

from coddl.core.pool.orders import JobOrder, Orders
from coddl.core.pool.records import RunId
from coddl.runtime.supervisor.seats import Post

# How long a worker may take to leave a slot that is no longer its job's. It hands its state to
# others, who may have to start first; so this is for those whose lead is gone, or hangs.
LEAVE_WITHIN_S: Final = 600.0

Posts = Mapping[str, Post]  # by node


@dataclass(frozen=True, slots=True)
class StartRun:
    """Lead a job from now on."""

    order: JobOrder
    posts: Posts


@dataclass(frozen=True, slots=True)
class ResizeRun:
    """Have a job that we lead run on these seats, reached like this."""

    order: JobOrder
    posts: Posts


@dataclass(frozen=True, slots=True)
class MarkNodesLost:
    """Have a job that we lead count its workers on nodes as gone."""

    job: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StopRun:
    """Have a job that we lead make its state durable and leave, or end at once."""

    job: int
    how: Literal["retire", "cancel"]
    reason: str


@dataclass(frozen=True, slots=True)
class ReleaseRun:
    """Stop leading a job: another does, or nobody needs to."""

    job: int


@dataclass(frozen=True, slots=True)
class DeclineRun:
    """Tell that a run has ended which was called off before it began."""

    order: JobOrder


RunAction = StartRun | ResizeRun | MarkNodesLost | StopRun | ReleaseRun | DeclineRun


@dataclass(frozen=True, slots=True)
class AppliedOrder:
    """What a lead that runs was told last."""

    order: JobOrder
    posts: Posts
    granted_slots: frozenset[int] = frozenset()  # slots here that the table gave to its run then


def granted_slots(orders: Orders, order: JobOrder) -> frozenset[int]:
    """Tell which slots of this node the table gives to a run."""
    run_id = RunId(order.job, order.attempt)
    return frozenset(slot for slot, owner in orders.seats.items() if owner == run_id)


def reconcile(
    orders: Orders, posts: Posts, applied: Mapping[int, AppliedOrder], ended: Set[RunId]
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
        now = AppliedOrder(order, _near(order, posts), granted_slots(orders, order))
        told = applied.get(job)
        if told is None or told.order.attempt != order.attempt:
            actions += _start_actions(order, now.posts)
        else:
            actions += [MarkNodesLost(job, order.lost)] if order.lost else []
            actions += _change_actions(now, told)
    return tuple(actions)


def _near(order: JobOrder, posts: Posts) -> Posts:
    return {
        assigned.node: posts[assigned.node] for assigned in order.seats if assigned.node in posts
    }


def _reaches(order: JobOrder, posts: Posts) -> bool:
    """Tell whether all nodes of a lead can be reached; if not, how to will be told."""
    return all(assigned.node in posts for assigned in order.seats)


def _start_actions(order: JobOrder, posts: Posts) -> Iterable[RunAction]:
    if order.stop and not order.adopt:
        return (DeclineRun(order),)
    if not _reaches(order, posts):
        return (DeclineRun(order),) if order.stop == "cancel" else ()
    start = StartRun(order, posts)
    return (start, StopRun(order.job, order.stop, order.reason)) if order.stop else (start,)


def _change_actions(now: AppliedOrder, told: AppliedOrder) -> Iterable[RunAction]:
    order = now.order
    if told.order.stop == "cancel":
        return ()
    if order.stop:
        same = order.stop == told.order.stop
        return () if same else (StopRun(order.job, order.stop, order.reason),)
    if told.order.stop:
        return ()  # what has been told to leave, leaves; the server will hear of it
    if not _reaches(order, now.posts):
        return ()
    # A seat that was given up because the table did not give it may be tried again when it does.
    if (order.seats, now.posts, now.granted_slots) != (
        told.order.seats,
        told.posts,
        told.granted_slots,
    ):
        return (ResizeRun(order, now.posts),)
    return ()


class Overstays:
    """Remembers since when slots have had processes of a job that may not be there."""

    def __init__(self, leave_within_s: float = LEAVE_WITHIN_S) -> None:
        self._leave_within_s = leave_within_s
        self._since_s: dict[int, float] = {}

    def overdue(
        self, owners: Mapping[int, RunId], holding: Mapping[int, RunId], now_s: float
    ) -> list[int]:
        """Give the slots whose processes have had their time to leave.

        Workers of an earlier attempt of the same job may stay: the new lead adopts them.
        """
        overstayed = [
            slot for slot, at in holding.items() if slot not in owners or owners[slot].job != at.job
        ]
        self._since_s = {slot: self._since_s.get(slot, now_s) for slot in overstayed}
        return sorted(
            s for s, at_s in self._since_s.items() if now_s - at_s >= self._leave_within_s
        )

"""What is to be done: orders compared with what is being done. Pure.

Orders are whole (`core.pool.orders`), so they may come twice, late, or after a gap: what follows
from them depends on nothing but them and on what the agent does now.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Final, Literal

from coddl.core.pool.orders import Lead, Orders
from coddl.core.pool.records import Claim
from coddl.runtime.supervisor.slots import HostAddress

# How long a worker may take to leave a slot that is no longer its job's. It hands its state to
# others, who may have to start first; so this is for those whose lead is gone, or hangs.
VACATE_S: Final = 600.0

Posts = Mapping[str, HostAddress]  # by node


@dataclass(frozen=True, slots=True)
class Begin:
    """Lead a job from now on."""

    lead: Lead
    posts: Posts


@dataclass(frozen=True, slots=True)
class Aim:
    """Have a job that we lead run on these seats, reached like this."""

    lead: Lead
    posts: Posts


@dataclass(frozen=True, slots=True)
class Lose:
    """Have a job that we lead count its workers on nodes as gone."""

    job: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Halt:
    """Have a job that we lead make its state durable and leave, or end at once."""

    job: int
    how: Literal["retire", "cancel"]
    reason: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Stop leading a job: another does, or nobody needs to."""

    job: int


@dataclass(frozen=True, slots=True)
class Decline:
    """Tell that a run has ended which was called off before it began."""

    lead: Lead


Duty = Begin | Aim | Lose | Halt | Drop | Decline


@dataclass(frozen=True, slots=True)
class Led:
    """What a lead that runs was told last."""

    lead: Lead
    posts: Posts
    given: frozenset[int] = frozenset()  # slots here that the table gave to its run then


def given(orders: Orders, lead: Lead) -> frozenset[int]:
    """Tell which slots of this node the table gives to a run."""
    claim = Claim(lead.job, lead.attempt)
    return frozenset(slot for slot, owner in orders.seats.items() if owner == claim)


def duties(
    orders: Orders, posts: Posts, led: Mapping[int, Led], ended: Set[Claim]
) -> tuple[Duty, ...]:
    """Tell what follows from the orders. `ended` are runs of ours that are over."""
    wanted = {lead.job: lead for lead in orders.leads}
    todo: list[Duty] = []
    for job, running in led.items():
        if job not in wanted or wanted[job].attempt != running.lead.attempt:
            todo.append(Drop(job))
    for job, lead in wanted.items():
        if Claim(job, lead.attempt) in ended:
            continue  # the server has not heard of it yet, or its word has not reached us
        now = Led(lead, _near(lead, posts), given(orders, lead))
        told = led.get(job)
        if told is None or told.lead.attempt != lead.attempt:
            todo += _begun(lead, now.posts)
        else:
            todo += [Lose(job, lead.lost)] if lead.lost else []
            todo += _changed(now, told)
    return tuple(todo)


def _near(lead: Lead, posts: Posts) -> Posts:
    return {seat.node: posts[seat.node] for seat in lead.seats if seat.node in posts}


def _reaches(lead: Lead, posts: Posts) -> bool:
    """Tell whether all nodes of a lead can be reached; if not, how to will be told."""
    return all(seat.node in posts for seat in lead.seats)


def _begun(lead: Lead, posts: Posts) -> Iterable[Duty]:
    if lead.stop and not lead.adopt:
        return (Decline(lead),)
    if not _reaches(lead, posts):
        return (Decline(lead),) if lead.stop == "cancel" else ()
    begin = Begin(lead, posts)
    return (begin, Halt(lead.job, lead.stop, lead.reason)) if lead.stop else (begin,)


def _changed(now: Led, told: Led) -> Iterable[Duty]:
    lead = now.lead
    if told.lead.stop == "cancel":
        return ()
    if lead.stop:
        same = lead.stop == told.lead.stop
        return () if same else (Halt(lead.job, lead.stop, lead.reason),)
    if told.lead.stop:
        return ()  # what has been told to leave, leaves; the server will hear of it
    if not _reaches(lead, now.posts):
        return ()
    # A seat that was given up because the table did not give it may be tried again when it does.
    if (lead.seats, now.posts, now.given) != (told.lead.seats, told.posts, told.given):
        return (Aim(lead, now.posts),)
    return ()


class Squatters:
    """Remembers since when slots have had processes of a job that may not be there."""

    def __init__(self, vacate_s: float = VACATE_S) -> None:
        self._vacate_s = vacate_s
        self._since_s: dict[int, float] = {}

    def overdue(
        self, seats: Mapping[int, Claim], holding: Mapping[int, Claim], now_s: float
    ) -> list[int]:
        """Give the slots whose processes have had their time to leave.

        Workers of an earlier attempt of the same job may stay: the new lead adopts them.
        """
        squatted = [
            slot for slot, at in holding.items() if slot not in seats or seats[slot].job != at.job
        ]
        self._since_s = {slot: self._since_s.get(slot, now_s) for slot in squatted}
        return sorted(s for s, at_s in self._since_s.items() if now_s - at_s >= self._vacate_s)

"""Runs that share a slot of a node: who is told what, and what the server hears."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from coddl.agent.turns import NodeTurns, SlotUsers
from coddl.core.pool.orders import Orders
from coddl.core.pool.records import RunId
from coddl.core.pool.spec import JobSpec, Launch

A, B = RunId(1, 1), RunId(2, 1)
SPEC = JobSpec(name="job", launch=Launch(argv=("train.py",)))
ENDED = {"is": "turn ended", "resident": False, "bytes": 700, "peak_bytes": 1, "seconds": 0.2}


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test in an event loop."""

    def run() -> None:
        asyncio.run(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@dataclass
class Taker:
    """A run that notes what it is told."""

    told: list[str] = field(default_factory=list)

    def end_turn(self, *, resident: bool) -> None:
        self.told.append("stay" if resident else "move out")

    def begin_turn(self, *, crowded: bool) -> None:
        self.told.append("begin beside others" if crowded else "begin")


def orders(*runs: RunId, turn_s: float = 60.0) -> Orders:
    jobs = dict.fromkeys((run.job for run in runs), SPEC)
    turns = {0: turn_s} if len(runs) > 1 else {}
    return Orders(1, {0: runs} if runs else {}, (), jobs, turns=turns)


def unexpected() -> None:
    pytest.fail("it is not time to look")


@in_loop
async def test_a_run_alone_is_told_nothing() -> None:
    turns, taker = NodeTurns(None, unexpected), Taker()
    turns.look(orders(A), SlotUsers({0: A}, ()), {A: taker}, ())
    assert taker.told == []
    assert turns.owners(orders(A)) == {0: A}
    assert not turns.sharing
    assert not turns.reports
    assert not turns.leavers


@in_loop
async def test_the_turn_goes_from_one_run_to_the_next_and_costs_are_told() -> None:
    turns, takers, both = NodeTurns(0, unexpected), {A: Taker(), B: Taker()}, orders(A, B)
    turns.look(both, SlotUsers({0: A}, ()), takers, ())
    assert takers[A].told == ["move out"], "who is new begins at once"
    assert turns.owners(both) == {0: A}, "until it has gone"
    turns.hear(A, ENDED)
    turns.look(both, SlotUsers({}, {A.job}), takers, ())
    assert takers[B].told == ["begin"]
    assert turns.owners(both) == {0: B}
    assert turns.sharing == {0: {A, B}}
    assert turns.waiting_bytes == 700
    assert turns.reports[0].job == B.job
    turns.hear(A, {"is": "turn begun", "seconds": 0.1, "worker": 0})
    assert turns.reports[0].switch_s == {A.job: pytest.approx(0.3)}


@in_loop
async def test_it_is_looked_at_again_when_the_turn_ends() -> None:
    due = asyncio.Event()
    turns, takers = NodeTurns(None, due.set), {A: Taker(), B: Taker()}
    both = orders(A, B, turn_s=0.05)
    turns.look(both, SlotUsers({0: A}, ()), takers, ())
    turns.look(both, SlotUsers({}, {A.job}), takers, ())
    turns.look(both, SlotUsers({0: B}, {A.job}), takers, ())
    async with asyncio.timeout(60):
        await due.wait()
    turns.look(both, SlotUsers({0: B}, {A.job}), takers, ())
    assert takers[B].told == ["begin beside others", "stay"]


@in_loop
async def test_a_turn_that_was_to_end_goes_on_when_the_others_are_gone() -> None:
    turns, takers, both = NodeTurns(0, unexpected), {A: Taker(), B: Taker()}, orders(A, B)
    turns.look(both, SlotUsers({0: A}, ()), takers, ())
    turns.look(orders(A), SlotUsers({0: A}, ()), takers, ())
    turns.look(orders(A), SlotUsers({}, {A.job}), takers, ())
    assert takers[A].told == ["move out", "begin"]


@in_loop
async def test_a_run_that_lacks_memory_beside_others_starts_again_in_its_next_turn() -> None:
    turns, takers, both = NodeTurns(None, unexpected), {A: Taker(), B: Taker()}, orders(A, B)
    turns.look(both, SlotUsers({0: A}, ()), takers, ())
    turns.hear(A, ENDED | {"resident": True})
    turns.look(both, SlotUsers({}, {A.job}), takers, ())
    turns.look(both, SlotUsers({0: B}, {A.job}), takers, ())
    turns.hear(B, {"is": "crowded"})
    turns.look(both, SlotUsers({0: B}, {A.job}), takers, ())
    assert turns.owners(both) == {}, "its next worker must wait"
    turns.look(both, SlotUsers({}, {A.job}), takers, ())
    assert turns.owners(both) == {0: A}, "it is there"
    turns.look(orders(B), SlotUsers({}, ()), {B: takers[B]}, ())
    assert turns.owners(orders(B)) == {0: B}
    assert takers[B].told == ["begin beside others", "move out", "begin"]


@in_loop
async def test_a_run_that_has_ended_takes_no_turn_and_stops_nobody() -> None:
    turns, takers, both = NodeTurns(0, unexpected), {A: Taker(), B: Taker()}, orders(A, B)
    turns.look(both, SlotUsers({0: A}, ()), takers, ())
    del takers[A]  # the server has not heard of it yet
    turns.look(both, SlotUsers({0: A}, ()), takers, ())
    turns.look(both, SlotUsers({}, ()), takers, ())
    assert takers[B].told == ["begin"]
    turns.look(orders(B), SlotUsers({0: B}, ()), takers, ())
    assert turns.sharing == {}, "it is alone"
    assert turns.owners(orders(B)) == {0: B}


@in_loop
async def test_who_must_leave_has_the_turn_until_it_has_left() -> None:
    turns, takers, both = NodeTurns(0, unexpected), {A: Taker(), B: Taker()}, orders(A, B)
    turns.look(both, SlotUsers({0: A}, ()), takers, ())
    turns.hear(A, ENDED)
    turns.look(both, SlotUsers({}, {A.job}), takers, ())
    turns.look(both, SlotUsers({0: B}, {A.job}), takers, ())
    alone = orders(B)  # A was told to park
    turns.look(alone, SlotUsers({0: B}, {A.job}), takers, {A})
    assert takers[B].told == ["begin", "move out"]
    assert turns.leavers == {0: A}
    assert turns.is_kept_waiting(A)
    turns.look(alone, SlotUsers({}, {A.job, B.job}), takers, {A})
    assert takers[A].told == ["move out", "begin"]
    assert turns.owners(alone) == {0: A}
    assert turns.leavers == {0: A}, "it is still there"
    turns.look(alone, SlotUsers({0: A}, {B.job}), takers, {A})
    assert not turns.is_kept_waiting(A)
    turns.look(alone, SlotUsers({}, {B.job}), takers, {A})
    assert takers[B].told == ["begin", "move out", "begin"]
    assert turns.owners(alone) == {0: B}

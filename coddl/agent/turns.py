"""The slots of this node that runs share: who may be at work there, and who is told to go or come.

The server says who shares a slot; whose turn it is is decided here, so turns go on while the server
is away. (`slot_turns`)
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol

from coddl.agent.slot_turns import BeginTurn, EndTurn, SharedSlot
from coddl.core.pool.orders import Orders
from coddl.core.pool.records import RunId, SlotTurns
from coddl.runtime.wire import Message


class TurnTaker(Protocol):
    """A run that can take turns."""

    def end_turn(self, *, resident: bool) -> None: ...
    def begin_turn(self, *, crowded: bool) -> None: ...


class SlotUsers(NamedTuple):
    """Whose workers are on the slots of the node."""

    at_work: Mapping[int, RunId]  # by slot
    waiting: Collection[int]  # jobs whose workers wait for their turn


class NodeTurns:
    """Has runs take turns on the slots that they share; calls back when it is time to look."""

    def __init__(self, resident_bytes: int | None, on_due: Callable[[], None]) -> None:
        """`resident_bytes`: of a slot, that runs may use together and stay there; None: any."""
        self._resident_bytes = resident_bytes
        self._on_due = on_due
        self._timer: asyncio.TimerHandle | None = None
        self._slots: dict[int, SharedSlot] = {}
        self._bytes: dict[RunId, int] = {}  # of host memory, of those that wait outside the GPU
        self._end_s: dict[RunId, float] = {}  # that the last end of a turn took
        self._switch_s: dict[RunId, float] = {}  # that it took together with the next begin

    def look(
        self,
        orders: Orders,
        present: SlotUsers,
        takers: Mapping[RunId, TurnTaker],
        leaving: Collection[RunId],
    ) -> None:
        """Have turns begin and end as the orders and the time require."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for number, runs in orders.seats.items():
            if len(runs) > 1 and number not in self._slots:
                self._slots[number] = SharedSlot(self._resident_bytes)
        actions = []
        for number, slot in list(self._slots.items()):
            slot.note(present.at_work.get(number), present.waiting, takers)
            weights = {run: orders.jobs[run.job].weight for run in orders.seats.get(number, ())}
            slot.admit(weights, leaving, orders.turns.get(number, 0.0), now_s)
            if slot.is_shared:
                actions += slot.look(now_s)
            else:
                del self._slots[number]
        for action in actions:
            if (taker := takers.get(action.run)) is None:
                continue  # it ends
            match action:
                case EndTurn(resident=resident):
                    taker.end_turn(resident=resident)
                case BeginTurn(crowded=crowded):
                    taker.begin_turn(crowded=crowded)
        self._forget_others()
        self._wake(loop, min(self._wakes, default=None))

    def hear(self, run: RunId, event: Message) -> None:
        """Take in that a run has ended its turn or begun it, or that others leave it no memory."""
        if event["is"] == "crowded":
            for slot in self._slots.values():
                slot.note_crowded(run)
            return
        seconds = event["seconds"]
        if event["is"] == "turn begun":
            ended_s = self._end_s.pop(run, None)
            if ended_s is not None and event["worker"] is not None:
                self._switch_s[run] = round(ended_s + seconds, 4)
            return
        self._bytes[run], self._end_s[run] = event["bytes"], seconds
        for slot in self._slots.values():
            slot.note_ended(run, resident=event["resident"], peak_bytes=event["peak_bytes"])

    # What is so.

    def owners(self, orders: Orders) -> dict[int, RunId]:
        """Tell, by slot, which run may start processes there now."""
        alone = {s: runs[0] for s, runs in orders.seats.items() if s not in self._slots}
        held = {number: slot.owner for number, slot in self._slots.items()}
        return alone | {number: run for number, run in held.items() if run is not None}

    @property
    def sharing(self) -> dict[int, frozenset[RunId]]:
        """Tell, by slot, which runs share it."""
        return {number: slot.members for number, slot in self._slots.items()}

    @property
    def reports(self) -> dict[int, SlotTurns]:
        """Tell, by slot, who has the turn, and what each has had."""
        costs_s = {run.job: each for run, each in self._switch_s.items()}
        bytes_ = {run.job: each for run, each in self._bytes.items()}
        return {
            number: replace(slot.report, switch_s=costs_s, bytes_=bytes_)
            for number, slot in self._slots.items()
        }

    @property
    def leavers(self) -> dict[int, RunId]:
        """Tell, by slot, who waits there and must leave: the first of them."""
        return {n: slot.leavers[0] for n, slot in self._slots.items() if slot.leavers}

    def is_kept_waiting(self, run: RunId) -> bool:
        """Tell whether a run must leave and can't, as its turn has not come yet."""
        return any(run in slot.leavers for slot in self._slots.values())

    @property
    def waiting_bytes(self) -> int:
        """How much host memory those use that wait outside their GPU."""
        return sum(self._bytes.values())

    def _forget_others(self) -> None:
        """Forget what runs have told that take no turns here any more."""
        members = {run for slot in self._slots.values() for run in slot.members}
        self._bytes = {run: each for run, each in self._bytes.items() if run in members}
        self._end_s = {run: each for run, each in self._end_s.items() if run in members}
        self._switch_s = {run: each for run, each in self._switch_s.items() if run in members}

    @property
    def _wakes(self) -> Iterator[float]:
        return (at_s for slot in self._slots.values() if (at_s := slot.wake_at_s) is not None)

    def _wake(self, loop: asyncio.AbstractEventLoop, at_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if at_s is None else loop.call_at(at_s, self._on_due)

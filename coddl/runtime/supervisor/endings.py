"""What a worker's end means for its job."""

import signal
import time
from typing import Final, Protocol

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor import generations as group
from coddl.runtime.supervisor import troubles
from coddl.runtime.supervisor.changes import Due
from coddl.runtime.supervisor.crew import Crew
from coddl.runtime.supervisor.ledger import WorkerNotes, signal_name
from coddl.runtime.supervisor.limits import Limits
from coddl.runtime.supervisor.loop import Loop
from coddl.runtime.supervisor.patience import Patience
from coddl.runtime.supervisor.standing import Standing
from coddl.runtime.wire import Message

WITHHELD_S: Final = 3.0  # who is killed may be heard of later than those who fail because of it


class Judged(Protocol):
    """The supervisor, as ends concern it."""

    @property
    def standing(self) -> Standing: ...
    @property
    def crew(self) -> Crew: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def patience(self) -> Patience: ...
    def tell(self, event: Message) -> None: ...
    def fail(self, error: TrainingError, code: int) -> None: ...
    def feed(self, event: group.Event) -> None: ...


class Endings:
    """Tells of each end, finds out whose fault it was, and lets the coordinator know.

    A script with a group of its own fails where a peer is killed. So its failure counts only once
    nobody is left to be heard of, or nobody was heard of for a while.
    """

    def __init__(self, supervisor: Judged, loop: Loop) -> None:
        self._supervisor = supervisor
        self._loop = loop
        self._withheld: dict[int, tuple[TrainingError, int]] = {}  # by worker, the first first

    def take(self, notes: WorkerNotes, code: int, because: str | None) -> None:
        """Draw the conclusions from the end of a worker that is gone."""
        self._conclude(notes, code, because)
        if not self._supervisor.crew.notes:
            self._judge()

    def _conclude(self, notes: WorkerNotes, code: int, because: str | None) -> None:
        supervisor, standing = self._supervisor, self._supervisor.standing
        is_expected = notes.is_unwanted or notes.has_left
        name = signal_name(-code) if code < 0 else None
        supervisor.tell(
            {"is": "exited", "worker": notes.number, "code": code, "signal": name}
            | {"slot": notes.slot, "node": notes.seat.node, "because": because}
            | {"expected": is_expected or (code == 0 and notes.has_ended)}
        )
        if not is_expected:
            needs_loop = standing.needs_loop
            if self._withheld and code == -signal.SIGABRT:
                return  # how NCCL ends a process whose peer has failed
            if notes.ran_out_of_memory:
                supervisor.patience.last_trouble = f"worker {notes.number} ran out of memory"
            elif name is not None:
                why = because or f"killed by {name}"
                self._on_killed(notes, code, f"worker {notes.number} was lost: {why}")
            elif error := troubles.verdict(notes, code, standing.job, needs_loop=needs_loop):
                if not needs_loop:
                    self._withhold(notes, error, code or 1)
                    return
                self.blame(notes, error, code or 1)
            else:
                standing.has_finished = True
                if not notes.has_arrived:
                    standing.is_finishing = True
                    return  # its seat is not filled again
                if not notes.has_ended:
                    supervisor.limits.on_left(notes.step)
                supervisor.feed(group.LoopEnded(notes.number))  # news only if it broke out of it
        if notes.number in standing.coordinator.members:
            standing.due = Due.now("failure")
        supervisor.feed(group.WorkerLost(notes.number))

    def blame(self, notes: WorkerNotes, error: TrainingError, code: int) -> None:
        """Fail because the script did; not while others train on, to whom a joiner is no loss."""
        supervisor, patience = self._supervisor, self._supervisor.patience
        others = any(each.step for each in supervisor.crew.notes if each is not notes)
        if others and not notes.step and patience.allows_joiner():
            patience.last_trouble = f"worker {notes.number}: {error.what}"
            supervisor.tell({"is": "problem", **error.parts()})
            supervisor.crew.stop(notes.number)
        else:
            supervisor.fail(error, code)

    def _on_killed(self, notes: WorkerNotes, code: int, trouble: str) -> None:
        supervisor, standing = self._supervisor, self._supervisor.standing
        supervisor.patience.last_trouble = trouble
        if notes.has_ended or standing.is_finishing:  # what it was to do still is not done
            supervisor.fail(troubles.died_after_loop(standing.job, trouble), 128 - code)
        elif not standing.needs_loop:
            supervisor.crew.restart_together()
            lost, self._withheld = self._withheld, {}
            for number in lost:
                supervisor.feed(group.WorkerLost(number))

    def _withhold(self, notes: WorkerNotes, error: TrainingError, code: int) -> None:
        self._withheld[notes.number] = (error, code)
        self._loop.alarm("verdict", time.monotonic() + WITHHELD_S, self._judge)

    def _judge(self) -> None:
        for error, code in self._withheld.values():
            self._supervisor.fail(error, code)
            return

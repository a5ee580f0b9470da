"""Tells how a job is doing: often while it makes steps, now and then while it makes none."""

import time
from typing import Final, Protocol

from coddl.runtime.supervisor.crew import Crew
from coddl.runtime.supervisor.loop import Loop
from coddl.runtime.supervisor.standing import Standing
from coddl.runtime.wire import Message

TELL_EVERY_S: Final = 0.2
LOOK_EVERY_S: Final = 5.0  # while no step is made
STALLED_S: Final = 60.0  # without a step, after which that is told as an event
STALLED_STEPS: Final = 10  # and that would have been made in the time


class Trained(Protocol):
    """The supervisor, as its progress concerns it."""

    @property
    def standing(self) -> Standing: ...
    @property
    def crew(self) -> Crew: ...
    def tell(self, event: Message) -> None: ...


class Progress:
    """Hears of steps and of new groups.

    While no step is made `still` is told again and again, and `stalled` once.
    """

    def __init__(self, supervisor: Trained, loop: Loop) -> None:
        self._supervisor = supervisor
        self._loop = loop
        self._told_s = 0.0
        self._is_stalled = False

    def stepped(self) -> None:
        """Take note that a step was made."""
        self.began()
        if (now_s := time.monotonic()) >= self._told_s + TELL_EVERY_S:
            self._told_s = now_s
            self._tell("progress")

    def began(self) -> None:
        """Take note that the group is another one: its first step may take its time."""
        now_s = time.monotonic()
        self._supervisor.standing.moved_s = now_s
        self._is_stalled = False
        self._loop.alarm("still", now_s + LOOK_EVERY_S, self._look)

    def _tell(self, kind: str) -> None:
        brief = self._supervisor.standing.brief(self._supervisor.crew)
        self._supervisor.tell({"is": kind, **brief})

    def _look(self) -> None:
        standing = self._supervisor.standing
        if standing.is_over or standing.is_asleep:
            return
        self._loop.alarm("still", time.monotonic() + LOOK_EVERY_S, self._look)
        if not (still_s := standing.still_s):
            return
        self._tell("still")
        limit_s = max(STALLED_S, STALLED_STEPS * (standing.pace.step_s or 0.0))
        # Between two epochs the script may evaluate: that takes as long as it takes.
        is_resting = any(notes.is_resting for notes in self._supervisor.crew.notes)
        if still_s >= limit_s and not is_resting and not self._is_stalled:
            self._is_stalled = True
            about = {"step": standing.coordinator.step, "still_s": still_s}
            self._supervisor.tell({"is": "stalled", **about})

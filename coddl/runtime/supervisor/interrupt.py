"""Ctrl-C: the first one saves and stops the job, the second stops it, the third kills it."""

import signal
import time
from typing import Final, Protocol

from coddl.runtime.supervisor.crew import Crew
from coddl.runtime.supervisor.loop import Loop
from coddl.runtime.supervisor.saving import Captures
from coddl.runtime.supervisor.standing import Standing

INTERRUPTED: Final = 128 + signal.SIGINT  # exit code
SAVE_WITHIN_S: Final = 3.0


class Interrupted(Protocol):
    """The supervisor, as a Ctrl-C concerns it."""

    @property
    def standing(self) -> Standing: ...
    @property
    def crew(self) -> Crew: ...
    @property
    def captures(self) -> Captures: ...
    def stop(self, code: int) -> None: ...


class Interrupt:
    """Waits for a last image before the job is stopped."""

    def __init__(self, supervisor: Interrupted, loop: Loop) -> None:
        self._supervisor = supervisor
        self._loop = loop
        self._is_waiting = False

    def take(self) -> None:
        """Take in that it came, once more."""
        supervisor, standing = self._supervisor, self._supervisor.standing
        if standing.stopping is not None:
            supervisor.crew.kill_all()
        elif standing.is_at_target and standing.coordinator.step and not self._is_waiting:
            self._is_waiting = True
            supervisor.captures.take()
            at_s = time.monotonic() + SAVE_WITHIN_S
            self._loop.alarm("interrupt", at_s, lambda: supervisor.stop(INTERRUPTED))
        else:
            supervisor.stop(INTERRUPTED)

    def on_saved(self) -> None:
        """Stop when the last image is on disk."""
        supervisor = self._supervisor
        has_last = not (supervisor.captures.is_awaited or supervisor.crew.is_saving)
        if self._is_waiting and has_last and supervisor.standing.stopping is None:
            supervisor.stop(INTERRUPTED)

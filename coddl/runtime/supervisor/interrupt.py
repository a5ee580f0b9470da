"""Ctrl-C: the first one saves and stops the job, the second stops it, the third kills it."""

from typing import TYPE_CHECKING, Final

from coddl.runtime.supervisor.job_status import INTERRUPTED
from coddl.runtime.supervisor.loop import SupervisorLoop

if TYPE_CHECKING:
    from coddl.runtime.supervisor.supervisor import Supervisor

SAVE_WITHIN_S: Final = 3.0


class Interrupt:
    """Waits for a last image before the job is stopped."""

    def __init__(self, supervisor: "Supervisor", loop: SupervisorLoop) -> None:
        self._supervisor = supervisor
        self._loop = loop
        self._is_waiting = False

    def take(self) -> None:
        """Take in that it came, once more."""
        supervisor, job_status = self._supervisor, self._supervisor.job_status
        if job_status.stopping is not None:
            supervisor.workers.kill_all()
        elif job_status.is_at_target and job_status.coordinator.step and not self._is_waiting:
            self._is_waiting = True
            supervisor.capture_timer.take()
            at_s = self._loop.now_s() + SAVE_WITHIN_S
            self._loop.alarm("interrupt", at_s, lambda: supervisor.stop(INTERRUPTED))
        else:
            supervisor.stop(INTERRUPTED)

    def on_saved(self) -> None:
        """Stop when the last image is on disk."""
        supervisor = self._supervisor
        has_last = not (supervisor.capture_timer.is_awaited or supervisor.workers.is_saving)
        if self._is_waiting and has_last and supervisor.job_status.stopping is None:
            supervisor.stop(INTERRUPTED)

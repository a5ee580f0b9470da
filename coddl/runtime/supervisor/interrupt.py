"""Ctrl-C: the first one saves and stops the job, the second stops it, the third kills it."""

from typing import Final, Protocol

from coddl.runtime.supervisor.checkpointing import CaptureTimer
from coddl.runtime.supervisor.job_status import INTERRUPTED, JobStatus
from coddl.runtime.supervisor.loop import SupervisorLoop
from coddl.runtime.supervisor.workers import Workers

SAVE_WITHIN_S: Final = 3.0


class SupportsInterrupt(Protocol):
    """What an interrupt needs of the supervisor."""

    @property
    def job_status(self) -> JobStatus: ...
    @property
    def workers(self) -> Workers: ...
    @property
    def capture_timer(self) -> CaptureTimer: ...
    def stop(self, code: int) -> None: ...


class Interrupt:
    """Waits for a last image before the job is stopped."""

    def __init__(self, supervisor: SupportsInterrupt, loop: SupervisorLoop) -> None:
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

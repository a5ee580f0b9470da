"""Tells how a job is doing: often while it makes steps, now and then while it makes none."""

from typing import TYPE_CHECKING, Final

from coddl.runtime.supervisor.loop import SupervisorLoop

if TYPE_CHECKING:
    from coddl.runtime.supervisor.supervisor import Supervisor

TELL_EVERY_S: Final = 0.2
LOOK_EVERY_S: Final = 5.0  # while no step is made
STALLED_S: Final = 60.0  # without a step, after which that is told as an event
STALLED_STEPS: Final = 10  # and that would have been made in the time


class ProgressReporter:
    """Reports progress after steps and after changes of the group.

    While no step is made `still` is told again and again, and `stalled` once.
    """

    def __init__(self, supervisor: "Supervisor", loop: SupervisorLoop) -> None:
        self._supervisor = supervisor
        self._loop = loop
        self._told_s = 0.0
        self._is_stalled = False

    def stepped(self) -> None:
        """Take note that a step was made."""
        self.began()
        if (now_s := self._loop.now_s()) >= self._told_s + TELL_EVERY_S:
            self._told_s = now_s
            self._tell("progress")

    def began(self) -> None:
        """Take note that the group is another one: its first step may take its time."""
        now_s = self._loop.now_s()
        self._supervisor.job_status.moved_s = now_s
        self._is_stalled = False
        self._loop.alarm("still", now_s + LOOK_EVERY_S, self._look)

    def _tell(self, kind: str) -> None:
        brief = self._supervisor.job_status.brief(self._supervisor.workers)
        self._supervisor.tell({"is": kind, **brief})

    def _look(self) -> None:
        job_status = self._supervisor.job_status
        if job_status.is_over or job_status.is_asleep:
            return
        self._loop.alarm("still", self._loop.now_s() + LOOK_EVERY_S, self._look)
        if not (still_s := job_status.still_s):
            return
        self._tell("still")
        limit_s = max(STALLED_S, STALLED_STEPS * (job_status.step_timer.step_s or 0.0))
        # Between two epochs the script may evaluate: that takes as long as it takes.
        is_resting = any(record.is_resting for record in self._supervisor.workers.records)
        if still_s >= limit_s and not is_resting and not self._is_stalled:
            self._is_stalled = True
            about = {"step": job_status.coordinator.step, "still_s": still_s}
            self._supervisor.tell({"is": "stalled", **about})

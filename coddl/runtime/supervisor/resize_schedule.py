"""The resizes of `coddl run --resize`: which are due, and which never happened."""

from typing import Protocol

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor.changes import Since
from coddl.runtime.supervisor.job_status import JobStatus
from coddl.runtime.wire import Message


class SupportsSchedule(Protocol):
    """What the schedule needs of the supervisor."""

    @property
    def job_status(self) -> JobStatus: ...
    def tell(self, event: Message) -> None: ...
    def set_workers(self, workers: int, since: Since) -> None: ...


class ResizeSchedule:
    """Makes the resizes that the job was started with: all of them, one after the other."""

    def __init__(self, supervisor: SupportsSchedule) -> None:
        self._supervisor = supervisor
        self._left = list(supervisor.job_status.job.resizes)
        self._begun: tuple[int, int] | None = None  # step, workers

    def stepped(self, step: int) -> None:
        """Begin the next one if its step has come and the one before is made."""
        if not self._supervisor.job_status.is_at_target:
            return
        self._begun = None
        if self._left and self._left[0][0] <= step:
            self._begin(*self._left.pop(0))

    def _begin(self, step: int, workers: int) -> None:
        try:
            self._supervisor.job_status.check_fits(workers)
        except TrainingError as error:
            self._supervisor.tell({"is": "problem", **error.parts()})
            return
        self._begun = step, workers
        self._supervisor.set_workers(workers, "schedule")

    def tell_missed(self) -> None:
        """Tell which resizes a training that has come to its end did not make."""
        job_status, begun = self._supervisor.job_status, self._begun
        if job_status.exit_code != 0:
            return  # the same command may make them yet
        if begun is not None and len(job_status.changes.members) != begun[1] == job_status.target:
            self._left.insert(0, begun)  # its workers were being started
        about = {"is": "not-resized", "step": job_status.coordinator.step}
        for at_step, workers in self._left:
            self._supervisor.tell({**about, "at_step": at_step, "workers": workers})

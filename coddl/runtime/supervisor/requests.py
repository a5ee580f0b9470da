"""Requests at the control socket; a resize is answered when it has taken effect."""

from typing import TYPE_CHECKING

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor import job_errors
from coddl.runtime.supervisor.control_socket import Answer
from coddl.runtime.wire import Message

if TYPE_CHECKING:
    from coddl.runtime.supervisor.supervisor import Supervisor


class ControlRequests:
    """Executes requests, and keeps those that wait for their change to take effect."""

    def __init__(self, supervisor: "Supervisor") -> None:
        self._supervisor = supervisor
        self._waiting: list[tuple[int, int, Answer]] = []  # target, changes made before

    def take(self, request: Message, answer: Answer) -> None:
        """Do what is asked, or refuse; never raises."""
        try:
            if request.get("do") == "status":
                answer({"ok": True, **self._supervisor.status()})
                return
            made = self._supervisor.job_status.changes.count
            self._do(request)
        except TrainingError as error:
            answer({"error": error.parts()})
            return
        target = self._supervisor.job_status.target
        assert target is not None
        if request.get("wait", True):
            self._waiting.append((target, made, answer))
            self.settle()
        else:
            answer({"ok": True, "target": target})

    def settle(self) -> None:
        """Answer those whose size is reached, or never will be."""
        waiting, self._waiting = self._waiting, []
        for target, made, answer in waiting:
            try:
                if not self._has_reached(target):
                    self._waiting.append((target, made, answer))
                    continue
            except TrainingError as error:
                answer({"error": error.parts()})
            else:
                changes = self._supervisor.job_status.changes
                change = changes.made[-1] if changes.count > made else None
                answer({"ok": True, "target": target, "change": change})

    def _do(self, request: Message) -> None:
        workers = request.get("workers")
        if workers is not None and not isinstance(workers, int):
            raise TrainingError(
                f"{workers} workers cannot be started", "it is not a whole number", "2"
            )
        match request.get("do"):
            case "resize" if workers is not None:
                self._check_awake("resized")
                self._set_workers(workers)
            case "suspend":
                if self._supervisor.job_status.target != 0:
                    self._check_awake("suspended")
                    self._supervisor.set_workers(0, "command")
            case "resume":
                self._resume(workers)
            case unknown:
                raise TrainingError(
                    f"the request {unknown} is refused", "it is not known", "status"
                )

    def _resume(self, workers: int | None) -> None:
        """Go on after `suspend`, by default with as many workers as before."""
        job_status = self._supervisor.job_status
        if job_status.target != 0 or job_status.coordinator.ending:
            raise job_errors.not_suspended(job_status.job, job_status.state)
        self._set_workers(job_status.awake_target if workers is None else workers)

    def _set_workers(self, workers: int) -> None:
        job_status = self._supervisor.job_status
        job_status.job.check_size(workers, job_status.coordinator.workers_max)
        job_status.check_fits(workers)
        self._supervisor.set_workers(workers, "command")

    def _check_awake(self, asked: str) -> None:
        job_status = self._supervisor.job_status
        error = job_errors.not_now(
            job_status.job, asked, job_status.target, ending=job_status.is_over
        )
        if error := error or job_status.rigid:
            raise error

    def _has_reached(self, target: int) -> bool:
        """Tell whether the job runs at that size now; raise if it never will."""
        job_status = self._supervisor.job_status
        if target != job_status.target:
            if target == 0 and job_status.unsaved is not None:
                raise job_errors.not_saved(job_status.job, job_status.unsaved)
            because = f"a newer command asked for {job_status.target}"
            raise job_errors.never_reached(job_status.job, target, because)
        if job_status.is_over:
            raise job_errors.never_reached(job_status.job, target, "the job ended first")
        if target == 0:
            return job_status.is_asleep
        if job_status.coordinator.phase != "steady":
            return False
        if (reason := self._supervisor.blocked_reason) is not None:
            raise job_errors.never_reached(job_status.job, target, reason)
        return len(job_status.coordinator.members) == target

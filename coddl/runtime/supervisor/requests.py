"""Answers those who ask at the control socket; a change is answered when it serves."""

from typing import Protocol

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor import troubles
from coddl.runtime.supervisor.changes import Since
from coddl.runtime.supervisor.control import Answer
from coddl.runtime.supervisor.standing import Standing
from coddl.runtime.wire import Message


class Leader(Protocol):
    """What can be asked of a job."""

    def status(self) -> Message: ...
    @property
    def standing(self) -> Standing: ...
    @property
    def trouble(self) -> str | None:
        """Tell why the job can't come to its target, if it can't."""
        ...

    def set_workers(self, workers: int, since: Since) -> None:
        """Set how many workers there shall be."""
        ...


class Requests:
    """Everybody who has asked for a change and waits for it to serve."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._waiting: list[tuple[int, int, Answer]] = []  # target, changes made before

    def take(self, request: Message, answer: Answer) -> None:
        """Do what is asked, or refuse; never raises."""
        try:
            if request.get("do") == "status":
                answer({"ok": True, **self._leader.status()})
                return
            made = self._leader.standing.changes.count
            self._do(request)
        except TrainingError as error:
            answer({"error": error.parts()})
            return
        target = self._leader.standing.target
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
                changes = self._leader.standing.changes
                change = changes.made[-1] if changes.count > made else None
                answer({"ok": True, "target": target, "change": change})

    def _do(self, request: Message) -> None:
        workers = request.get("workers")
        if workers is not None and not isinstance(workers, int):
            raise TrainingError(f"{workers} workers can't be had", "it is no whole number", "2")
        match request.get("do"):
            case "resize" if workers is not None:
                self._check_awake("resized")
                self._set_workers(workers)
            case "suspend":
                if self._leader.standing.target != 0:
                    self._check_awake("suspended")
                    self._leader.set_workers(0, "command")
            case "resume":
                self._resume(workers)
            case unknown:
                raise TrainingError(f"{unknown} can't be asked", "it is no request", "status")

    def _resume(self, workers: int | None) -> None:
        """Go on after `suspend`, by default with as many workers as before."""
        standing = self._leader.standing
        if standing.target != 0 or standing.coordinator.ending:
            raise troubles.not_suspended(standing.job, standing.state)
        self._set_workers(standing.awake_target if workers is None else workers)

    def _set_workers(self, workers: int) -> None:
        standing = self._leader.standing
        standing.job.check_size(workers, standing.coordinator.workers_max)
        standing.check_fits(workers)
        self._leader.set_workers(workers, "command")

    def _check_awake(self, asked: str) -> None:
        standing = self._leader.standing
        error = troubles.not_now(standing.job, asked, standing.target, ending=standing.is_over)
        if error := error or standing.rigid:
            raise error

    def _has_reached(self, target: int) -> bool:
        """Tell whether the job runs at that size now; raise if it never will."""
        standing = self._leader.standing
        if target != standing.target:
            if target == 0 and standing.unsaved is not None:
                raise troubles.not_saved(standing.job, standing.unsaved)
            because = f"a newer command asked for {standing.target}"
            raise troubles.never_reached(standing.job, target, because)
        if standing.is_over:
            raise troubles.never_reached(standing.job, target, "it ended before")
        if target == 0:
            return standing.is_asleep
        if standing.coordinator.phase != "steady":
            return False
        if (trouble := self._leader.trouble) is not None:
            raise troubles.never_reached(standing.job, target, trouble)
        return len(standing.coordinator.members) == target

"""Answers those who ask at the control socket; a change is answered when it serves."""

from typing import Protocol

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor.control import Answer
from coddl.runtime.wire import Message


class Leader(Protocol):
    """What can be asked of a job."""

    def resize(self, workers: int) -> None: ...
    def suspend(self) -> None: ...
    def resume(self, workers: int | None = None) -> None: ...
    def status(self) -> Message: ...
    @property
    def target(self) -> int | None: ...
    def has_reached(self, target: int) -> bool:
        """Tell whether the job runs at that size now; raise if it never will."""
        ...


class Requests:
    """Everybody who has asked for a change and waits for it to serve."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._waiting: list[tuple[int, int, Answer]] = []  # target, changes made before

    def take(self, request: Message, answer: Answer) -> None:
        """Do what is asked, or refuse; never raises."""
        try:
            status = self._leader.status()
            if request.get("do") == "status":
                answer({"ok": True, **status})
                return
            made = len(status["changes"])
            self._do(request)
        except TrainingError as error:
            answer({"error": error.parts()})
            return
        target = self._leader.target
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
                if not self._leader.has_reached(target):
                    self._waiting.append((target, made, answer))
                    continue
            except TrainingError as error:
                answer({"error": error.parts()})
            else:
                changes = self._leader.status()["changes"][made:]
                answer({"ok": True, "target": target, "change": changes[-1] if changes else None})

    def _do(self, request: Message) -> None:
        workers = request.get("workers")
        if workers is not None and not isinstance(workers, int):
            raise TrainingError(f"{workers} workers can't be had", "it is no whole number", "2")
        match request.get("do"):
            case "resize" if workers is not None:
                self._leader.resize(workers)
            case "suspend":
                self._leader.suspend()
            case "resume":
                self._leader.resume(workers)
            case unknown:
                raise TrainingError(f"{unknown} can't be asked", "it is no request", "status")

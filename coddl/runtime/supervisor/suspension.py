"""A job that is to leave: its workers go once its state is on disk, and train on if it is not."""

import sys
import time
from collections.abc import Sequence
from typing import Final, Protocol

from coddl.runtime.supervisor import generations as group
from coddl.runtime.supervisor.checkpointing import Checkpointing
from coddl.runtime.supervisor.job_status import RETIRED, JobStatus
from coddl.runtime.supervisor.loop import Loop
from coddl.runtime.supervisor.slots import Slot
from coddl.runtime.supervisor.workers import Workers
from coddl.runtime.wire import Message

SAVE_AGAIN_S: Final = 10.0  # between tries to save a job that is to leave


class SupportsSuspension(Protocol):
    """What suspension needs of the supervisor."""

    @property
    def job_status(self) -> JobStatus: ...
    @property
    def workers(self) -> Workers: ...
    @property
    def checkpointing(self) -> Checkpointing: ...
    def tell(self, event: Message) -> None: ...
    def set_target(self, slots: Sequence[Slot]) -> None: ...
    def feed(self, event: group.Event) -> None: ...
    def stop(self, code: int) -> None: ...
    def capture(self) -> None:
        """Have an image taken and saved."""
        ...


class Suspension:
    """Tells the last worker whether its image is safe, and the host when the job has left."""

    def __init__(self, supervisor: SupportsSuspension, loop: Loop) -> None:
        self._supervisor = supervisor
        self._loop = loop
        self._slots: Sequence[Slot] = ()  # the last ones it had
        self._last: tuple[int, int, int] | None = None  # worker, generation and step of the image
        self.is_refused = False  # it was to leave, and trains on until it can be saved

    def remember_slots(self, slots: Sequence[Slot]) -> None:
        """Remember the slots on which the job trains on if it can't leave."""
        self._slots = slots or self._slots

    def expect(self, worker: int, message: Message) -> None:
        """Take note that a worker waits to hear what becomes of its image, or has none."""
        if "generation" in message:
            self._last = (worker, message["generation"], message.get("step", sys.maxsize))

    def on_saved(self, word: Message) -> None:
        """Take in what became of an image."""
        supervisor, job_status = self._supervisor, self._supervisor.job_status
        supervisor.checkpointing.tell_outcome(word)
        job_status.unsaved = supervisor.checkpointing.unsaved
        if supervisor.workers.is_saving or job_status.stopping is not None:
            return
        if self._last is not None:
            (worker, generation, step), self._last = self._last, None
            if (supervisor.checkpointing.saved_step or 0) >= step:
                supervisor.workers.send([worker], {"do": "leave", "generation": generation})
            else:
                self._stay(worker, generation)
        elif self.is_refused and job_status.unsaved is None and job_status.is_at_target:
            self._loop.silence("save again")
            supervisor.set_target(())

    def _stay(self, worker: int, generation: int) -> None:
        """Train on where the job was; one that is to retire is saved again until that works."""
        supervisor = self._supervisor
        supervisor.set_target(self._slots)
        supervisor.feed(group.GroupBroken(worker, generation))  # none of it has left
        if supervisor.job_status.is_retiring:
            self.is_refused = True
            self._plan()

    def _plan(self) -> None:
        self._loop.alarm("save again", time.monotonic() + SAVE_AGAIN_S, self._save_again)

    def _save_again(self) -> None:
        if not self._supervisor.job_status.is_over:
            self._plan()
            self._supervisor.capture()

    def fall_asleep(self) -> None:
        """Tell that the job is suspended once its state is durable and nobody runs."""
        supervisor, job_status = self._supervisor, self._supervisor.job_status
        coordinator = job_status.coordinator
        workers = supervisor.workers
        is_busy = bool(coordinator.members or workers.records or workers.is_saving)
        if job_status.target != 0 or job_status.is_asleep or is_busy or not coordinator.is_settled:
            return
        job_status.is_asleep = True
        supervisor.tell(job_status.suspended(supervisor.checkpointing.saved_step))
        supervisor.tell({"is": "progress", **job_status.brief(supervisor.workers)})
        if job_status.is_retiring:
            supervisor.stop(RETIRED)

"""A job that is to leave: its workers go once its state is on disk, and train on if it is not."""

import sys
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from coddl.runtime.supervisor import generations as group
from coddl.runtime.supervisor.coordinator import Coordinator
from coddl.runtime.supervisor.job_status import RETIRED
from coddl.runtime.supervisor.loop import SupervisorLoop
from coddl.runtime.supervisor.slots import Slot
from coddl.runtime.supervisor.worker_record import WorkerRecord
from coddl.runtime.wire import Message

if TYPE_CHECKING:
    from coddl.runtime.supervisor.supervisor import Supervisor

SAVE_AGAIN_S: Final = 10.0  # between tries to save a job that is to leave


class Suspension:
    """Tells the last worker whether its image is safe, and the host when the job has left."""

    def __init__(self, supervisor: "Supervisor", loop: SupervisorLoop) -> None:
        self._supervisor = supervisor
        self._loop = loop
        self._slots: Sequence[Slot] = ()  # the last ones it had
        self._last: tuple[int, int, int] | None = None  # worker, generation and step of the image
        self._parked: tuple[str, str] | None = None  # node and path of a parked job's image
        self.is_refused = False  # it was to leave, and trains on until it can be saved

    def remember_slots(self, slots: Sequence[Slot]) -> None:
        """Remember the slots on which the job trains on if it can't leave."""
        self._slots = slots or self._slots

    def expect(self, record: WorkerRecord, message: Message) -> None:
        """Take note that a worker waits to hear what becomes of its image, or has none."""
        if message.get("parks"):
            self._parked = (record.node, message["path"])
        elif "generation" in message:
            self._last = (record.number, message["generation"], message.get("step", sys.maxsize))

    def on_left(self, record: WorkerRecord, bytes_: int | None) -> None:
        """Take note that a worker has left the group: it exits, or is parked in host memory."""
        job_status = self._supervisor.job_status
        record.owns = 0
        if bytes_ is None:
            self._supervisor.workers.expect_exit(record.number)
            return
        job_status.parked[record.history.slot] = bytes_
        # The time that others had before it was its turn to leave is not its own.
        begin_s = max(job_status.due.at_s, job_status.turn_begun_s)
        job_status.parked_after_s = self._loop.now_s() - begin_s

    def call_back(self, slots: Container[int]) -> bool:
        """Have parked workers go on, those on some slots; the others are not needed any more.

        False: there are none. Then it ends as it was told, once its state is on disk.
        """
        supervisor, job_status = self._supervisor, self._supervisor.job_status
        records = [each for each in supervisor.workers.records if each.history.is_parked]
        back = [record for record in records if record.history.slot in slots]
        if not back:
            return False
        job_status.is_retiring = job_status.parks = job_status.is_asleep = False
        job_status.parked.clear()
        job_status.has_slept, self._parked = True, None
        self._loop.silence("save again")
        for record in records:
            if record in back:
                supervisor.workers.unpark(record.number)
            else:
                supervisor.workers.stop(record.number)
        supervisor.feed(_found_again(back, job_status.coordinator))
        return True

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
        elif self._parked is not None and job_status.unsaved is not None:
            self._plan()  # its workers wait in memory, and so does the image
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
        self._loop.alarm("save again", self._loop.now_s() + SAVE_AGAIN_S, self._save_again)

    def _save_again(self) -> None:
        if self._supervisor.job_status.is_over:
            return
        if self._parked is not None:
            self._supervisor.workers.save(*self._parked)
            return
        self._plan()
        self._supervisor.capture()

    def fall_asleep(self) -> None:
        """Tell that the job is suspended once its state is durable and no worker runs."""
        supervisor, job_status = self._supervisor, self._supervisor.job_status
        coordinator = job_status.coordinator
        workers = supervisor.workers
        active = any(not record.history.is_parked for record in workers.records)
        is_kept = self._parked is not None and job_status.unsaved is not None
        is_busy = bool(coordinator.members or active or workers.is_saving or is_kept)
        if job_status.target != 0 or job_status.is_asleep or is_busy or not coordinator.is_settled:
            return
        job_status.is_asleep = True
        supervisor.tell(job_status.suspended(supervisor.checkpointing.saved_step))
        supervisor.tell({"is": "progress", **job_status.brief(supervisor.workers)})
        if job_status.parked and workers.records:
            workers.abandon()  # the next lead finds them
            job_status.exit_code = RETIRED
        elif job_status.is_retiring:
            supervisor.stop(RETIRED)


def _found_again(records: Iterable[WorkerRecord], coordinator: Coordinator) -> group.SurvivorsFound:
    """Give what the coordinator must know of workers that had left."""
    survivors = tuple(record.survivor for record in records)
    sizes = (coordinator.parts, coordinator.workers_max)
    return group.SurvivorsFound(survivors, coordinator.generation, -1, *sizes)

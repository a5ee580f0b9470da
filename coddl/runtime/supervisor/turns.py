"""Turns of a job of one worker on a slot that several jobs share.

An agent ends a turn and begins the next one. The group and its generation stay as they are: the
worker waits between two iterations. What is asked for before there is such a group is remembered.
"""

from typing import TYPE_CHECKING

from coddl.runtime.supervisor import generations as group
from coddl.runtime.supervisor.progress import ProgressReporter
from coddl.runtime.supervisor.worker_record import WorkerRecord
from coddl.runtime.wire import Message

if TYPE_CHECKING:
    from coddl.runtime.supervisor.supervisor import Supervisor


class JobTurns:
    """Tells the worker when its turn ends and begins, and the host when that is done."""

    def __init__(self, supervisor: "Supervisor", progress: ProgressReporter) -> None:
        self._supervisor = supervisor
        self._progress = progress
        self._resident: bool | None = None  # its turn is to end: whether it stays on its device
        self._told: int | None = None  # the worker that knows of it
        self._begins: int | None = None  # the worker whose turn is to begin
        self._is_crowded = False  # workers of other jobs may be on its device
        self._gone: tuple[WorkerRecord, int, str | None] | None = None  # until its image is saved

    # What the agent asks for.

    def end(self, *, resident: bool) -> None:
        """Have the turn end after the next update; if that has happened, see where it waits."""
        self._resident, self._told, self._begins = resident, None, None
        job_status = self._supervisor.job_status
        if not job_status.coordinator.members:
            job_status.moved_s = None  # a worker that is being started may have to wait for a turn
        self.settle()

    def begin(self, *, crowded: bool = False) -> None:
        """Have the turn begin, or not end; `turn begun` is told in either case.

        `crowded`: workers of other jobs are on the device, and would move out if there is need.
        """
        self._is_crowded = crowded
        told, self._resident, self._told = self._told, None, None
        for record in self._supervisor.workers.records:
            if record.history.awaits_turn or record.number == told:
                self._begins = record.number
                self._supervisor.workers.begin_turn(record.number)
                return
        self._tell_begun()

    def settle(self) -> None:
        """Send what was asked for, once there is a group of one worker."""
        job_status = self._supervisor.job_status
        members = job_status.coordinator.members
        if not members:
            self._told = None  # a worker that was parked since has forgotten it
        if self._resident is None or not job_status.is_at_target or len(members) != 1:
            return
        if self._told != members[0]:
            self._told = members[0]
            word = {"do": "end turn", "resident": self._resident}
            self._supervisor.workers.send(members, word)

    # What becomes of it.

    def hear(self, record: WorkerRecord, message: Message) -> None:
        """Take in that a worker's turn has ended or begun."""
        if message["is"] == "turn ended":
            self._on_ended(record)
        else:
            self._on_begun(record)
        self._supervisor.tell({**message, "worker": record.number, "slot": record.history.slot})
        if message.get("crowded"):
            self._on_refused(record)

    def _on_ended(self, record: WorkerRecord) -> None:
        supervisor, job_status = self._supervisor, self._supervisor.job_status
        job_status.moved_s = None  # it does not stand still: it waits
        job_status.step_timer.pause()
        supervisor.retries.stepped(record.history.step)
        if supervisor.capture_timer.is_awaited:
            self.capture()
        supervisor.feed(group.WorkerStepped(record.number, record.history.step, None))

    def _on_refused(self, record: WorkerRecord) -> None:
        """Have others move out that keep a worker from moving in; if none does, it can't go on."""
        self._begins = None
        if not self._make_room():
            record.ran_out_of_memory = True
            self._supervisor.workers.kill(record.number)

    def crowd_out(self, record: WorkerRecord) -> bool:
        """Take in that a worker ends as it ran out of memory; False: that is not due to others.

        Otherwise the job goes on where it is, from its last checkpoint, once they have moved out.
        """
        if self._make_room():
            record.ran_out_of_memory = record.is_crowded_out = True
        return record.is_crowded_out

    def _make_room(self) -> bool:
        """Have other jobs move out of the device; False: they have."""
        is_crowded, self._is_crowded = self._is_crowded, False
        if is_crowded:
            self._supervisor.tell({"is": "crowded"})
        return is_crowded

    def _on_begun(self, record: WorkerRecord) -> None:
        job_status = self._supervisor.job_status
        if record.turn_begun_s > job_status.turn_begun_s:  # else it did not have to wait
            job_status.turn_begun_s = record.turn_begun_s
            # A turn may be over after one step: that one is timed, too.
            job_status.step_timer.stepped(record.history.step, record.turn_begun_s)
            self._progress.began()
        if self._begins == record.number:
            self._begins = None

    def _tell_begun(self) -> None:
        slots = self._supervisor.workers.slots
        slot = slots[0].number if slots else None
        self._supervisor.tell({"is": "turn begun", "seconds": 0.0, "worker": None, "slot": slot})

    # State.

    def capture(self) -> bool:
        """Have the image saved that a worker waits with; False: there is none."""
        supervisor = self._supervisor
        for record in supervisor.workers.records:
            image = self._image_of(record)
            if record.history.awaits_turn and image is not None:
                supervisor.capture_timer.is_awaited = False
                if not self._is_saved(record):
                    supervisor.workers.save(record.node, image)
                return True
        return False

    def on_gone(self, record: WorkerRecord, code: int, because: str | None) -> bool:
        """Have the image of a worker saved that died while it waited; True: it is on its way.

        The job goes on from there: the supervisor hears of the end of the worker after that.
        """
        supervisor = self._supervisor
        image, record.history.image = self._image_of(record), None
        is_over = supervisor.job_status.is_over or record.is_unwanted
        if image is not None and not is_over and not self._is_saved(record):
            self._gone = (record, code, because)
            supervisor.workers.save(record.node, image)
            return True
        if record.history.awaits_turn:  # the next worker starts when its turn has come
            self._resident = self._told = None
        if self._begins == record.number:
            self._begins = None
            self._tell_begun()
        return False

    def on_saved(self) -> None:
        """Go on without a worker whose image is saved now, or can't be."""
        if self._gone is not None and not self._supervisor.workers.is_saving:
            gone, self._gone = self._gone, None
            self._supervisor.on_gone(*gone)

    def _image_of(self, record: WorkerRecord) -> str | None:
        """Give the image that a worker waits with; a rigid job could not go on from there."""
        return record.history.image if self._supervisor.job_status.rigid is None else None

    def _is_saved(self, record: WorkerRecord) -> bool:
        return self._supervisor.checkpointing.saved_step == record.history.step

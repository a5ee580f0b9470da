"""Decides what the exit of a worker means for its job."""

import signal
from typing import TYPE_CHECKING, Final

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor import generations as group
from coddl.runtime.supervisor import job_errors
from coddl.runtime.supervisor.loop import SupervisorLoop
from coddl.runtime.supervisor.worker_record import WorkerRecord, signal_name

if TYPE_CHECKING:
    from coddl.runtime.supervisor.supervisor import Supervisor

WITHHELD_S: Final = 3.0  # a killed worker may be heard of later than those that fail because of it


class ExitPolicy:
    """Reports each exit, finds its cause, and tells the coordinator.

    A script with a group of its own fails where a peer is killed. So its failure counts only once
    no worker is left to be heard of, or none was heard of for a while.
    """

    def __init__(self, supervisor: "Supervisor", loop: SupervisorLoop) -> None:
        self._supervisor = supervisor
        self._loop = loop
        self._withheld: dict[int, tuple[TrainingError, int]] = {}  # by worker, the first first

    def take(self, record: WorkerRecord, code: int, because: str | None) -> None:
        """Draw the conclusions from the end of a worker that is gone."""
        self._conclude(record, code, because)
        if not self._supervisor.workers.records:
            self._judge()

    def _conclude(self, record: WorkerRecord, code: int, because: str | None) -> None:
        supervisor, job_status = self._supervisor, self._supervisor.job_status
        history, is_expected = record.history, record.is_unwanted or record.history.is_out
        is_done = code == 0 and history.has_ended
        name = signal_name(-code) if code < 0 else None
        supervisor.tell(
            {"is": "exited", "worker": record.number, "code": code, "signal": name}
            | {"slot": history.slot, "node": record.node, "because": because}
            | {"expected": is_expected or record.is_crowded_out or is_done}
        )
        if not is_expected:
            needs_loop = job_status.needs_loop
            if self._withheld and code == -signal.SIGABRT:
                return  # how NCCL ends a process whose peer has failed
            if record.ran_out_of_memory:
                supervisor.retries.last_error = f"worker {record.number} ran out of memory"
            elif name is not None:
                why = because or f"killed by {name}"
                self._on_killed(record, code, f"worker {record.number} was lost: {why}")
            elif error := job_errors.verdict(
                record, code, job_status.job, needs_loop=needs_loop, last_line=because or ""
            ):
                if not needs_loop:
                    self._withhold(record, error, code or 1)
                    return
                self.blame(record, error, code or 1)
            else:
                job_status.has_finished = True
                if not history.has_arrived:
                    job_status.is_finishing = True
                    return  # its slot gets no other worker
                if not history.has_ended:
                    supervisor.limits.on_left(history.step)
                supervisor.feed(group.LoopEnded(record.number))  # news only if it broke out of it
        if record.number in job_status.coordinator.members:
            job_status.due = job_status.due_now("failure")
        supervisor.feed(group.WorkerLost(record.number))

    def blame(self, record: WorkerRecord, error: TrainingError, code: int) -> None:
        """Fail because the script did; not while others train on, to whom a joiner is no loss."""
        supervisor, retries = self._supervisor, self._supervisor.retries
        others = any(each.has_stepped for each in supervisor.workers.records if each is not record)
        if others and not record.has_stepped and retries.allows_joiner():
            retries.last_error = f"worker {record.number}: {error.because}"
            supervisor.tell({"is": "problem", **error.parts()})
            supervisor.workers.stop(record.number)
        else:
            supervisor.fail(error, code)

    def _on_killed(self, record: WorkerRecord, code: int, error: str) -> None:
        supervisor, job_status = self._supervisor, self._supervisor.job_status
        supervisor.retries.last_error = error
        # What it was to do still is not done.
        if record.history.has_ended or job_status.is_finishing:
            supervisor.fail(job_errors.died_after_loop(job_status.job, error), 128 - code)
        elif not job_status.needs_loop:
            supervisor.workers.restart_together()
            lost, self._withheld = self._withheld, {}
            for number in lost:
                supervisor.feed(group.WorkerLost(number))

    def _withhold(self, record: WorkerRecord, error: TrainingError, code: int) -> None:
        self._withheld[record.number] = (error, code)
        self._loop.alarm("verdict", self._loop.now_s() + WITHHELD_S, self._judge)

    def _judge(self) -> None:
        for error, code in self._withheld.values():
            self._supervisor.fail(error, code)
            return

"""Sizes at which a job can't run: slices do not fit in memory, or it can't be resized."""

import sys
from typing import Protocol

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor import job_errors
from coddl.runtime.supervisor.job_status import RETIRED, JobStatus
from coddl.runtime.supervisor.memory_fit import SizeLimit
from coddl.runtime.supervisor.worker_record import WorkerRecord
from coddl.runtime.wire import Message


class SupportsLimits(Protocol):
    """What size limits need of the supervisor."""

    @property
    def job_status(self) -> JobStatus: ...
    @property
    def is_hosted(self) -> bool: ...
    def tell(self, event: Message) -> None: ...
    def fail(self, error: TrainingError, code: int) -> None: ...
    def stop(self, code: int) -> None: ...
    def set_workers(self, workers: int) -> None: ...


class SizeLimiter:
    """Learns limits from workers, tells them, and brings the job to a size that it can have."""

    def __init__(self, supervisor: SupportsLimits) -> None:
        self._supervisor = supervisor
        self._told = 1  # the minimum, as it was told last

    def on_prepared(self) -> None:
        """Do not begin with slices that another job with this model ran out of memory with."""
        job_status = self._supervisor.job_status
        for limit in job_status.job.limits:
            if limit.model == job_status.about.get("model"):
                job_status.memory_fit.remember(limit)
        self._tell_news()
        if job_status.target is not None and job_status.target < self._told:
            self._supervisor.stop(RETIRED)  # the host gives it more

    def on_rigid(self, message: Message) -> None:
        """Take note that the job can't be resized any more."""
        job_status = self._supervisor.job_status
        if job_status.rigid is None:
            job_status.rigid = TrainingError(message["what"], message["because"], message["try"])
            self._supervisor.tell({"is": "problem", **job_status.rigid.parts()})

    def on_stepped(self, message: Message) -> None:
        """Take note that slices of this size fit, and of the memory they need."""
        job_status = self._supervisor.job_status
        if job_status.coordinator.phase == "steady":
            job_status.memory_fit.trained(len(job_status.coordinator.members))
        if "memory" in message:
            job_status.memory_fit.measured(**message["memory"])
            self._tell_news()
            if job_status.measured:  # in fast trainings passes are timed before this is told
                self._supervisor.tell(job_status.profiled(job_status.measured))

    def _tell_news(self) -> None:
        """Tell of a minimum that is higher than what was told before."""
        limit = self._supervisor.job_status.limit
        if limit.workers_min is not None and limit.workers_min > self._told:
            self._tell(limit, limit.workers_min)

    def _tell(self, limit: SizeLimit, workers_min: int) -> None:
        self._told = workers_min
        self._supervisor.tell({"is": "memory", **limit.as_data()})

    def on_out_of_memory(self, record: WorkerRecord, samples: int) -> None:
        """Go back to a size whose slices fit, with the state from before the last change."""
        if not samples:
            return  # between two passes: the script fails
        supervisor, job_status = self._supervisor, self._supervisor.job_status
        job, memory_fit, coordinator = job_status.job, job_status.memory_fit, job_status.coordinator
        record.ran_out_of_memory = True
        memory_fit.ran_out(samples)
        tried = memory_fit.tried(job_status.batch_split)
        # What a host allows may change: it says itself what it can't give.
        allowed = None if supervisor.is_hosted else job.workers_max
        most = min(n for n in (allowed, coordinator.workers_max, sys.maxsize) if n is not None)
        if tried.workers_min is None or tried.workers_min > most:
            supervisor.fail(job_errors.never_fits(job, tried.because, most), 2)
            return
        self._tell(tried, tried.workers_min)
        self._tell_news()  # what is known beside that may ask for more
        if supervisor.is_hosted:
            supervisor.stop(RETIRED)  # the host gives it more
        elif job_status.target is not None and job_status.target < self._told:
            supervisor.set_workers(max(self._told, memory_fit.size))

    def on_ended(self, message: Message) -> None:
        """Take in how a worker's loops ended."""
        if not message.get("complete", True):
            self.on_left(message["step"])

    def on_left(self, step: int) -> None:
        """Say so when a script leaves its loops before the training's last step.

        Loops that end by `coddl.stop`, or because epochs are cut short, are complete.
        """
        job_status = self._supervisor.job_status
        steps = job_status.about.get("steps")
        if steps and step < steps and not job_status.has_left_early:
            job_status.has_left_early = True
            self._supervisor.tell({"is": "left-early", "step": step, "steps": steps})

"""Sizes that a job turns out not to be able to have: slices do not fit, epochs are unknown."""

import sys
from typing import Protocol

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor import troubles
from coddl.runtime.supervisor.fitting import Limit
from coddl.runtime.supervisor.ledger import WorkerNotes
from coddl.runtime.supervisor.standing import RETIRED, Standing
from coddl.runtime.wire import Message


class Limited(Protocol):
    """The supervisor, as limits concern it."""

    @property
    def standing(self) -> Standing: ...
    @property
    def is_hosted(self) -> bool: ...
    def tell(self, event: Message) -> None: ...
    def fail(self, error: TrainingError, code: int) -> None: ...
    def stop(self, code: int) -> None: ...
    def set_workers(self, workers: int) -> None: ...


class Limits:
    """Learns limits from workers, tells them, and brings the job to a size that it can have."""

    def __init__(self, supervisor: Limited) -> None:
        self._supervisor = supervisor
        self._told = 1  # the minimum, as it was told last

    def on_prepared(self) -> None:
        """Do not begin with slices that another job with this model ran out of memory with."""
        standing = self._supervisor.standing
        for limit in standing.job.limits:
            if limit.model == standing.about.get("model"):
                standing.fitting.remember(limit)
        self._tell_news()
        if standing.target is not None and standing.target < self._told:
            self._supervisor.stop(RETIRED)  # the host gives it more

    def on_rigid(self, message: Message) -> None:
        """Take note that the job can't be resized any more."""
        standing = self._supervisor.standing
        if standing.rigid is None:
            standing.rigid = TrainingError(message["what"], message["because"], message["try"])
            self._supervisor.tell({"is": "problem", **standing.rigid.parts()})

    def on_stepped(self, message: Message) -> None:
        """Take note that slices of this size fit, and of the memory they need."""
        standing = self._supervisor.standing
        if standing.coordinator.phase == "steady":
            standing.fitting.trained(len(standing.coordinator.members))
        if "memory" in message:
            standing.fitting.measured(**message["memory"])
            self._tell_news()

    def _tell_news(self) -> None:
        """Tell of a minimum that is higher than what was told before."""
        limit = self._supervisor.standing.limit
        if limit.workers_min is not None and limit.workers_min > self._told:
            self._tell(limit, limit.workers_min)

    def _tell(self, limit: Limit, workers_min: int) -> None:
        self._told = workers_min
        self._supervisor.tell({"is": "memory", **limit.as_data()})

    def on_out_of_memory(self, notes: WorkerNotes, samples: int) -> None:
        """Go back to a size whose slices fit, with the state from before the last change."""
        supervisor, standing = self._supervisor, self._supervisor.standing
        job, fitting, coordinator = standing.job, standing.fitting, standing.coordinator
        notes.ran_out_of_memory = True
        fitting.ran_out(samples)
        tried = fitting.tried(standing.sharing)
        # What a host allows may change: it says itself what it can't give.
        allowed = None if supervisor.is_hosted else job.workers_max
        most = min(n for n in (allowed, coordinator.workers_max, sys.maxsize) if n is not None)
        if tried.workers_min is None or tried.workers_min > most:
            supervisor.fail(troubles.never_fits(job, tried.because, most), 2)
            return
        self._tell(tried, tried.workers_min)
        self._tell_news()  # what is known beside that may ask for more
        if supervisor.is_hosted:
            supervisor.stop(RETIRED)  # the host gives it more
        elif standing.target is not None and standing.target < self._told:
            supervisor.set_workers(max(self._told, fitting.size))

    def on_ended(self, message: Message) -> None:
        """Take in how a worker's loops ended."""
        if not message.get("complete", True):
            self.on_left(message["step"])

    def on_left(self, step: int) -> None:
        """Say so when a script leaves its loops before the training's last step.

        Loops that end by `coddl.stop`, or because epochs are cut short, are complete.
        """
        standing = self._supervisor.standing
        steps = standing.about.get("steps")
        if steps and step < steps and not standing.has_left_early:
            standing.has_left_early = True
            self._supervisor.tell({"is": "left-early", "step": step, "steps": steps})

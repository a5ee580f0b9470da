"""Runs an emulated job: tells of its training what a supervisor tells of processes."""

import math
from collections.abc import Sequence
from typing import assert_never

from coddl.agent.emulated.nodes import EmulatedCluster, Timer
from coddl.agent.emulated.training import (
    Changed,
    EmulatedTraining,
    Finished,
    Stepped,
    TrainingEvent,
)
from coddl.agent.job_runner import JobRun, RunListener
from coddl.agent.reconcile import Addresses
from coddl.api.wire import RunProgress
from coddl.core.errors import UserError
from coddl.core.pool.orders import AssignedSlot
from coddl.core.pool.records import (
    ChangeKind,
    Outcome,
    RunChanged,
    RunEnded,
    RunPrepared,
    RunProgressed,
    RunStepped,
    Trouble,
)


class EmulatedRunner:
    """Leads one emulated training, in the agent's event loop."""

    def __init__(self, run: JobRun, listener: RunListener, cluster: EmulatedCluster) -> None:
        self.run = run
        self._listener = listener
        self._cluster = cluster
        self._training: EmulatedTraining | None = None  # none: not started, or over
        self._timer: Timer | None = None
        self._changes = 0

    # What may be asked of it.

    def start(self, slots: Sequence[AssignedSlot], addresses: Addresses) -> None:
        run = self.run
        if run.precheck:
            self._end("prechecked")
            return
        try:
            self._training = self._take_training()
        except UserError as error:
            self._end("failed", Trouble(error.what, error.because, error.try_))
            return
        steps = self._training.workload.steps
        self._listener.on_fact(run, RunPrepared(run.job, run.attempt, None, steps))
        self.resize(slots, addresses)

    def _take_training(self) -> EmulatedTraining:
        """Give the training of this run; raises UserError if the job does not say what it is."""
        return self._cluster.training_for(self.run)

    def resize(self, slots: Sequence[AssignedSlot], addresses: Addresses) -> None:  # noqa: ARG002 - all nodes are here
        now_s = self._look()
        if self._training is not None:  # it has not finished meanwhile
            self._cluster.note_slots({each.slot: each.node for each in slots})
            self._training.assign(tuple(each.slot for each in slots), now_s)
            self._look()

    def mark_lost(self, nodes: Sequence[str]) -> None:
        """Do nothing: orders without the slots of those nodes follow."""

    def suspend(self, reason: str, *, park: bool = False) -> None:  # noqa: ARG002 - none can be
        self._listener.on_line(self.run, "coddl", f"stopping: {reason}")
        self._leave("retired")

    def end_turn(self, *, resident: bool) -> None:
        """Do nothing: emulated jobs take no turns."""

    def begin_turn(self, *, crowded: bool) -> None:
        """Do nothing: emulated jobs take no turns."""

    def cancel(self) -> None:
        self._leave("cancelled")

    def fail(self, trouble: Trouble) -> None:
        self._leave("failed", trouble)

    def force(self, *, at_all_costs: bool) -> bool:  # noqa: ARG002 - nothing can be lost
        self._leave("retired")
        return True

    @property
    def is_unsaved(self) -> bool:
        return False

    def release(self) -> None:
        self._forget_training()
        self._leave_slots()
        self._listener.on_over(self.run)

    def join(self, timeout_s: float) -> bool:  # noqa: ARG002 - it has no thread
        return self._training is None

    @property
    def progress(self) -> RunProgress | None:
        """How it is doing; None: it has not trained on the slots that it has."""
        now_s, training = self._look(), self._training
        if training is None or not (here := training.done_here(now_s)):
            return None
        progressed = RunProgressed(
            job=self.run.job,
            attempt=self.run.attempt,
            step=int(training.done_at(now_s)),
            gpus=len(training.slots),
            step_s=training.step_s,
            iterations=here,
        )
        return RunProgress(progressed=progressed, steps=training.workload.steps)

    # What happens.

    def _look(self) -> float:
        """Tell of all that has happened by now, and come back when more will; give the time."""
        training, now_s = self._training, self._cluster.time.now_s()
        if training is None:
            return now_s
        for event in training.advance(now_s):
            self._tell(event)
        if not training.is_finished:
            self._cluster.occupy(self.run)
            self._come_back(training.next_s)
        return now_s

    def _tell(self, event: TrainingEvent) -> None:
        job, attempt = self.run.job, self.run.attempt
        match event:
            case Changed():
                self._tell_change(event)
            case Stepped(_, step):
                self._listener.on_fact(self.run, RunStepped(job, attempt, step))
            case Finished():
                self._end("succeeded")
            case _:
                assert_never(event)

    def _tell_change(self, event: Changed) -> None:
        self._changes += 1
        kind: ChangeKind = "resized"
        if not event.before:
            kind = "restarted" if event.step else "started"
        elif event.before == len(event.slots):
            kind = "moved"
        told = RunChanged(
            job=self.run.job,
            attempt=self.run.attempt,
            change=self._changes,
            kind=kind,
            gpus_before=event.before,
            slots=event.slots,
            step=event.step,
            pause_s=event.pause_s,
            serving_s=event.serving_s,
        )
        self._listener.on_fact(self.run, told)

    def _come_back(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        is_due = math.isfinite(at_s)
        self._timer = self._cluster.time.call_at(at_s, self._on_time) if is_due else None

    def _on_time(self) -> None:
        self._look()

    def _leave(self, outcome: Outcome, trouble: Trouble | None = None) -> None:
        """Save what is done, and end; one that has just finished has succeeded."""
        now_s = self._look()
        if self._training is not None:
            self._training.leave(now_s)
            self._cluster.save(self.run.job, self._training.done_at(now_s))
            self._end(outcome, trouble)

    def _end(self, outcome: Outcome, trouble: Trouble | None = None) -> None:
        training = self._training
        done = training.done_at(self._cluster.time.now_s()) if training is not None else 0
        self._forget_training()
        self._cluster.end(self.run.job)
        self._leave_slots()
        exit_code = {"succeeded": 0, "failed": 1}.get(outcome)
        job, attempt = self.run.job, self.run.attempt
        ended = RunEnded(job, attempt, outcome, int(done), exit_code, trouble)
        self._listener.on_fact(self.run, ended)
        self._listener.on_over(self.run)

    def _leave_slots(self) -> None:
        """Tell that no command is left; of workers their host tells."""
        if not self.run.is_elastic:
            self._listener.on_slots(self.run, (), None)

    def _forget_training(self) -> None:
        self._training = None
        self._come_back(math.inf)

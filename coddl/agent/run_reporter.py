"""Turns a supervisor's events into facts for the server and log lines for users. Pure.

A `ReportSink` is where the agent leaves what the server must know.
"""

import signal
from typing import Final, Literal, Protocol, cast, get_args

from coddl.agent.loss_spans import LossSpans
from coddl.api.wire import Holding, RunProgress
from coddl.core.errors import UserError
from coddl.core.pool.records import (
    STEPS_MAX,
    ChangeKind,
    LossMeasured,
    Outcome,
    RunChanged,
    RunEnded,
    RunFact,
    RunPrepared,
    RunProfiled,
    RunProgressed,
    RunStalled,
    RunStepped,
    RunUnsaved,
    SliceDidNotFit,
    Trouble,
)
from coddl.core.speed.profile import TrainingProfile
from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor.job_status import RETIRED, SUPERSEDED
from coddl.runtime.wire import Message

Fact = RunFact
Asked = Literal["", "retire", "cancel"]

CHANGES: Final = frozenset(get_args(ChangeKind))

# Signals by which a process ends itself; by others it is ended.
CRASHES: Final = frozenset(
    {
        signal.SIGSEGV,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGSYS,
        signal.SIGTRAP,
    }
)


class ReportSink(Protocol):
    """Takes what the server must know. Called in the agent's event loop."""

    def report(self, fact: Fact) -> None:
        """Tell a fact, until it is acknowledged."""
        ...

    def hold(self, holding: Holding) -> None:
        """Tell which slots have processes, by which version of the orders, and our runs."""
        ...

    def progress(self, progress: RunProgress) -> None:
        """Tell how a run is doing, some time soon."""
        ...


class RunReporter:
    """Follows one run of a job from its first event to its end."""

    def __init__(self, job: int, attempt: int) -> None:
        self._job = job
        self._attempt = attempt
        self._changes = 0
        self._has_prepared = False
        self._has_stepped = False
        self._is_to_blame = False  # a worker failed by its own doing, and the job has not recovered
        self._trouble: Trouble | None = None
        self._saved_step: int | None = None
        self._unsaved: Trouble | None = None  # why the newest state is not on disk
        self._has_left_unsaved = False
        self._has_left_early = False
        self._parked: Message | None = None  # of the workers that stay
        self._step = 0
        self._losses = LossSpans()
        self.progress: RunProgress | None = None  # the newest

    @property
    def is_quiet(self) -> bool:
        """Tell whether the script has not called `coddl.prepare` yet."""
        return not self._has_prepared

    def hear(self, event: Message) -> tuple[tuple[Fact, ...], str]:
        """Take in an event; give the facts that follow, and what people should read of it."""
        match event["is"]:
            case "prepared":
                return self._prepared(event), ""
            case "memory":
                return self._did_not_fit(event)
            case "profile":
                return self._profiled(event), ""
            case "progress":
                return self._progressed(event), ""
            case "still":
                self._note_progress(event)
            case "checkpoint":
                self._saved_step = event["step"]
                return self._saved(None), ""
            case "stalled":
                fact = RunStalled(self._job, self._attempt, event["step"], event["still_s"])
                return (fact,), f"no step for {event['still_s']:.0f} s"
            case "unsaved":
                return self._saved(_trouble(event)), _problem(event)
            case "suspended":
                self._has_left_unsaved = not event["durable"]
                self._parked = event.get("parked")
            case "left-early":
                self._has_left_early = True
                return (), f"the script left its loop at step {event['step']} of {event['steps']}"
            case "ended":
                self._step = max(self._step, event["step"])
            case "origin":
                return (), _origin(event)
            case "exited" if not event["expected"]:
                return (), self._exited(event)
            case "unready":
                return (), f"worker {event['worker']} could not join: {event['because']}"
            case "error":
                self._trouble = _trouble(event)
                return (), _problem(event)
            case "problem":
                return (), _problem(event)
            case "crowded":
                return (), "out of GPU memory beside jobs that wait on the same GPU: they move out"
            case kind if kind in CHANGES:
                return (self._changed(event),), ""
        return (), ""

    def ended(self, code: int, asked: Asked) -> RunEnded | None:
        """Give how the run has ended; None if it no longer matters."""
        if code == SUPERSEDED:
            return None
        outcome = self._outcome(code, asked)
        known = self._trouble or (self._unsaved if self._has_left_unsaved else None)
        told = known if outcome in ("failed", "lost") else None
        trouble = told or _unexplained(self._job, code, outcome)
        exit_code = code if outcome in ("succeeded", "failed", "requeue") else None
        return self._ended(outcome, exit_code=exit_code, trouble=trouble)

    def refused(self, error: TrainingError) -> RunEnded:
        """Give how a run has ended that could not go on at all.

        If the system said no, another node, or another time, may do.
        """
        trouble = Trouble(error.what, error.because, error.try_)
        if isinstance(error.__cause__, OSError):
            return self._ended("lost", trouble=trouble, refused=True)
        return self.failed(trouble)

    def failed(self, trouble: Trouble, outcome: Outcome = "failed") -> RunEnded:
        """Give the end of a run that was ended for a reason of ours."""
        return self._ended(outcome, trouble=trouble)

    def _ended(
        self,
        outcome: Outcome,
        *,
        exit_code: int | None = None,
        trouble: Trouble | None = None,
        refused: bool = False,
    ) -> RunEnded:
        about: Message = {
            "step": self._step,
            "exit_code": exit_code,
            "trouble": trouble,
            "refused": refused,
        }
        about["left_early"] = outcome == "succeeded" and self._has_left_early
        if self._parked is not None and outcome == "retired":
            about["parked"] = tuple(self._parked["slots"])
            about["parked_bytes"] = self._parked["bytes"]
            about["park_s"] = self._parked["seconds"]
        return RunEnded(self._job, self._attempt, outcome, **about)

    def _outcome(self, code: int, asked: Asked) -> Outcome:
        if code == 0:
            return "succeeded"
        if asked == "cancel":
            return "cancelled"
        if code == RETIRED and asked == "retire":
            return "lost" if self._has_left_unsaved else "retired"
        if code == RETIRED:
            return "requeue"
        if asked == "retire":
            return "failed" if self._is_to_blame else "retired"
        return "failed" if self._is_to_blame or code == 2 else "lost"

    def _prepared(self, event: Message) -> tuple[Fact, ...]:
        if self._has_prepared:
            return ()
        self._has_prepared = True
        return (
            RunPrepared(
                job=self._job,
                attempt=self._attempt,
                virtual_nodes=event.get("virtual_nodes"),
                steps=_steps(event.get("steps")),
                global_batch=event.get("global_batch"),
                gradient_bytes=event.get("gradient_bytes", 0),
                largest_tensor_bytes=event.get("largest_tensor_bytes", 0),
                workers_max=event.get("workers_max"),
                model=event.get("model"),
                micro_batch=event.get("micro_batch"),
                training=event.get("training", ""),
                epoch_steps=_steps(event.get("epoch_steps")),
            ),
        )

    def _did_not_fit(self, event: Message) -> tuple[tuple[Fact, ...], str]:
        gpus_min, because = event["workers_min"], event["because"]
        known = (event["evidence"], event["samples"])
        fact = SliceDidNotFit(self._job, self._attempt, gpus_min, because, *known)
        return (fact,), f"needs at least {gpus_min} GPUs: {because}"

    def _profiled(self, event: Message) -> tuple[Fact, ...]:
        try:
            profile = TrainingProfile.from_data(event["profile"])
        except UserError:
            return ()  # of a version that measures something else
        return (RunProfiled(self._job, self._attempt, profile),)

    def _progressed(self, event: Message) -> tuple[Fact, ...]:
        if event["step"] > self._step:
            self._is_to_blame = False  # the job trains on without the worker that failed
        self._note_progress(event)
        losses = self._logged(event.get("loss"))
        if self._has_stepped or not event["step"] or not event["size"]:
            return losses
        self._has_stepped = True
        return (RunStepped(self._job, self._attempt, event["step"]), *losses)

    def _logged(self, loss: Message | None) -> tuple[Fact, ...]:
        point = self._losses.add(loss["step"], loss["loss"], loss["count"]) if loss else None
        return () if point is None else (LossMeasured(self._job, self._attempt, *point),)

    def _note_progress(self, event: Message) -> None:
        self._step, logged = event["step"], event.get("metrics") or {}
        self.progress = RunProgress(
            progressed=RunProgressed(
                job=self._job,
                attempt=self._attempt,
                step=self._step,
                gpus=event["size"],
                step_s=event.get("step_s") or 0.0,
                iterations=event.get("iterations_at_size") or 0,
            ),
            steps=_steps(event.get("steps")),
            samples_per_s=event.get("samples_per_s") or 0.0,
            still_s=event.get("still_s") or 0.0,
            saved_step=self._saved_step,
            metrics=_numbers(logged),
            not_finite=tuple(name for name, value in logged.items() if value is None),
        )

    def _saved(self, trouble: Trouble | None) -> tuple[Fact, ...]:
        if trouble == self._unsaved:
            return ()
        self._unsaved = trouble
        return (RunUnsaved(self._job, self._attempt, self._step, trouble),)

    def _changed(self, event: Message) -> RunChanged:
        self._changes += 1
        self._is_to_blame = False
        self._step = max(self._step, event["step"])
        return RunChanged(
            job=self._job,
            attempt=self._attempt,
            change=self._changes,
            kind=cast(ChangeKind, event["is"]),
            gpus_before=event["from"],
            slots=tuple(event["slots"]),
            step=event["step"],
            pause_s=event["pause_s"],
            serving_s=event["serving_s"],
        )

    def _exited(self, event: Message) -> str:
        code, who = event["code"], f"worker {event['worker']}"
        if code >= 0 or -code in CRASHES:
            self._is_to_blame = True
        if code >= 0:
            return f"{who} exited with code {code}"
        because = event.get("because") or f"killed by {event['signal']}"
        return f"{who} was lost: {because}"


def _numbers(metrics: Message) -> dict[str, float]:
    """Give what a script has logged, less what is no number: a loss may be NaN."""
    return {name: x for name, x in metrics.items() if isinstance(x, int | float)}


def _steps(told: int | None) -> int | None:
    """Give a number of steps; loops that are to go on for ever tell enormous ones."""
    return None if told is None else min(told, STEPS_MAX)


def _trouble(event: Message) -> Trouble:
    return Trouble(event["what"], event["because"], event["try"])


def _unexplained(job: int, code: int, outcome: Outcome) -> Trouble | None:
    """Say what little is known of a run that ended badly and did not say why."""
    if outcome not in ("failed", "lost"):
        return None
    return Trouble("the run ended", f"its exit code was {code}", f"coddl logs {job}")


def _origin(event: Message) -> str:
    skipped = "".join(f"{why}; " for why in event.get("skipped") or ())
    if event["where"] == "scratch":
        return f"{skipped}starting from the beginning"
    return f"{skipped}resuming from step {event['step']} in {event['where']}"


def _problem(event: Message) -> str:
    told = f"{event['what']}: {event['because']}"
    # Where this line is read, the job's output is read already.
    return told if event["try"].startswith("coddl logs") else f"{told}; try: {event['try']}"

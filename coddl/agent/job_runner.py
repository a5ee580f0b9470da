"""Runs one elastic job: hosts its supervisor in a thread, and reports its events to the agent.

A job runner may be called from any thread; it calls its listener from its own.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import structlog

from coddl.agent.job_directories import note_attempt
from coddl.agent.reconcile import Addresses
from coddl.agent.run_reporter import Asked, Fact, RunReporter
from coddl.api.wire import RunProgress
from coddl.core.pool.memory_limits import MemoryLimit
from coddl.core.pool.orders import AssignedSlot
from coddl.core.pool.records import RunEnded, RunId, RunStepped, Trouble
from coddl.core.pool.spec import JobSpec
from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor import slots as places
from coddl.runtime.supervisor.job import Job
from coddl.runtime.supervisor.job_status import SUPERSEDED
from coddl.runtime.supervisor.lead_parts import LeadParts, machine_parts
from coddl.runtime.supervisor.loop import Loop
from coddl.runtime.supervisor.memory_fit import RememberedLimit
from coddl.runtime.supervisor.scripts import calls_prepare
from coddl.runtime.supervisor.slots import JobEnvironment
from coddl.runtime.supervisor.supervisor import Supervisor
from coddl.runtime.wire import Message

QUIET_S: Final = 5.0  # a script that does not call coddl.prepare counts as running after that
STOP_S: Final = 3.0  # between SIGTERM and SIGKILL, for workers that have saved, or need not

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobRun:
    """One attempt at a job; the same as no other."""

    job: int
    attempt: int
    spec: JobSpec
    node: str  # whose agent runs the supervisor
    environment: JobEnvironment
    reason: str = ""  # for the attempt
    adopt: bool = False
    precheck: bool = False
    limits: tuple[MemoryLimit, ...] = ()  # that other jobs have found

    @property
    def id(self) -> RunId:
        return RunId(self.job, self.attempt)

    @property
    def is_elastic(self) -> bool:
        """Tell whether it trains; else it is any other command, such as a precheck."""
        return self.spec.is_elastic and not self.precheck


class RunListener(Protocol):
    """Hears of runs. Called in the job runner's own thread."""

    def on_fact(self, run: JobRun, fact: Fact) -> None: ...
    def on_progress(self, run: JobRun, progress: RunProgress) -> None: ...
    def on_line(self, run: JobRun, stream: str, text: str) -> None: ...
    def on_slots(self, run: JobRun, slots: Sequence[int], pid: int | None) -> None:
        """Hear which slots a command's processes hold; workers are reported by their host."""
        ...

    def on_turn(self, run: JobRun, event: Message) -> None:
        """Hear that a worker's turn has ended or begun, or that others leave it no memory."""
        ...

    def on_over(self, run: JobRun) -> None:
        """Hear that nothing of the run is left here but workers that others may adopt."""
        ...


class JobRunner(Protocol):
    """A run under way."""

    @property
    def run(self) -> JobRun: ...
    def start(self, slots: Sequence[AssignedSlot], addresses: Addresses) -> None:
        """Start it."""
        ...

    def resize(self, slots: Sequence[AssignedSlot], addresses: Addresses) -> None:
        """Have it run on exactly these slots."""
        ...

    def mark_lost(self, nodes: Sequence[str]) -> None:
        """Count its workers on nodes as gone; again does no harm."""
        ...

    def suspend(self, reason: str, *, park: bool = False) -> None:
        """Make its state durable, then end it; `park`: workers that can may stay."""
        ...

    def end_turn(self, *, resident: bool) -> None:
        """Have its only worker wait after the next update; `resident`: on its device."""
        ...

    def begin_turn(self, *, crowded: bool) -> None:
        """Have it go on, or not wait at all; `crowded`: others are resident on its device."""
        ...

    def cancel(self) -> None:
        """End it."""
        ...

    def fail(self, trouble: Trouble) -> None:
        """End it, and say that this was why."""
        ...

    def force(self, *, at_all_costs: bool) -> bool:
        """End it now, since it did not leave in time; False if it is saving its state."""
        ...

    @property
    def is_unsaved(self) -> bool:
        """Tell whether it was to leave, could not be saved, and goes on until it can."""
        ...

    def release(self) -> None:
        """End without a report; workers on other nodes are left to the next job runner."""
        ...

    def join(self, timeout_s: float) -> bool:
        """Wait for its end; tell whether it came."""
        ...


RunnerFactory = Callable[[JobRun, RunListener], JobRunner]


class ElasticRunner:
    """Runs a job that can be resized."""

    def __init__(self, run: JobRun, listener: RunListener, parts: LeadParts | None = None) -> None:
        self.run = run
        self._listener = listener
        self._parts = parts = parts or machine_parts(Loop())
        self._reporter = RunReporter(run.job, run.attempt)
        self._asked: Asked = ""
        self._ours: Trouble | None = None  # why we ended it ourselves
        self._is_dropped = False
        self._has_process = False
        self._supervisor = Supervisor(
            job_of(run), self._hear, node=run.node, adopt=run.adopt, parts=parts
        )
        self._thread = threading.Thread(target=self._work, name=f"lead-{run.job}", daemon=True)

    def start(self, slots: Sequence[AssignedSlot], addresses: Addresses) -> None:
        self._thread.start()
        self.resize(slots, addresses)

    def resize(self, slots: Sequence[AssignedSlot], addresses: Addresses) -> None:
        runtime_slots = [places.Slot(each.slot, each.node, each.gpu) for each in slots]
        self._supervisor.assign(runtime_slots, addresses)

    def mark_lost(self, nodes: Sequence[str]) -> None:
        self._supervisor.lose(nodes)

    def suspend(self, reason: str, *, park: bool = False) -> None:
        self._listener.on_line(self.run, "coddl", f"stopping: {reason}")
        self._asked = self._asked or "retire"
        self._supervisor.retire(park=park)

    def end_turn(self, *, resident: bool) -> None:
        self._supervisor.end_turn(resident=resident)

    def begin_turn(self, *, crowded: bool) -> None:
        self._supervisor.begin_turn(crowded=crowded)

    def cancel(self) -> None:
        self._asked = "cancel"
        self._supervisor.interrupt()
        self._supervisor.interrupt()  # what is cancelled needs no last checkpoint

    def fail(self, trouble: Trouble) -> None:
        self._ours = trouble
        self.cancel()

    def force(self, *, at_all_costs: bool) -> bool:
        if self.is_unsaved or (self._supervisor.is_saving and not at_all_costs):
            return False
        for _ in range(3):
            self._supervisor.interrupt()
        return True

    @property
    def is_unsaved(self) -> bool:
        return self._supervisor.is_unsaved

    def release(self) -> None:
        self._is_dropped = True
        self._supervisor.abandon()

    def join(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        outcome: int | Exception = SUPERSEDED  # whatever ends this thread
        try:
            self._check()
            outcome = self._supervisor.run()
        except Exception as error:
            outcome = error
        finally:
            self._conclude(outcome)

    def _check(self) -> None:
        """Raise TrainingError if there is nothing to run; else note that the attempt begins."""
        check_script(self.run)
        note_attempt(self.run.environment, self.run.attempt)

    def _conclude(self, outcome: int | Exception) -> None:
        """Tell how the run has ended: its exit code, or what was raised."""
        end: RunEnded | None
        match outcome:
            case int():
                end = self._end(outcome)
            case TrainingError():
                end = self._reporter.refused(outcome)
            case _:  # a defect of ours must not take other jobs along
                end = self._reporter.failed(defect_of(outcome), "lost")
                log.error("supervisor_defect", job=self.run.job, exc_info=outcome)
        if end is not None and not self._is_dropped:
            self._listener.on_fact(self.run, end)
        self._listener.on_over(self.run)  # a run without a runner is not listed

    def _end(self, code: int) -> RunEnded | None:
        if self._ours is not None and code != 0:
            return self._reporter.failed(self._ours)
        # One that was called back goes on as if it had never been told to leave.
        is_back = self._asked == "retire" and not self._supervisor.job_status.is_retiring
        return self._reporter.ended(code, "" if is_back else self._asked)

    def _hear(self, event: Message) -> None:
        if event["is"] == "forked" and not self._has_process:
            self._has_process = True
            loop = self._parts.loop
            loop.alarm("quiet", loop.now_s() + QUIET_S, self._tell_quiet)
        facts, line = self._reporter.hear(event)
        for fact in facts:
            self._listener.on_fact(self.run, fact)
        if line:
            self._listener.on_line(self.run, "coddl", line)
        if event["is"] in ("progress", "still") and self._reporter.progress is not None:
            self._listener.on_progress(self.run, self._reporter.progress)
        if event["is"] in ("turn ended", "turn begun", "crowded"):
            self._listener.on_turn(self.run, event)

    def _tell_quiet(self) -> None:
        """Tell that a script runs that will never tell of its steps; others are still starting."""
        script = self.run.environment.cwd / self.run.spec.launch.argv[0]
        if not self._reporter.is_quiet or calls_prepare(script):
            return
        if not self._is_dropped:
            self._listener.on_fact(self.run, RunStepped(self.run.job, self.run.attempt, 0))


def job_of(run: JobRun) -> Job:
    """Describe a run as the runtime wants it."""
    launch, spec, environment = run.spec.launch, run.spec, run.environment
    return Job(
        name=spec.name,
        script=environment.cwd / launch.argv[0],
        argv=launch.argv,
        cwd=environment.cwd,
        env=environment.env,
        folder=environment.folder,
        remote=environment.remote,
        python=environment.python,
        workers_min=spec.gpus_min,
        workers_max=spec.gpus_max,
        checkpoint_every_s=launch.checkpoint_every_s,
        watchdog_s=launch.watchdog_s,
        id=str(run.job),
        attempt=run.attempt,
        restart_reason=run.reason if run.attempt > 1 else "",
        must_prepare=False,
        grace_s=STOP_S,
        limits=tuple(
            RememberedLimit(limit.model, limit.samples, limit.job) for limit in run.limits
        ),
    )


def defect_of(error: Exception) -> Trouble:
    """Tell of a run that ended by a defect of ours."""
    what = "the agent hit a bug while it ran the job"
    return Trouble(what, f"{error!r}", "see the agent's log, and please report it")


def check_script(run: JobRun) -> None:
    """Raise TrainingError if a job's script is not where it should be."""
    script = run.environment.cwd / run.spec.launch.argv[0]
    if script.is_file():
        return
    where = Path(run.spec.launch.folder) / run.spec.launch.argv[0]
    because = f"the submitted folder has no {where}" if run.spec.launch.code else f"no {script}"
    raise TrainingError(
        f"{run.spec.launch.argv[0]} can't be run",
        because,
        "submit from the directory of the script",
    )

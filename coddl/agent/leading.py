"""Leads one elastic job: hosts its supervisor in a thread, and tells the agent what becomes of it.

Whatever the agent wants of a lead may be asked in any thread; what a lead tells is told in its own.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import structlog

from coddl.agent.account import Account, Asked, Fact
from coddl.agent.duties import Posts
from coddl.agent.home import note_attempt
from coddl.api.wire import RunProgress
from coddl.core.pool.limits import MemoryLimit
from coddl.core.pool.orders import Seat
from coddl.core.pool.records import RunEnded, RunStepped, Trouble
from coddl.core.pool.spec import JobSpec
from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor import slots as places
from coddl.runtime.supervisor.job import Job
from coddl.runtime.supervisor.memory_fit import RememberedLimit
from coddl.runtime.supervisor.scripts import calls_prepare
from coddl.runtime.supervisor.slots import JobEnvironment
from coddl.runtime.supervisor.supervisor import Supervisor
from coddl.runtime.wire import Message

QUIET_S: Final = 5.0  # a script that does not call coddl.prepare counts as running after that
STOP_S: Final = 3.0  # between SIGTERM and SIGKILL, for workers that have saved, or need not

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """One attempt at a job; the same as no other."""

    job: int
    attempt: int
    spec: JobSpec
    node: str  # that leads it
    home: JobEnvironment
    reason: str = ""  # for the attempt
    adopt: bool = False
    precheck: bool = False
    limits: tuple[MemoryLimit, ...] = ()  # that other jobs have found


class Hearer(Protocol):
    """Whoever hosts leads. All are called in a lead's own thread."""

    def on_fact(self, run: Run, fact: Fact) -> None: ...
    def on_progress(self, run: Run, progress: RunProgress) -> None: ...
    def on_line(self, run: Run, stream: str, text: str) -> None: ...
    def on_slots(self, run: Run, slots: Sequence[int], pid: int | None) -> None:
        """Hear which slots a command's processes hold; workers are told of by their station."""
        ...

    def on_over(self, run: Run) -> None:
        """Hear that nothing of the run is left here but workers that others may adopt."""
        ...


class Lead(Protocol):
    """A run under way."""

    @property
    def run(self) -> Run: ...
    def begin(self, seats: Sequence[Seat], posts: Posts) -> None:
        """Start it."""
        ...

    def aim(self, seats: Sequence[Seat], posts: Posts) -> None:
        """Have it run on exactly these seats."""
        ...

    def lose(self, nodes: Sequence[str]) -> None:
        """Count its workers on nodes as gone; again does no harm."""
        ...

    def retire(self, reason: str) -> None:
        """Have it make its state durable and leave."""
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

    def drop(self) -> None:
        """Stop leading without a word; workers elsewhere are left to the next lead."""
        ...

    def join(self, timeout_s: float) -> bool:
        """Wait for its end; tell whether it came."""
        ...


class ElasticLead:
    """Leads a job that can be resized."""

    def __init__(self, run: Run, hearer: Hearer) -> None:
        self.run = run
        self._hearer = hearer
        self._account = Account(run.job, run.attempt)
        self._asked: Asked = ""
        self._ours: Trouble | None = None  # why we ended it ourselves
        self._is_dropped = False
        self._quiet: threading.Timer | None = None
        self._supervisor = Supervisor(job_of(run), self._hear, node=run.node, adopt=run.adopt)
        self._thread = threading.Thread(target=self._work, name=f"lead-{run.job}", daemon=True)

    def begin(self, seats: Sequence[Seat], posts: Posts) -> None:
        self._thread.start()
        self.aim(seats, posts)

    def aim(self, seats: Sequence[Seat], posts: Posts) -> None:
        aimed = [places.Slot(seat.slot, seat.node, seat.gpu) for seat in seats]
        self._supervisor.aim(aimed, posts)

    def lose(self, nodes: Sequence[str]) -> None:
        self._supervisor.lose(nodes)

    def retire(self, reason: str) -> None:
        self._hearer.on_line(self.run, "coddl", f"leaves: {reason}")
        self._asked = self._asked or "retire"
        self._supervisor.retire()

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

    def drop(self) -> None:
        self._is_dropped = True
        self._supervisor.abandon()

    def join(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        end: RunEnded | None = None
        try:
            note_attempt(self.run.home, self.run.attempt)
            end = self._end(self._supervisor.run())
        except TrainingError as error:
            end = self._account.refused(error)
        except Exception as error:  # a defect of ours must not take other jobs along
            end = self._account.failed(defect_of(error), "lost")
            log.exception("a defect of the supervisor", job=self.run.job)
        finally:  # whatever ends this thread: a run that is not led is not listed
            if self._quiet is not None:
                self._quiet.cancel()
            if end is not None and not self._is_dropped:
                self._hearer.on_fact(self.run, end)
            self._hearer.on_over(self.run)

    def _end(self, code: int) -> RunEnded | None:
        if self._ours is not None and code != 0:
            return self._account.failed(self._ours)
        return self._account.ended(code, self._asked)

    def _hear(self, event: Message) -> None:
        if event["is"] == "forked" and self._quiet is None:
            self._quiet = threading.Timer(QUIET_S, self._tell_quiet)
            self._quiet.daemon = True
            self._quiet.start()
        facts, line = self._account.hear(event)
        for fact in facts:
            self._hearer.on_fact(self.run, fact)
        if line:
            self._hearer.on_line(self.run, "coddl", line)
        if event["is"] in ("progress", "still") and self._account.progress is not None:
            self._hearer.on_progress(self.run, self._account.progress)

    def _tell_quiet(self) -> None:
        """Tell that a script runs that will never tell of its steps; others are still starting."""
        script = self.run.home.cwd / self.run.spec.launch.argv[0]
        if not self._account.is_quiet or calls_prepare(script):
            return
        if self._thread.is_alive() and not self._is_dropped:
            self._hearer.on_fact(self.run, RunStepped(self.run.job, self.run.attempt, 0))


def job_of(run: Run) -> Job:
    """Describe a run as the runtime wants it."""
    launch, spec, home = run.spec.launch, run.spec, run.home
    return Job(
        name=spec.name,
        script=home.cwd / launch.argv[0],
        argv=launch.argv,
        cwd=home.cwd,
        env=home.env,
        folder=home.folder,
        python=home.python,
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
    what = "the agent failed to lead the job"
    return Trouble(what, f"{error!r}", "the agent's log, which has more")


def missing_script(run: Run) -> Trouble | None:
    """Tell that a job's script is not where it should be; None if it is."""
    script = run.home.cwd / run.spec.launch.argv[0]
    if script.is_file():
        return None
    where = Path(run.spec.launch.folder) / run.spec.launch.argv[0]
    because = f"the submitted folder has no {where}" if run.spec.launch.code else f"no {script}"
    return Trouble(f"{run.spec.launch.argv[0]} can't be run", because, "submit the script's folder")

"""The status of a job, as `status` shows it to people and programs."""

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor import job_errors
from coddl.runtime.supervisor.changes import ChangeHistory, Due, Since
from coddl.runtime.supervisor.coordinator import Coordinator
from coddl.runtime.supervisor.job import Job
from coddl.runtime.supervisor.memory_fit import BatchSplit, MemoryFit, SizeLimit
from coddl.runtime.supervisor.worker_record import samples_per_s
from coddl.runtime.supervisor.workers import Workers
from coddl.runtime.wire import Message

INTERRUPTED: Final = 128 + signal.SIGINT  # exit code: a person stopped it
RETIRED: Final = 75  # exit code: the state is durable, the job goes on elsewhere
UNSAVED: Final = 1  # exit code: it was told to stop, and its state is in memory only
SUPERSEDED: Final = 76  # exit code: a newer attempt leads the job
STILL_S: Final = 10.0  # without a step, after which a speed tells nothing any more
STILL_STEPS: Final = 5  # and that would have been made in the time
PROFILE_VERSION: Final = 1  # of what `profiled` tells
ENDS: Final = {0: "SUCCEEDED", 130: "CANCELLED"}


class StepTimer:
    """Seconds per iteration since the last change, by what its workers report.

    Pauses are left out.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget what was measured: the group has changed."""
        self._first: tuple[int, float] | None = None  # since the last pause
        self._last = (0, 0.0)
        self._before = (0, 0.0)  # the last pause: iterations and seconds

    def pause(self) -> None:
        """Leave out the time up to the next report."""
        self._before = self._timed
        self._first = None

    def stepped(self, step: int, now_s: float) -> None:
        """Take in that a step was reported; the first one after a change begins the count."""
        if self._first is None:
            self._first = self._last = (step, now_s)
        elif step > self._last[0]:
            self._last = (step, now_s)

    @property
    def _timed(self) -> tuple[int, float]:
        """The iterations that were timed, and their seconds."""
        iterations, seconds = self._before
        if self._first is None:
            return iterations, seconds
        first, last = self._first, self._last
        return iterations + last[0] - first[0], seconds + last[1] - first[1]

    @property
    def iterations(self) -> int:
        """How many iterations were timed."""
        return self._timed[0]

    @property
    def step_s(self) -> float | None:
        """Their mean; None until there is one."""
        iterations, seconds = self._timed
        return seconds / iterations if iterations else None


@dataclass(slots=True)
class JobStatus:
    """The target of a job and its current state."""

    job: Job
    now_s: Callable[[], float]  # the clock of the supervisor's loop
    coordinator: Coordinator = field(default_factory=Coordinator)
    changes: ChangeHistory = field(init=False)
    step_timer: StepTimer = field(default_factory=StepTimer)
    target: int | None = None  # workers; None before we know how many
    awake_target: int = 1  # the last one that was not none
    about: Message = field(default_factory=dict)  # what the first worker to arrive said
    metrics: Message = field(default_factory=dict)
    loss: Message | None = None  # the mean of those that were logged last
    memory_fit: MemoryFit = field(default_factory=MemoryFit)
    measured: Message = field(default_factory=dict)  # what a worker said of its passes last
    has_left_early: bool = False  # its loop ended before the training's last step
    rigid: TrainingError | None = None  # why it can't be resized any more
    unsaved: TrainingError | None = None  # why its newest state is not on disk
    is_asleep: bool = False
    has_slept: bool = False  # and is waking up
    is_retiring: bool = False
    parks: bool = False  # its workers stay when it retires, without their GPUs
    parked: dict[int, int] = field(default_factory=dict)  # host memory of each, by slot
    parked_after_s: float = 0.0  # how long it took, from the command or its turn on
    turn_begun_s: float = 0.0  # when its last turn on a shared slot began
    is_finishing: bool = False  # a script without prepare has ended well in one worker
    has_finished: bool = False  # a worker ran the script to its end
    stopping: int | None = None  # the code we are going to end with
    exit_code: int | None = None
    moved_s: float | None = None  # when the last step was made, or the group began
    started_s: float = field(init=False)
    due: Due = field(init=False)  # of the newest change

    def __post_init__(self) -> None:
        self.changes = ChangeHistory(self.now_s)
        self.started_s = self.now_s()
        self.due = self.due_now("start")

    def due_now(self, since: Since) -> Due:
        """Say that a change is due from now on."""
        return Due(self.now_s(), since)

    @property
    def state(self) -> str:
        """Name the state as people see it."""
        if self.exit_code is not None:
            if self.is_retiring and self.exit_code == RETIRED:
                return "SUSPENDED"
            return ENDS.get(self.exit_code, "FAILED")
        if self.stopping is not None:
            return "STOPPING"
        if self.is_asleep and self.target == 0:
            return "SUSPENDED"
        if not self.changes.members:
            return "STARTING"
        return "RUNNING" if self.coordinator.phase == "steady" else "RESIZING"

    @property
    def is_parked(self) -> bool:
        """Tell whether all of its workers wait without their GPUs."""
        return bool(self.parked) and not self.coordinator.members and self.exit_code is None

    @property
    def is_at_target(self) -> bool:
        """Tell whether the job trains at the size it was last told to."""
        return bool(self.target) and self.coordinator.is_settled

    @property
    def needs_loop(self) -> bool:
        """Tell whether a worker must come to a loop that `prepare` gave it."""
        return self.job.must_prepare or bool(self.about)

    @property
    def batch_split(self) -> BatchSplit:
        """Give how its batch is shared, once a worker has told."""
        if not self.about:
            return BatchSplit()
        parts, workers_max = self.about["parts"], self.about["workers_max"]
        return BatchSplit(parts, workers_max, self.about.get("micro_batch"))

    @property
    def limit(self) -> SizeLimit:
        """Give the fewest workers that its memory allows, as far as is known."""
        return self.memory_fit.limit(self.batch_split)

    def check_fits(self, workers: int) -> None:
        """Raise if slices do not fit in memory in a group of so many."""
        limit = self.limit
        if workers < (least := limit.workers_min or 1):
            raise job_errors.too_few(self.job, workers, limit.because, least)

    @property
    def is_over(self) -> bool:
        """Tell whether the job is about to end, by itself or because it was told to."""
        is_told = self.stopping is not None or self.exit_code is not None
        return is_told or self.coordinator.ending or self.is_finishing

    @property
    def code_of_end(self) -> int | None:
        """Give the exit code; what was interrupted and could not be saved is a failure."""
        is_lost = self.unsaved is not None and self.exit_code == INTERRUPTED
        return UNSAVED if is_lost else self.exit_code

    @property
    def still_s(self) -> float:
        """Seconds for which no step was made; 0 while steps come as they should."""
        if self.moved_s is None or not self.changes.members or self.is_asleep:
            return 0.0
        still_s = self.now_s() - self.moved_s
        is_still = still_s > max(STILL_S, STILL_STEPS * (self.step_timer.step_s or 0.0))
        return still_s if is_still and self.exit_code is None else 0.0

    def brief(self, workers: Workers) -> Message:
        """Give what changes all the time."""
        made, still_s = self.changes.made, self.still_s
        return {
            "name": self.job.name,
            "state": self.state,
            "step": self.coordinator.step,
            "steps": self.about.get("steps"),
            "size": len(self.changes.members),
            "target": self.target,
            "generation": self.changes.generation,
            "samples_per_s": 0.0 if still_s else samples_per_s(workers.records),
            "still_s": still_s,
            "step_s": self.step_timer.step_s,
            "iterations_at_size": self.step_timer.iterations,
            "seconds": self.now_s() - self.started_s,
            "last_pause_s": made[-1]["pause_s"] if made else None,
            "metrics": self.metrics,
            "loss": self.loss,
        }

    def hear_metrics(self, message: Message) -> None:
        """Take in the numbers that a script has logged."""
        self.metrics |= message["values"]
        self.loss = message.get("loss") or self.loss

    def suspended(self, saved_step: int | None) -> Message:
        """Tell that no worker is left, and where the training stands."""
        step, after_s = self.coordinator.step, self.now_s() - self.due.at_s
        about: Message = {"step": step, "durable": saved_step == step, "parked": None}
        if self.parked:
            about["parked"] = {
                "slots": sorted(self.parked),
                "bytes": sum(self.parked.values()),
                "seconds": self.parked_after_s,
            }
        return {"is": "suspended", **about, "serving_s": after_s, "since": self.due.since}

    def profiled(self, measured: Message) -> Message:
        """Tell what a worker has measured of the training, with what else is known of it."""
        self.measured = measured
        memory = self.memory_fit.as_data()
        profile = {
            "version": PROFILE_VERSION,
            "batch": self.about.get("global_batch"),
            **{name: value for name, value in measured.items() if name != "is"},
            "memory": _peaks(memory["peak_bytes"]),
            "update_memory": _peaks(memory["update_bytes"]),
            "largest_tensor_bytes": self.about.get("largest_tensor_bytes", 0),
            "virtual_nodes": self.about.get("virtual_nodes"),
            "signature": self.about.get("training", ""),
        }
        return {"is": "profile", "profile": profile}

    def full(self, workers: Workers, saved_step: int | None) -> Message:
        """Give all there is to know about the job now."""
        return {
            **self.brief(workers),
            "script": str(self.job.script),
            "global_batch": self.about.get("global_batch"),
            "virtual_nodes": self.about.get("virtual_nodes"),
            "workers_max": self.coordinator.workers_max,
            "memory": {**self.limit.as_data(), **self.memory_fit.as_data()},
            "saved_step": saved_step,
            "fresh": self.job.fresh,
            "unsaved": None if self.unsaved is None else self.unsaved.parts(),
            "changes": self.changes.made,
            "workers": [record.as_data() for record in workers.records],
        }


def _peaks(found: dict[int, int]) -> list[Message]:
    return [{"samples": samples, "peak_bytes": most} for samples, most in found.items()]

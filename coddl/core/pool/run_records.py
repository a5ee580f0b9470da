"""Reports of a job's lead agent about its run; a part of `records`."""

from dataclasses import dataclass
from typing import Final, Literal

from coddl.core.speed.profile import TrainingProfile

ChangeKind = Literal[
    "started", "restarted", "resumed", "resized", "moved", "rebalanced", "regrouped"
]
Outcome = Literal[
    "succeeded",
    "failed",  # the job's own doing
    "lost",  # not the job's doing: it is started again
    "retired",  # as ordered; its state is safe
    "cancelled",
    "requeue",  # it asked to be run again, with exit code 75
    "prechecked",  # its precheck has succeeded
]
ENDS: Final[dict[Outcome, str]] = {  # as people read it after the job's name
    "succeeded": "finished",
    "failed": "failed",
    "lost": "was interrupted",
    "retired": "saved its state and stopped",
    "cancelled": "was stopped",
    "requeue": "asked for a restart",
    "prechecked": "passed its precheck",
}


STEPS_MAX: Final = 1 << 62  # larger reports count as this many, to keep arithmetic in range
LOSS_MAX: Final = 1e30


@dataclass(frozen=True, slots=True)
class RunPrepared:
    """A job's script has called `coddl.prepare`: it can be resized from here on."""

    job: int
    attempt: int
    virtual_nodes: int | None  # of a strict job; None: its batch is cut by sample
    steps: int | None  # None: unknown
    global_batch: int | None = None
    gradient_bytes: int = 0  # of a step; 0: unknown
    largest_tensor_bytes: int = 0  # of them
    workers_max: int | None = None  # that can share its batch; None: one per virtual node
    model: int | None = None  # jobs with the same value need the same memory for a sample
    micro_batch: int | None = None  # samples that a pass has at most; None: its whole slice
    training: str = (
        ""  # jobs with the same value take the same time on the same GPUs; empty: unknown
    )
    epoch_steps: int | None = None  # None: unknown

    def __post_init__(self) -> None:
        if not all(0 <= each <= STEPS_MAX for each in (self.steps or 0, self.epoch_steps or 0)):
            raise ValueError("a number of steps is out of range")


Evidence = Literal[
    "tried",  # a worker ran out of memory
    "predicted",  # from the memory that two sizes need
    "remembered",  # another job with the same model ran out of memory
]


@dataclass(frozen=True, slots=True)
class SliceDidNotFit:
    """A slice does not fit in memory: the job needs at least `gpus_min` GPUs from here on."""

    job: int
    attempt: int
    gpus_min: int
    because: str
    evidence: Evidence = "tried"
    samples: int = 0  # of the pass that does not fit; 0: unknown


@dataclass(frozen=True, slots=True)
class RunProfiled:
    """A worker has measured what the passes of its training cost."""

    job: int
    attempt: int
    profile: TrainingProfile


@dataclass(frozen=True, slots=True)
class LossMeasured:
    """A script has logged losses around a step; this is their mean, since the last one told."""

    job: int
    attempt: int
    step: int
    loss: float

    def __post_init__(self) -> None:
        if not (0 <= self.step <= STEPS_MAX and abs(self.loss) <= LOSS_MAX):
            raise ValueError("a step or a loss is out of range")


@dataclass(frozen=True, slots=True)
class RunStepped:
    """A job has made its first step of an attempt; step 0: its processes run, and that is all we
    know, as it has not called `coddl.prepare`.
    """

    job: int
    attempt: int
    step: int


@dataclass(frozen=True, slots=True)
class RunChanged:
    """A job's group of workers has changed, and trains."""

    job: int
    attempt: int
    change: int  # grows within an attempt; a repeat has the same
    kind: ChangeKind
    gpus_before: int
    slots: tuple[int, ...]
    step: int
    pause_s: float
    serving_s: float


@dataclass(frozen=True, slots=True)
class RunProgressed:
    """How a run is doing. Soft: not in the journal, but sampled into decisions."""

    job: int
    attempt: int
    step: int
    gpus: int
    step_s: float  # mean seconds per iteration at this size
    iterations: int  # that the mean is of


@dataclass(frozen=True, slots=True)
class Trouble:
    """What went wrong, in words."""

    what: str
    because: str
    try_: str

    @property
    def sentence(self) -> str:
        """Say it in one line."""
        return f"{self.what}: {self.because}"


@dataclass(frozen=True, slots=True)
class RunStalled:
    """A run has made no step for some time, and does not evaluate either."""

    job: int
    attempt: int
    step: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RunUnsaved:
    """A run's newest state could not be written to disk; no trouble: now it is there."""

    job: int
    attempt: int
    step: int
    trouble: Trouble | None


@dataclass(frozen=True, slots=True)
class RunEnded:
    """A run is over: none of its processes will start another."""

    job: int
    attempt: int
    outcome: Outcome
    step: int = 0
    exit_code: int | None = None
    trouble: Trouble | None = None
    left_early: bool = False  # its script has left its loop before the last step, and exited well
    refused: bool = False  # it was lost because the system refused a file, as on a full disk
    # Of a run that has retired: workers that its node has kept, with their state in host memory.
    parked: tuple[int, ...] = ()  # their slots, which are free all the same
    parked_bytes: int = 0  # host memory that they use
    park_s: float = 0.0  # from the command until the GPUs were free


RunFact = (
    RunPrepared
    | SliceDidNotFit
    | RunProfiled
    | LossMeasured
    | RunStepped
    | RunChanged
    | RunStalled
    | RunUnsaved
    | RunEnded
)

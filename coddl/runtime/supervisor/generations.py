"""The words of the `Coordinator`: its phases and workers, what it hears, and what it says. (C5)"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final, Literal

Phase = Literal["steady", "starting", "building", "swapping", "broken", "regrouping"]
TRANSITIONS: Final[dict[Phase, frozenset[Phase]]] = {
    "steady": frozenset({"starting", "broken", "regrouping"}),
    "starting": frozenset({"building", "steady", "broken", "regrouping"}),
    "building": frozenset({"swapping", "steady", "broken", "regrouping"}),
    "swapping": frozenset({"steady", "broken", "regrouping"}),
    "broken": frozenset({"steady", "regrouping"}),
    "regrouping": frozenset({"steady", "broken", "regrouping"}),
}

SPEED_SAMPLES: Final = 20  # passes after which a worker's speed counts as known


# Workers of a group.


@dataclass(slots=True)
class GroupWorker:
    """A worker that is alive: a member, or one that is to join."""

    slot: int
    arrived: bool = False
    has_state: bool = False
    pass_s: deque[float] = field(default_factory=lambda: deque(maxlen=SPEED_SAMPLES))

    @property
    def usual_pass_s(self) -> float | None:
        """Give what a pass of a part of the batch takes; None: not known yet."""
        return median(self.pass_s) if len(self.pass_s) == SPEED_SAMPLES else None


def in_ring(workers: Iterable[int], known: Mapping[int, GroupWorker]) -> tuple[int, ...]:
    """Line up workers by their slots, beginning with the oldest worker.

    Slots of a node follow one another, so an exchange that goes around enters and leaves each node
    once. By age, workers of a job that has grown on several nodes in turn would send to another
    node far more often. The oldest is first because it is the main worker; a ring may begin
    anywhere.
    """
    by_slot = sorted(workers, key=lambda worker: (known[worker].slot, worker))
    first = by_slot.index(min(by_slot)) if by_slot else 0
    return (*by_slot[first:], *by_slot[:first])


# What happened.


@dataclass(frozen=True, slots=True)
class TargetSet:
    """The job is to run on these slots; on none: suspended."""

    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WorkerArrived:
    """A joiner ran the script up to the loop."""

    worker: int
    parts: int  # that the global batch can be cut into: samples, or virtual nodes
    workers_max: int | None = None  # None: as many as parts


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker has built the prepared group."""

    worker: int
    generation: int


@dataclass(frozen=True, slots=True)
class WorkerUnready:
    """A worker could not build the prepared group."""

    worker: int
    generation: int


@dataclass(frozen=True, slots=True)
class WorkerSwapped:
    """A worker now trains in that generation, or has left by it."""

    worker: int
    generation: int
    step: int


@dataclass(frozen=True, slots=True)
class WorkerStepped:
    """A worker has applied that step; `pass_s` is its time for one part of the batch."""

    worker: int
    step: int
    pass_s: float | None


@dataclass(frozen=True, slots=True)
class GroupBroken:
    """An exchange of that generation failed on a worker."""

    worker: int
    generation: int


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker's process is gone, for whatever reason."""

    worker: int


@dataclass(frozen=True, slots=True)
class LoopEnded:
    """A worker's loop is over: the job is finishing."""

    worker: int


@dataclass(frozen=True, slots=True)
class Survivor:
    """A worker that an earlier lead has left; without state, it may still have got some."""

    worker: int
    slot: int
    step: int
    has_state: bool


@dataclass(frozen=True, slots=True)
class SurvivorsFound:
    """A new lead has looked for workers of an earlier one, and knows the numbers it gave out."""

    survivors: tuple[Survivor, ...]
    generation: int
    newest_worker: int
    parts: int | None  # None: not known
    workers_max: int | None = None


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time that `wake_at_s` asked for has come."""


Event = (
    TargetSet
    | WorkerArrived
    | WorkerReady
    | WorkerUnready
    | WorkerSwapped
    | WorkerStepped
    | GroupBroken
    | WorkerLost
    | LoopEnded
    | SurvivorsFound
    | TimerFired
)


# What is to be done.


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A generation: the workers that train in it, and each one's parts of the global batch."""

    generation: int
    members: tuple[int, ...]  # by rank, the oldest first; none: suspend
    counts: tuple[int, ...]
    bridge: tuple[
        int, ...
    ]  # when no member stays: the group that hands the state over, source first
    fresh: bool  # no worker is known to hold state: begin from an image, or from scratch
    to: tuple[int, ...]  # workers that must be told


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start a worker on a slot."""

    worker: int
    slot: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """Build the group beside the current one."""

    plan: GroupPlan


@dataclass(frozen=True, slots=True)
class Commit:
    """Change to the generation after `step`, or leave where it has no place for you."""

    generation: int
    step: int
    to: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Forget a generation."""

    generation: int
    to: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Regroup:
    """Abandon the step and whatever was prepared; build this group now."""

    plan: GroupPlan


@dataclass(frozen=True, slots=True)
class StopWorker:
    """End a worker that is not needed."""

    worker: int


Command = StartWorker | Prepare | Commit | Cancel | Regroup | StopWorker

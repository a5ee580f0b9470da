"""Workers of a group: what is known of each, and the order in which they exchange. Pure."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

SPEED_SAMPLES = 20  # passes after which a worker's speed counts as known


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

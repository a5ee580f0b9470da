"""What jobs have found out about the memory of GPUs, for jobs to come. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

LIMITS_MAX: Final = 200  # models and kinds of GPU of which a limit is remembered


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A number of samples per pass that did not fit in memory, for a model on a kind of GPU."""

    model: int  # the runtime's signature of the model
    kind: str
    samples: int
    job: int


def with_limit(known: Sequence[MemoryLimit], found: MemoryLimit) -> list[MemoryLimit]:
    """Add a limit; of a model on a kind of GPU the lowest is kept. The oldest are forgotten."""
    same = [limit for limit in known if is_same(limit, found)]
    lowest = min([*same, found], key=lambda limit: limit.samples)
    return [*(limit for limit in known if limit not in same), lowest][-LIMITS_MAX:]


def without_limits(known: Sequence[MemoryLimit], fit: MemoryLimit) -> list[MemoryLimit]:
    """Drop what turns out to be wrong: a pass of as many samples, or more, has fit."""
    return [limit for limit in known if not (is_same(limit, fit) and limit.samples <= fit.samples)]


def is_same(one: MemoryLimit, other: MemoryLimit) -> bool:
    """Return whether two are of the same model on the same kind of GPU."""
    return (one.model, one.kind) == (other.model, other.kind)


def limits_on(known: Sequence[MemoryLimit], kinds: Collection[str]) -> tuple[MemoryLimit, ...]:
    """Return what holds on these kinds of GPU."""
    return tuple(limit for limit in known if limit.kind in kinds)

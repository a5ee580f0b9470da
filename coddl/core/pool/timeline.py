"""How many GPUs a job held, and when; how many the pool had. Parts of the pool's state. Pure.

So both are a fold of the journal as all else is, and are the same after a restart.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

SPANS_MAX: Final = 100  # of a job, the newest
CAPACITIES_MAX: Final = 1_000  # of a pool, the newest


class GpuSpan(NamedTuple):
    """A time for which a job held a number of GPUs."""

    gpus: int
    from_s: float
    to_s: float | None = None  # None: it holds them still
    paused_s: float | None = None  # of the resize that began it; None: not told, or it is a start


class Capacity(NamedTuple):
    """How many GPUs the nodes that are up have had from a moment on."""

    at_s: float
    gpus: int


Spans = tuple[GpuSpan, ...]


def with_gpus(spans: Spans, gpus: int, now_s: float) -> Spans:
    """Return the spans of a job that holds another number of GPUs from now on, or none."""
    last = spans[-1] if spans and spans[-1].to_s is None else None
    if gpus == (last.gpus if last is not None else 0):
        return spans
    if last is not None:
        ended = (last._replace(to_s=now_s),) if now_s > last.from_s else ()
        spans = (*spans[:-1], *ended)
    return (*spans, GpuSpan(gpus, now_s))[-SPANS_MAX:] if gpus else spans


def with_pause(spans: Spans, gpus: int, paused_s: float) -> Spans:
    """Return the same spans, with how long the job paused to come to the number that it holds."""
    last = spans[-1] if spans else None
    if last is None or last.to_s is not None or last.gpus != gpus or last.paused_s is not None:
        return spans
    return (*spans[:-1], last._replace(paused_s=paused_s))


def with_capacity(steps: list[Capacity], gpus: int, now_s: float) -> list[Capacity]:
    """Return the steps of a pool that has another number of GPUs from now on."""
    if gpus == (steps[-1].gpus if steps else 0):
        return steps
    before = steps[:-1] if steps and steps[-1].at_s == now_s else steps
    return [*before, Capacity(now_s, gpus)][-CAPACITIES_MAX:]


def capacity_between(steps: Sequence[Capacity], since_s: float, until_s: float) -> list[Capacity]:
    """Return the steps in an interval; the first one says what the pool had at its begin."""
    before = [step for step in steps if step.at_s <= since_s]
    within = [step for step in steps if since_s < step.at_s <= until_s]
    first = [Capacity(since_s, before[-1].gpus if before else 0)]
    return first + within

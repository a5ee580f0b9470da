"""How many steps jobs still have to make, and how that is known. Pure.

What a script tells counts. Where it tells nothing, the length is predicted from the losses that it
logs (`training_length`). A prediction informs policies and people; it never ends a job.
"""

from dataclasses import dataclass
from typing import Literal

from coddl.core.pool.job import JobState
from coddl.core.speed.training_length import LOSSES_MIN


@dataclass(frozen=True, slots=True)
class JobLength:
    """What a job still has to do."""

    source: Literal["told", "predicted", "unknown"]
    steps_left: int | None = None  # None: unknown
    error: float | None = None  # by which part of itself a prediction may be off


def length_of(job: JobState) -> JobLength:
    """Return what a job still has to do: as its script reports, or as its losses predict."""
    if job.steps is not None:
        return JobLength("told", max(0, job.steps - job.step))
    if (predicted := job.predicted) is None:
        return JobLength("unknown")
    return JobLength("predicted", predicted.left(job.step), predicted.error(job.step))


def length_sentence(job: JobState) -> str:
    """Return how many steps a job still has to make, and how that is known."""
    length = length_of(job)
    if length.steps_left is None:
        return f"an unknown number of steps is left: {_why_unknown(job)}"
    steps = f"{length.steps_left:,} more step{'' if length.steps_left == 1 else 's'}"
    if length.error is None:
        return f"{steps}, as reported by its script"
    return f"about {steps}, predicted from its loss ± {length.error:.0%}"


def _why_unknown(job: JobState) -> str:
    if not (count := len(job.loss_points)):
        return "its script gives no number, and logs no loss"
    if count < LOSSES_MIN:
        return f"its script gives no number, and too few losses: {count} of {LOSSES_MIN}"
    if job.predicted_by_loss is not None:
        return "its script gives no number, and it trains for longer than its loss predicted"
    return "its script gives no number, and its loss does not clearly fall"

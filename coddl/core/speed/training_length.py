"""How many steps a training without a known end still has to make, from its losses. Pure.

The losses are fitted with the curve of Optimus (`convergence`), and the training is taken to end
where Optimus takes it to have converged: its loss falls by no more than 0.05 of the largest loss
over 10 epochs. An *epoch* is here the training's own (100 steps where that is unknown), or as many
steps as its loss takes to fall half of the way to where the curve levels off, whichever is longer:
over epochs that are much shorter than that the loss always falls by little.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from coddl.core.columns import FloatColumn
from coddl.core.speed.convergence import LossCurve, Stop, fit_losses, is_outlier

LOSSES_MAX: Final = 128  # of a training that are kept
LOSSES_MIN: Final = 8  # from which a length is predicted
EPOCH_STEPS: Final = 100  # where a training reports none
LEFT_OUT: Final = (1 / 8, 1 / 4, 3 / 8)  # of the newest losses, to see what a fit is worth
ERROR_MIN: Final = 0.2  # of a predicted end, as a part of it: real losses follow no curve closely
CLEAR: Final = 2.0  # times its error, by which a curve must fall
STOP: Final = Stop()


class LossPoint(NamedTuple):
    """The mean loss around a step."""

    step: int
    loss: float


@dataclass(frozen=True, slots=True)
class PredictedLength:
    """When a training is taken to end."""

    end_step: float
    error_steps: float  # by how much the end may be off, either way
    epoch_steps: float  # steps that count as an epoch

    def is_refuted(self, step: int) -> bool:
        """Return whether a training goes on for longer than the prediction may be off."""
        return step > self.end_step + self.error_steps

    def left(self, step: int) -> int:
        """Return the steps that are left; one that should be over is in its last epoch."""
        return max(1, round(max(self.end_step - step, self.epoch_steps)))

    def error(self, step: int) -> float:
        """Return by which part of itself the number of steps that are left may be off."""
        return self.error_steps / self.left(step)


def with_loss(known: Sequence[LossPoint], found: LossPoint) -> tuple[LossPoint, ...]:
    """Add the newest loss; of many, the two that are closest become one.

    Losses of steps that are made again, after a restart from an older state, are replaced.
    """
    points = [*(each for each in known if each.step < found.step), found]
    if len(points) <= LOSSES_MAX:
        return tuple(points)
    # The first and the last stay: they say from where and to where the loss fell.
    steps = np.array([each.step for each in points[1:-1]], np.float64)
    at = 1 + int(np.argmin(np.diff(steps) / steps[1:]))
    one, other = points[at : at + 2]
    mean = LossPoint((one.step + other.step) // 2, (one.loss + other.loss) / 2)
    return (*points[:at], mean, *points[at + 2 :])


def thinned(points: Sequence[LossPoint], most: int) -> tuple[LossPoint, ...]:
    """Return the first, the last, and as many between them as there may be, evenly by number."""
    count = min(most, len(points))
    return tuple(points[at * (len(points) - 1) // max(1, count - 1)] for at in range(count))


def predicted_length(
    points: Sequence[LossPoint], epoch_steps: int | None = None
) -> PredictedLength | None:
    """Predict when a training ends; None where its losses are too few, or do not clearly fall.

    The error is the largest difference to the predictions without the newest losses, and a fifth of
    the end at least.
    """
    if len(points) < LOSSES_MIN:
        return None
    steps = np.array([each.step for each in points], np.float64)
    losses = np.array([each.loss for each in points], np.float64)
    found = _end(steps, losses, epoch_steps)
    if found is None:
        return None
    end_step, span = found
    counts = sorted({len(points) - round(part * len(points)) for part in LEFT_OUT})
    others = [_end(steps[:count], losses[:count], epoch_steps) for count in counts]
    # A fit that finds nothing would have been as wrong as not knowing at all.
    off = [abs(other[0] - end_step) if other is not None else end_step for other in others]
    return PredictedLength(end_step, max(*off, ERROR_MIN * end_step), span)


def _end(
    steps: FloatColumn, losses: FloatColumn, epoch_steps: int | None
) -> tuple[float, float] | None:
    """Return the step at which a training ends, and the steps of an epoch."""
    usual = ~is_outlier(losses)
    steps, losses = steps[usual], losses[usual]
    scale = float(steps[-1])
    curve = fit_losses(steps / scale, losses)
    if curve is None or not _falls(curve, steps / scale, losses):
        return None
    # The curve knows better where the loss goes, and the losses how they fell so far.
    fallen = max(half_fall(curve, steps[0] / scale), half_fallen(steps, losses) / scale)
    epoch = max(fallen, (epoch_steps or EPOCH_STEPS) / scale)
    by_epoch = LossCurve(curve.b0 * epoch, curve.b1, curve.b2)
    end = STOP.end_at(by_epoch.over(float(losses.max())))
    return float(end * epoch * scale), float(epoch * scale)


def half_fall(curve: LossCurve, first: float) -> float:
    """Return how long a curve takes from `first` on to fall half of the way to its end."""
    return first + curve.b1 / curve.b0


def half_fallen(steps: FloatColumn, losses: FloatColumn) -> float:
    """Return how many steps losses took to fall half of the way from the first to the lowest."""
    middle = (losses[0] + losses.min()) / 2.0
    at = int(np.argmax(losses <= middle))
    if at == 0:
        return 0.0
    part = (losses[at - 1] - middle) / (losses[at - 1] - losses[at])
    return float(steps[at - 1] + part * (steps[at] - steps[at - 1]) - steps[0])


def _falls(curve: LossCurve, steps: FloatColumn, losses: FloatColumn) -> bool:
    """Return whether a curve falls by more than what is left unexplained."""
    fitted = 1.0 / (curve.b0 * steps + curve.b1) + curve.b2
    newest = slice(len(steps) // 2, None)  # what counts; the oldest may be far off
    noise = float(np.sqrt(np.mean((losses[newest] - fitted[newest]) ** 2)))
    return bool(fitted[0] - fitted[-1] > CLEAR * noise)

"""How long a job still has to train, from its losses so far (Optimus, EuroSys '18, §3.1).

SGD converges at a rate of O(1/k), so after k epochs the loss is taken as 1/(b0*k + b1) + b2.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from coddl.core.columns import BoolColumn, FloatColumn

POINTS_MIN: Final = 3
SEGMENTS, HEAVIER = 3, 4.0  # of three equal stretches each counts as if its sigma were a quarter
FLOORS = 64  # values of b2 that are tried at a time
ROUNDS = 8  # of looking closer around the best of them
NEIGHBOURS: Final = 2  # losses on each side that a loss is compared with
OUTLIES: Final = 5.0  # times as far off as they are: it is an outlier


@dataclass(frozen=True, slots=True)
class LossCurve:
    """loss(k) = 1/(b0*k + b1) + b2, all b >= 0."""

    b0: float
    b1: float
    b2: float

    def loss(self, epoch: float) -> float:
        """The loss after `epoch` epochs; infinite where the curve has its pole."""
        line = self.b0 * epoch + self.b1
        return 1.0 / line + self.b2 if line > 0.0 else np.inf

    def over(self, loss: float) -> "LossCurve":
        """The same with losses as parts of this one."""
        return LossCurve(self.b0 * loss, self.b1 * loss, self.b2 / loss)


@dataclass(frozen=True, slots=True)
class Stop:
    """When a job counts as converged: its loss has hardly changed for a while.

    Losses are parts of the largest that was seen, so that the same holds for losses of any size.
    """

    fall: float = 0.05  # by no more than this
    window: int = 10  # over this many epochs
    epochs_max: int = 100
    epochs_unknown: int = 20  # what is left where losses tell nothing yet

    def end(self, curve: LossCurve) -> int:
        """The epoch at which a job with this curve has converged, or has to end."""
        for end in range(self.window, self.epochs_max):
            if curve.loss(end - self.window) - curve.loss(end) <= self.fall:
                return end
        return self.epochs_max

    def end_at(self, curve: LossCurve) -> float:
        """The same for a curve that falls (b0 > 0), between epochs and however late."""
        # 1/u - 1/(u + c) = fall, where u = b0*(end - window) + b1 and c = b0*window.
        c = curve.b0 * self.window
        u = (np.sqrt(c * c + 4.0 * c / self.fall) - c) / 2.0
        return self.window + max(0.0, float(u - curve.b1) / curve.b0)


def is_outlier(losses: FloatColumn) -> BoolColumn:
    """Which losses stand out from the two before and the two after them.

    Such a loss is further from the median of the five than OUTLIES times the median of all five
    distances. Of losses that only fall none is, and the two at each end never are.
    """
    out, size = np.zeros(losses.size, np.bool_), 2 * NEIGHBOURS + 1
    if losses.size >= size and np.isfinite(losses).all():
        windows = np.lib.stride_tricks.sliding_window_view(losses, size)
        off = np.abs(windows - np.median(windows, axis=1)[:, None])
        out[NEIGHBOURS:-NEIGHBOURS] = off[:, NEIGHBOURS] > OUTLIES * np.median(off, axis=1)
    return out


def fit_losses(epochs: FloatColumn, losses: FloatColumn) -> LossCurve | None:
    """The curve through losses, later ones counting more; None if they don't fall or aren't finite.

    For a given b2 the curve is a straight line in 1/(loss - b2), so b0 and b1 follow by
    non-negative least squares; b2 is looked for between 0 and the smallest loss.
    """
    if np.unique(epochs).size < POINTS_MIN or not np.isfinite(losses).all():
        return None
    stretch = np.ceil(len(epochs) / SEGMENTS)
    weights = HEAVIER ** np.floor(np.arange(len(epochs)) / stretch)
    low, high = 0.0, max(0.0, float(losses.min()))
    best, least = LossCurve(0.0, 0.0, 0.0), np.inf
    for _ in range(ROUNDS):
        floors = np.linspace(low, high, FLOORS)
        errors, b0, b1 = _with_floors(epochs, losses, weights, floors)
        at = int(np.argmin(errors))
        if errors[at] < least:
            least, best = errors[at], LossCurve(float(b0[at]), float(b1[at]), float(floors[at]))
        step = (high - low) / (FLOORS - 1)
        low, high = max(0.0, best.b2 - step), min(high, best.b2 + step)
    return best if best.b0 > 0.0 else None


def _with_floors(
    epochs: FloatColumn, losses: FloatColumn, weights: FloatColumn, floors: FloatColumn
) -> tuple[FloatColumn, FloatColumn, FloatColumn]:
    """The best curve for each b2: its squared error, b0, b1; infinite if a loss is not above it."""
    above = losses - floors[:, None]
    fits = above.min(axis=1) > 0.0
    above = np.where(fits[:, None], above, 1.0)
    # An error e of the loss is one of about e / above**2 in its reciprocal.
    scale = weights * above**2
    slope, target = epochs * scale, weights * above
    # All terms are positive, so of two coefficients at most one would be negative. Without it the
    # other stands alone.
    aa, ab, bb = (slope**2).sum(1), (slope * scale).sum(1), (scale**2).sum(1)
    at, bt = (slope * target).sum(1), (scale * target).sum(1)
    b0, b1 = np.stack((at * bb - bt * ab, bt * aa - at * ab)) / (aa * bb - ab**2)
    b0, b1 = np.where(b1 < 0.0, at / aa, b0), np.where(b0 < 0.0, bt / bb, b1)
    b0, b1 = np.maximum(b0, 0.0), np.maximum(b1, 0.0)
    with np.errstate(divide="ignore"):  # at a curve's pole the error is infinite
        errors = weights * (1.0 / (b0[:, None] * epochs + b1[:, None]) - above)
    return np.where(fits, (errors**2).sum(1), np.inf), b0, b1


def epochs_left(epochs: FloatColumn, losses: FloatColumn, stop: Stop | None = None) -> float:
    """How many epochs a job with these losses still has to train; outliers play no part."""
    stop, now = stop or Stop(), float(epochs.max(initial=0.0))
    usual = ~is_outlier(losses)
    curve = fit_losses(epochs[usual], losses[usual])
    if curve is None:
        return min(stop.epochs_unknown, max(0.0, stop.epochs_max - now))
    return max(0.0, stop.end(curve.over(losses[usual].max())) - now)

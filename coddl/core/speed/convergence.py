"""How long a job still has to train, from its losses so far (Optimus, EuroSys '18, §3.1).

SGD converges at a rate of O(1/k), so after k epochs the loss is taken as 1/(b0*k + b1) + b2.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from coddl.core.columns import FloatColumn
from coddl.core.speed.nnls import nnls

POINTS_MIN: Final = 3
SEGMENTS, HEAVIER = 3, 4.0  # of three equal stretches each counts as if its sigma were a quarter
FLOORS = 64  # values of b2 that are tried at a time
ROUNDS = 8  # of looking closer around the best of them


@dataclass(frozen=True, slots=True)
class LossCurve:
    """loss(k) = 1/(b0*k + b1) + b2, all b >= 0."""

    b0: float
    b1: float
    b2: float

    def loss(self, epoch: float) -> float:
        """The loss after so many epochs; infinite where the curve has its pole."""
        line = self.b0 * epoch + self.b1
        return 1.0 / line + self.b2 if line > 0.0 else np.inf


@dataclass(frozen=True, slots=True)
class Stop:
    """When a job counts as converged: its loss has hardly changed for a while."""

    fall: float = 0.05  # by no more than this
    window: int = 10  # over so many epochs
    epochs_max: int = 100
    epochs_unknown: int = 20  # what is left where losses tell nothing yet

    def end(self, curve: LossCurve) -> int:
        """The epoch at which a job with this curve has converged, or has to end."""
        for end in range(self.window, self.epochs_max):
            if curve.loss(end - self.window) - curve.loss(end) <= self.fall:
                return end
        return self.epochs_max


def fit_losses(epochs: FloatColumn, losses: FloatColumn) -> LossCurve | None:
    """The curve through losses, later ones counting more; None if they don't fall or aren't finite.

    For a given b2 the curve is a straight line in 1/(loss - b2), so b0 and b1 follow by
    non-negative least squares; b2 is looked for between 0 and the smallest loss.
    """
    if len(epochs) < POINTS_MIN or not np.isfinite(losses).all():
        return None
    stretch = np.ceil(len(epochs) / SEGMENTS)
    weights = HEAVIER ** np.floor(np.arange(len(epochs)) / stretch)
    low, high = 0.0, float(losses.min())
    best: tuple[float, LossCurve] | None = None
    for _ in range(ROUNDS):
        floors = np.linspace(low, high, FLOORS)
        for floor in floors:
            tried = _with_floor(epochs, losses, weights, float(floor))
            if tried is not None and (best is None or tried[0] < best[0]):
                best = tried
        if best is None:
            return None
        step = (high - low) / (FLOORS - 1)
        low, high = max(0.0, best[1].b2 - step), min(high, best[1].b2 + step)
    return best[1] if best is not None and best[1].b0 > 0.0 else None


def _with_floor(
    epochs: FloatColumn, losses: FloatColumn, weights: FloatColumn, floor: float
) -> tuple[float, LossCurve] | None:
    """The best curve with this b2 and its squared error; None if a loss is not above it."""
    above = losses - floor
    if (above <= 0.0).any():
        return None
    # An error e of the loss is one of about e / above**2 in its reciprocal.
    scale = weights * above**2
    terms = np.stack((epochs * scale, scale), axis=1)
    b0, b1 = map(float, nnls(terms, scale / above))
    line = b0 * epochs + b1
    if (line <= 0.0).any():
        return None
    error = weights * (1.0 / line - above)
    return float(error @ error), LossCurve(b0, b1, floor)


def epochs_left(epochs: FloatColumn, losses: FloatColumn, stop: Stop | None = None) -> float:
    """How many epochs a job with these losses still has to train."""
    stop, now = stop or Stop(), float(epochs.max(initial=0.0))
    curve = fit_losses(epochs, losses)
    if curve is None:
        return min(stop.epochs_unknown, max(0.0, stop.epochs_max - now))
    return max(0.0, stop.end(curve) - now)

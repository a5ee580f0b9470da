"""Least squares with non-negative coefficients: what the fits of cost models rest on."""

import numpy as np

from coddl.core.columns import FloatColumn, FloatMatrix

ROUNDS_PER_COLUMN = 10  # more than the method ever needs but for rounding
TOLERANCE = 1e-10  # of the gradient, relative to where it starts
DIGITS = 12  # columns of length 1 that agree to this many digits are one


def nnls(terms: FloatMatrix, target: FloatColumn) -> FloatColumn:
    """The x >= 0 for which |terms @ x - target| is smallest (Lawson and Hanson, 1974, ch. 23).

    Columns are scaled to one length first, so that terms of very unlike size stay distinct. Terms
    that differ by a factor alone can't be: they share evenly.
    """
    lengths = np.linalg.norm(terms, axis=0)
    scale = np.where(lengths > 0.0, lengths, 1.0)
    scaled = terms / scale
    _, first, of, sharers = np.unique(
        scaled.round(DIGITS), axis=1, return_index=True, return_inverse=True, return_counts=True
    )
    shared: FloatColumn = (_solved(scaled[:, first], target) / sharers)[of] / scale
    return shared


def _solved(terms: FloatMatrix, target: FloatColumn) -> FloatColumn:
    """The same for columns of length 1, no two alike."""
    x = np.zeros(terms.shape[1])
    free = np.zeros(terms.shape[1], np.bool_)  # columns that are not held at zero
    limit = TOLERANCE * max(float(np.abs(terms.T @ target).max(initial=0.0)), 1e-300)
    for _ in range(ROUNDS_PER_COLUMN * terms.shape[1]):
        descent = np.where(free, -np.inf, terms.T @ (target - terms @ x))
        best = int(np.argmax(descent))
        if descent[best] <= limit:
            break
        free[best] = True
        while True:
            trial = np.zeros_like(x)
            trial[free] = np.linalg.lstsq(terms[:, free], target, rcond=None)[0]
            negative = free & (trial <= 0.0)
            if not negative.any():
                break
            # Go towards the trial as far as no coefficient turns negative, and hold those there.
            steps = x[negative] / np.maximum(x[negative] - trial[negative], 1e-300)
            x += float(steps.min()) * (trial - x)
            free &= x > 1e-15 * float(np.abs(x).max(initial=0.0))
            x[~free] = 0.0
        x = trial
    return x

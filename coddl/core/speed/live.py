"""Training speed of a job that runs: measured where it has been, else the best that is known.

From the strongest to the weakest evidence for a size: measured there; as submitted with the job;
estimated, if its step could be replayed from its profile; interpolated in step time between two
measured sizes; assumed. The assumption is

    t(n) = a + b w(n),   a, b >= 0

where w(n) is the busiest worker's part of the batch: `b` is divided among the workers, `a` is not.
A batch is cut by sample, so w(n) = 1 / n; a strict job has V whole virtual nodes, and its
w(n) = ceil(V / n) / V is a staircase. Both a and b are fitted to what was measured; between two
measured sizes step time is linear in w. With one size measured nothing tells a and b apart, and `a`
is assumed to be 0: the job counts as one that scales perfectly until it has been tried. So a policy
will try it, and two sizes are enough to tell how it scales: that is the probing.
"""

from collections.abc import Mapping, Sequence
from math import ceil, exp
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np

from coddl.core.speed.adjustment import MeasuredStep, PredictedStep, adjusted
from coddl.core.speed.slices import SliceLine, fitted_line

Source = Literal["measured", "interpolated", "estimated", "submitted", "assumed"]
UNKNOWN_STEP_S = 1.0  # of a job that has not made a step: any number, as only ratios count then


class Speed(NamedTuple):
    """Seconds an iteration takes at some size, and how we know."""

    step_s: float
    source: Source


def curve(
    gpus_max: int,
    measured: Mapping[int, float],
    submitted: Mapping[int, float],
    virtual_nodes: int | None,
    predicted: Mapping[int, PredictedStep] = MappingProxyType({}),
) -> dict[int, Speed]:
    """Give the speed at every size from 1 to `gpus_max`; only strict jobs have virtual nodes.

    `predicted` are replays of a step, from size 1 on: between two of them step time is linear, and
    beyond the last it stays what it is.
    """
    sizes = range(1, gpus_max + 1)
    if predicted and not submitted:
        return _estimated(sizes, measured, predicted)
    if not measured and submitted:
        return {n: Speed(_between(n, submitted), "submitted") for n in sizes}
    fixed_s, divided_s = _fitted(measured, virtual_nodes)
    out: dict[int, Speed] = {}
    for n in sizes:
        if n in measured:
            out[n] = Speed(measured[n], "measured")
        elif measured and min(measured) < n < max(measured):
            out[n] = Speed(_between(n, measured, virtual_nodes), "interpolated")
        elif submitted:
            # Trust the submitted shape, at the level that was measured next to it.
            near = min(measured, key=lambda m: (abs(m - n), m))
            level = measured[near] / _between(near, submitted)
            out[n] = Speed(_between(n, submitted) * level, "submitted")
        else:
            out[n] = Speed(fixed_s + divided_s * _part(n, virtual_nodes), "assumed")
    return out


def _estimated(
    sizes: Sequence[int], measured: Mapping[int, float], predicted: Mapping[int, PredictedStep]
) -> dict[int, Speed]:
    """Adjust replays by what was measured.

    What one worker takes is computing alone, so what a replay is off there it is off everywhere. As
    long as no larger size was measured, one that is estimated to be slower, but may be faster by
    what is uncertain, counts as that fast: else an estimate that is wrong would never be tried.
    """
    alone_s = measured.get(1, predicted[1].step_s)
    steps = {n: _scaled(step, alone_s / predicted[1].step_s) for n, step in predicted.items()}
    known = [MeasuredStep(steps[n], each) for n, each in measured.items() if n in steps]
    is_new = max(measured, default=1) == 1
    at: dict[int, float] = {}
    for n, step in steps.items():
        guess = adjusted(known, step)
        least_s = guess.step_s * exp(-guess.relative_sd)
        is_open = is_new and least_s < alone_s <= guess.step_s
        at[n] = least_s if is_open else guess.step_s
    at |= measured
    ends = sorted(at)
    estimated = np.interp(sizes, ends, [at[n] for n in ends]).tolist()
    return {
        n: Speed(measured[n], "measured") if n in measured else Speed(step_s, "estimated")
        for n, step_s in zip(sizes, estimated, strict=True)
    }


def _scaled(step: PredictedStep, factor: float) -> PredictedStep:
    """Give a step whose computing takes so many times as long."""
    exchange_s = step.step_s * step.exchange_part
    step_s = exchange_s + (step.step_s - exchange_s) * factor
    compute_s = step.compute_s * factor
    return step._replace(step_s=step_s, compute_s=compute_s, exchange_part=exchange_s / step_s)


def _part(n: int, virtual_nodes: int | None) -> float:
    """Tell which part of the batch the busiest of n workers has."""
    return 1.0 / n if virtual_nodes is None else ceil(virtual_nodes / n) / virtual_nodes


def _between(n: int, points: Mapping[int, float], virtual_nodes: int | None = None) -> float:
    """Interpolate step time; past the ends it stays what it is there."""
    below = max((m for m in points if m <= n), default=min(points))
    above = min((m for m in points if m >= n), default=max(points))
    most, part, least = (_part(m, virtual_nodes) for m in (below, n, above))
    if most <= least:
        return points[above]
    weight = (most - part) / (most - least)
    return points[below] * (1 - weight) + points[above] * weight


def _fitted(measured: Mapping[int, float], virtual_nodes: int | None) -> SliceLine:
    """Fit a and b by least squares, both at least 0."""
    if not measured:
        return SliceLine(0.0, UNKNOWN_STEP_S)
    return fitted_line((_part(n, virtual_nodes), step_s) for n, step_s in measured.items())

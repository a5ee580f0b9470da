"""Training speed of a job that runs: measured where it has been, else the best that is known.

From the strongest to the weakest evidence for a size: measured there; as submitted with the job;
measured there by an earlier job that trains the same; estimated, if its step could be replayed from
its profile; interpolated in step time between two measured sizes; assumed. The assumption is

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
from typing import Final, Literal, NamedTuple

import numpy as np

from coddl.core.speed.adjustment import AdjustedStep, MeasuredStep, PredictedStep, adjusted
from coddl.core.speed.slices import SliceLine, fitted_line

Source = Literal["measured", "remembered", "interpolated", "estimated", "submitted", "assumed"]
UNKNOWN_STEP_S = 1.0  # of a job that has not made a step: any number, as only ratios count then
REMEMBERED_SD: Final = 0.05  # of what another job has measured: runs differ more than steps of one
NOTHING: Final[Mapping[int, float]] = MappingProxyType({})


class Speed(NamedTuple):
    """Seconds an iteration takes at some size, and how we know."""

    step_s: float  # that is decided on
    source: Source
    predicted_s: float | None = None  # replayed from the profile, before it is adjusted
    relative_sd: float | None = None  # of what is estimated or remembered; None: unknown
    expected_s: float | None = None  # of a size that is worth a trial; `step_s` is then the best

    @property
    def is_trial(self) -> bool:
        """Return whether the size is only worth trying: it is expected to be slower."""
        return self.expected_s is not None

    @property
    def likely_s(self) -> float:
        """The most likely time, also where a better one is decided on."""
        return self.step_s if self.expected_s is None else self.expected_s


class MeasuredSteps(NamedTuple):
    """Step times by size."""

    own: Mapping[int, float] = NOTHING
    remembered: Mapping[int, float] = NOTHING  # of earlier jobs that train the same


class StepEvidence(NamedTuple):
    """What measured steps show of a training, to adjust replays by."""

    factor: float  # how many times as long as in the profile its computing takes
    known: tuple[MeasuredStep, ...]

    def adjusted(self, step: PredictedStep) -> AdjustedStep:
        """What a step takes that was replayed from the profile."""
        return adjusted(self.known, scaled(step, self.factor))


def evidence(predicted: Mapping[int, PredictedStep], measured: MeasuredSteps) -> StepEvidence:
    """Compare what was measured with replays, which include one of size 1.

    What one worker takes is computing alone, so what a replay is off there it is off everywhere.
    Of an earlier job, only what it was off in addition counts: it may have had a slower machine.
    """
    alone_s = predicted[1].step_s
    own, others = measured
    their_factor = others.get(1, alone_s) / alone_s
    factor = own[1] / alone_s if 1 in own else their_factor
    known = []
    for n, step_s in others.items():
        if n in predicted and n not in own:
            mine, theirs = scaled(predicted[n], factor), scaled(predicted[n], their_factor)
            known.append(MeasuredStep(mine, step_s * (mine.step_s / theirs.step_s), REMEMBERED_SD))
    known += [
        MeasuredStep(scaled(predicted[n], factor), step_s)
        for n, step_s in own.items()
        if n in predicted
    ]
    return StepEvidence(factor, tuple(known))


def curve(
    gpus_max: int,
    measured: Mapping[int, float],
    submitted: Mapping[int, float],
    virtual_nodes: int | None,
    predicted: Mapping[int, PredictedStep] = MappingProxyType({}),
    *,
    remembered: Mapping[int, float] = NOTHING,
    trial_gain: float = 0.0,
) -> dict[int, Speed]:
    """Return the speed at every size from 1 to `gpus_max`; only strict jobs have virtual nodes.

    `predicted` are replays of a step, from size 1 on: between two of them step time is linear, and
    beyond the last it stays what it is. `remembered` was measured by earlier jobs that train the
    same. `trial_gain` is the part of its time that a job must gain, at best, for a size to be worth
    a trial.
    """
    sizes = range(1, gpus_max + 1)
    if submitted:
        return _submitted(sizes, measured, submitted, virtual_nodes)
    known = MeasuredSteps(measured, remembered)
    if predicted:
        return _estimated(sizes, known, predicted, trial_gain)
    return _assumed(sizes, known, virtual_nodes)


def _submitted(
    sizes: Sequence[int],
    measured: Mapping[int, float],
    submitted: Mapping[int, float],
    virtual_nodes: int | None,
) -> dict[int, Speed]:
    """Trust the submitted shape, at the level that was measured next to it, or on both sides."""
    levels = {n: step_s / _between(n, submitted) for n, step_s in measured.items()} or {1: 1.0}
    out: dict[int, Speed] = {}
    for n in sizes:
        if n in measured:
            out[n] = Speed(measured[n], "measured")
        else:
            level = _between(n, levels, virtual_nodes)
            out[n] = Speed(_between(n, submitted) * level, "submitted")
    return out


def _assumed(
    sizes: Sequence[int], measured: MeasuredSteps, virtual_nodes: int | None
) -> dict[int, Speed]:
    """Fit what was measured, by the job itself or by earlier ones."""
    both = sorted(measured.own.keys() & measured.remembered.keys())
    level = measured.own[both[0]] / measured.remembered[both[0]] if both else 1.0
    known = {n: step_s * level for n, step_s in measured.remembered.items()} | dict(measured.own)
    fixed_s, divided_s = _fitted(known, virtual_nodes)
    out: dict[int, Speed] = {}
    for n in sizes:
        if n in measured.own:
            out[n] = Speed(known[n], "measured")
        elif n in known:
            out[n] = Speed(known[n], "remembered", relative_sd=REMEMBERED_SD)
        elif known and min(known) < n < max(known):
            out[n] = Speed(_between(n, known, virtual_nodes), "interpolated")
        else:
            out[n] = Speed(fixed_s + divided_s * _part(n, virtual_nodes), "assumed")
    return out


def _estimated(
    sizes: Sequence[int],
    measured: MeasuredSteps,
    predicted: Mapping[int, PredictedStep],
    trial_gain: float,
) -> dict[int, Speed]:
    """Adjust replays by what was measured.

    As long as no size but 1 was measured, one that is estimated to be slower, but may be faster by
    what is uncertain, counts as that fast: else an estimate that is wrong would never be tried.
    That is not needed beyond a size that is estimated to be faster: what is measured there tells.
    """
    found = evidence(predicted, measured)
    alone_s = predicted[1].step_s * found.factor
    guesses = {n: found.adjusted(step) for n, step in predicted.items()}
    may_try = max(measured.own, default=1) == 1
    best: dict[int, float] = {}
    for n in sorted(guesses):
        guess = guesses[n]
        least_s = guess.step_s * exp(-guess.relative_sd)
        is_slower = n == 1 or guess.step_s >= alone_s
        may_try &= is_slower
        if may_try and n > 1 and least_s < alone_s * (1.0 - trial_gain):
            best[n] = least_s
    likely = {n: guess.step_s for n, guess in guesses.items()} | dict(measured.own)
    at, likely_s = (_interpolated(sizes, each) for each in (likely | best, likely))
    sds = _interpolated(sizes, {n: guess.relative_sd for n, guess in guesses.items()})
    replayed = _interpolated(sizes, {n: step.step_s for n, step in predicted.items()})
    out: dict[int, Speed] = {}
    for n in sizes:
        if n in measured.own:
            out[n] = Speed(measured.own[n], "measured", replayed[n])
            continue
        source: Source = "remembered" if n in measured.remembered else "estimated"
        expected_s = likely_s[n] if at[n] < likely_s[n] else None
        out[n] = Speed(at[n], source, replayed[n], sds[n], expected_s)
    return out


def _interpolated(sizes: Sequence[int], at: Mapping[int, float]) -> dict[int, float]:
    ends = sorted(at)
    found = np.interp(sizes, ends, [at[n] for n in ends]).tolist()
    return dict(zip(sizes, found, strict=True))


def scaled(step: PredictedStep, factor: float) -> PredictedStep:
    """Return a step whose computing takes `factor` times as long."""
    exchange_s = step.step_s * step.exchange_part
    step_s = exchange_s + (step.step_s - exchange_s) * factor
    compute_s = step.compute_s * factor
    return step._replace(step_s=step_s, compute_s=compute_s, exchange_part=exchange_s / step_s)


def _part(n: int, virtual_nodes: int | None) -> float:
    """Return which part of the batch the busiest of n workers has."""
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

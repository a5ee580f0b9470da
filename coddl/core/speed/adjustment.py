"""What measured steps predict for steps elsewhere: estimates that learn from every resize.

A replay is off for reasons that other arrangements share: links that are slower for this training
than for the sweep that measured them, GPUs that compute slower next to others. So the logarithm of
measured over predicted is taken to be

    w e(n, locality) + (1 - w) c + m

with w the part of the step that follows the links (`StepTimeline.exchange_part`), e how far off
the exchange is, c the computing, and m what is of this arrangement alone. All are normal around 0.
e is alike for alike numbers of workers, the less so the more ln n differs, and half as much across
localities. What is known of a step elsewhere follows in closed form (a Gaussian process): with the
distance to what was measured the factor goes back to 1 and the uncertainty up to what it was.

An exact measurement wins where there is one. Where a replay disagrees with four arrangements or
more in ways that no such factor explains, a fitted form takes its place,

    T = (T_compute^g + T_net^g)^(1/g),   T_net = a + b n,   1 <= g <= 10

with a and b for nodes and for the network (Pollux, OSDI '21), and is adjusted in the same way.
"""

from collections.abc import Sequence
from math import exp, log
from typing import Final, Literal, NamedTuple

import numpy as np

from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn
from coddl.core.speed.replay import Arrangement, StepTimeline
from coddl.core.speed.slices import SliceLine, fitted_line

EXCHANGE_SD: Final = 0.3  # of e, before anything is measured
COMPUTE_SD: Final = 0.1  # of c
ALONE_SD: Final = 0.1  # of m
MEASURED_SD: Final = 0.03  # of a measurement, from run to run
CARRIES: Final = 4.0  # e is alike to 1/2.7 where ln n differs by so much
ACROSS: Final = 0.5  # and by so much where one is on a node, and the other on several
FORM_POINTS: Final = 4  # arrangements it takes to fit the form
DISAGREES: Final = 0.2  # rms of what a common factor leaves, from which on the form is tried
OVERLAPS: Final = tuple(float(g) for g in np.geomspace(1.0, 10.0, 19))

KnownBy = Literal["measured", "carried", "fitted", "predicted"]


class PredictedStep(NamedTuple):
    """A step as replayed."""

    workers: int
    nodes: int
    step_s: float
    compute_s: float  # of it, what a worker would take without the others
    exchange_part: float


class MeasuredStep(NamedTuple):
    """A step as replayed, and as it was."""

    predicted: PredictedStep
    measured_s: float
    sd: float = MEASURED_SD  # of the measurement, as a part of it


class AdjustedStep(NamedTuple):
    """A step as far as it is known."""

    step_s: float
    relative_sd: float  # standard deviation, as a part of it
    known_by: KnownBy


class StepColumns(NamedTuple):
    """Predicted steps, in columns."""

    workers: IntColumn
    nodes: IntColumn
    exchange_part: FloatColumn


class LogRatios(NamedTuple):
    """Logarithms of what steps take over what was predicted."""

    mean: FloatColumn
    sd: FloatColumn


def predicted_step(arrangement: Arrangement, timeline: StepTimeline) -> PredictedStep:
    """What adjustments ask of a replay."""
    computing_s = timeline.step_s - timeline.exposed_s
    where = arrangement.workers, arrangement.nodes
    return PredictedStep(*where, timeline.step_s, computing_s, timeline.exchange_part)


def adjusted(known: Sequence[MeasuredStep], asked: PredictedStep) -> AdjustedStep:
    """What a step takes, by all that is known; of measurements in one place the last counts."""
    latest = {(each.predicted.workers, each.predicted.nodes): each for each in known}
    if (exact := latest.get((asked.workers, asked.nodes))) is not None:
        return AdjustedStep(exact.measured_s, exact.sd, "measured")
    points = list(latest.values())
    known_by: KnownBy = "carried" if points else "predicted"
    if (form := _form_instead(points, asked)) is not None:
        points = [each._replace(predicted=form.predicted(each.predicted)) for each in points]
        asked, known_by = form.predicted(asked), "fitted"
    ratios = carried(
        _columns([each.predicted for each in points]),
        np.array([log(each.measured_s / each.predicted.step_s) for each in points]),
        _columns([asked]),
        np.array([each.sd for each in points]),
    )
    step_s = asked.step_s * exp(float(ratios.mean[0]))
    return AdjustedStep(step_s, float(ratios.sd[0]), known_by)


def carried(
    known: StepColumns,
    log_ratios: FloatColumn,
    asked: StepColumns,
    sds: FloatColumn | float = MEASURED_SD,
) -> LogRatios:
    """Carry what was measured in known places to others: the process above, given its values.

    `sds` are the standard deviations of the measurements.
    """
    prior = np.square(EXCHANGE_SD * asked.exchange_part)
    prior = prior + np.square(COMPUTE_SD * (1.0 - asked.exchange_part)) + ALONE_SD**2
    if not log_ratios.size:
        return LogRatios(np.zeros_like(prior), np.sqrt(prior))
    noise = (ALONE_SD**2 + np.square(sds)) * np.eye(len(log_ratios))
    weights = np.linalg.solve(_alike(known, known) + noise, _alike(known, asked))
    explained = np.einsum("ka,ka->a", weights, _alike(known, asked))
    return LogRatios(log_ratios @ weights, np.sqrt(np.maximum(prior - explained, 0.0)))


def _alike(one: StepColumns, other: StepColumns) -> FloatMatrix:
    """Covariances of the logarithms, less what is of an arrangement alone."""
    w, v = one.exchange_part[:, None], other.exchange_part[None, :]
    apart = np.abs(np.log(one.workers)[:, None] - np.log(other.workers)[None, :])
    same_class = (one.nodes > 1)[:, None] == (other.nodes > 1)[None, :]
    exchange = np.exp(-apart / CARRIES) * np.where(same_class, 1.0, ACROSS)
    both: FloatMatrix = EXCHANGE_SD**2 * w * v * exchange + COMPUTE_SD**2 * (1.0 - w) * (1.0 - v)
    return both


def _columns(steps: Sequence[PredictedStep]) -> StepColumns:
    return StepColumns(
        np.array([each.workers for each in steps], np.int64),
        np.array([each.nodes for each in steps], np.int64),
        np.array([each.exchange_part for each in steps], np.float64),
    )


class OverlapForm(NamedTuple):
    """A step by the fitted form."""

    overlap: float  # g: 1 is none, 10 is almost all
    on_node: SliceLine | None  # T_net by workers; None: never measured
    between: SliceLine | None

    def net(self, nodes: int) -> SliceLine | None:
        """What the exchange takes in such a place."""
        return self.between if nodes > 1 else self.on_node

    def predicted(self, step: PredictedStep) -> PredictedStep:
        """The same step, as the form has it."""
        line = self.net(step.nodes)
        if step.workers == 1 or line is None:
            return step
        net_s = line.at(step.workers)
        powers = step.compute_s**self.overlap, net_s**self.overlap
        step_s = sum(powers) ** (1.0 / self.overlap)
        return step._replace(step_s=step_s, exchange_part=powers[1] / sum(powers))


def fitted_form(known: Sequence[MeasuredStep]) -> OverlapForm:
    """Fit the form to steps of several workers: for each overlap, what is left is two lines."""
    forms = [OverlapForm(g, *(_net(known, several, g) for several in (False, True)))
             for g in OVERLAPS]  # fmt: skip
    return min(forms, key=lambda form: _rms([_log_ratio(form, each) for each in known]))


def _net(known: Sequence[MeasuredStep], several_nodes: bool, overlap: float) -> SliceLine | None:
    """The line of T_net for nodes, or for the network, at one overlap."""
    points = [
        (
            each.predicted.workers,
            max(each.measured_s**overlap - each.predicted.compute_s**overlap, 0.0)
            ** (1.0 / overlap),
        )
        for each in known
        if (each.predicted.nodes > 1) == several_nodes
    ]
    return fitted_line(points) if points else None


def _form_instead(known: Sequence[MeasuredStep], asked: PredictedStep) -> OverlapForm | None:
    """The form, if it explains what was measured and the replay does not."""
    points = [each for each in known if each.predicted.workers > 1]
    if len(points) < FORM_POINTS or asked.workers == 1:
        return None
    logs = [log(each.measured_s / each.predicted.step_s) for each in points]
    mean = sum(logs) / len(logs)
    disagreement = _rms([each - mean for each in logs])
    if disagreement < DISAGREES:
        return None
    form = fitted_form(points)
    explains = _rms([_log_ratio(form, each) for each in points]) < disagreement / 2.0
    return form if explains and form.net(asked.nodes) is not None else None


def _log_ratio(form: OverlapForm, step: MeasuredStep) -> float:
    return log(step.measured_s / form.predicted(step.predicted).step_s)


def _rms(values: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))

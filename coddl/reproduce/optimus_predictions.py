"""Optimus on predictions of its own: speeds fitted to a few probes, lengths to losses so far
(EuroSys '18, §3).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from coddl.core.columns import FloatColumn, FloatMatrix
from coddl.core.parameter_server.costs import Point, ServerTimes, fit_costs, served, servers_of
from coddl.core.parameter_server.optimus import OptimusPs
from coddl.core.speed.convergence import POINTS_MIN, LossCurve, Stop, epochs_left
from coddl.core.speed.table import Speeds
from coddl.reproduce.experiment import Details, Experiment, Figure, Finding, Inputs, Plot
from coddl.reproduce.optimus import (
    MOST,
    PLACED,
    SETUP,
    SOURCE,
    Trial,
    nine_jobs,
    speeds_with_servers,
)
from coddl.sim.beliefs import Beliefs
from coddl.traces.trace import Trace

NOISE: Final = 0.03  # standard deviation of a measured step time and of a loss, relative
PROBED: Final = 10  # workers and servers of a probe, at most
PROBES: Final = 8  # of a model, as in the published code
COUNTS: Final = (5, 6, 8, 10, 15, 20)  # of probes, for the error of a fit
DRAWS: Final = 20  # of the same number of probes of each model
STAGES: Final = 10  # of a training, at whose beginning its end is predicted
STOP: Final = Stop()
SPEEDS, LOSSES = 10, 11  # chance of its own for each


def probes(truth: ServerTimes, curve: int, count: int, rng: np.random.Generator) -> list[Point]:
    """Measure a model with a number of pairs of servers and workers, no pair twice."""
    pairs = rng.choice(PROBED**2, count, replace=False)
    return _measured(truth, curve, np.stack(np.divmod(pairs, PROBED), axis=1) + 1, rng)


def even_probes(
    truth: ServerTimes, curve: int, count: int, rng: np.random.Generator
) -> list[Point]:
    """The same with as many servers as workers, as the published code does."""
    tasks = rng.choice(PROBED, count, replace=False) + 1
    return _measured(truth, curve, np.stack((tasks, tasks), axis=1), rng)


def _measured(
    truth: ServerTimes, curve: int, pairs: FloatMatrix, rng: np.random.Generator
) -> list[Point]:
    off = 1.0 + NOISE * rng.standard_normal(len(pairs))
    return [
        Point(p, w, float(truth.step_s[curve, w, p] * each))
        for (p, w), each in zip(pairs.tolist(), off, strict=True)
    ]


def off_by(truth: ServerTimes, curve: int, points: Sequence[Point]) -> FloatMatrix:
    """How far off a fit to these points is, relative, with all workers and servers there may be."""
    fitted = servers_of([fit_costs(points)], MOST).step_s[0, 1:, 1:]
    return np.abs(fitted / truth.step_s[curve, 1:, 1:] - 1.0)


def true_servers() -> ServerTimes:
    """What the nine models really cost."""
    return speeds_with_servers().servers


def errors_of_fits(count: int, *, even: bool = False) -> FloatColumn:
    """Errors of all models' fits to a number of points, many times drawn, over the whole grid."""
    truth, draw = true_servers(), even_probes if even else probes
    rng = np.random.default_rng((count, SPEEDS))
    curves = np.repeat(np.arange(len(truth.step_s)), DRAWS).tolist()
    return np.concatenate(
        [off_by(truth, curve, draw(truth, curve, count, rng)).ravel() for curve in curves]
    )


@dataclass(frozen=True, eq=False)
class Training:
    """How a job's loss falls: what it does in truth, and what is seen of it."""

    curve: LossCurve
    losses: FloatColumn  # of epochs 1, 2, … to its end

    @property
    def epochs(self) -> int:
        """When it ends."""
        return len(self.losses)

    def predicted_end(self, epochs: int) -> float:
        """The epoch at which the job is predicted to end after this many epochs are seen."""
        seen = np.arange(1.0, epochs + 1.0)
        return epochs + epochs_left(seen, self.losses[:epochs], STOP)


def training(rng: np.random.Generator) -> Training:
    """A job that converges after 22 to 48 epochs."""
    b0 = float(np.exp(rng.uniform(np.log(0.03), np.log(0.3))))
    curve = LossCurve(b0, float(rng.uniform(0.2, 0.5)), float(rng.uniform(0.0, 0.5)))
    end = STOP.end(curve.over(curve.loss(1)))
    losses = np.array([curve.loss(epoch) for epoch in range(1, end + 1)])
    return Training(curve, losses * (1.0 + NOISE * rng.standard_normal(len(losses))))


def predicted_ends(jobs: Sequence[Training]) -> FloatMatrix:
    """When each job is taken to end, [job, stage], as a part of its true length."""
    ends = [
        [job.predicted_end(job.epochs * stage // STAGES) / job.epochs for stage in range(STAGES)]
        for job in jobs
    ]
    return np.array(ends)


def length_factors(jobs: Sequence[Training], ends: FloatMatrix) -> FloatMatrix:
    """Factors on what is left, [job, stage]; a job that should be over is in its last epoch."""
    done = np.arange(STAGES) / STAGES
    an_epoch = np.array([[1.0 / job.epochs] for job in jobs])
    factors: FloatMatrix = np.maximum(ends - done, an_epoch) / (1.0 - done)
    return factors


@dataclass(frozen=True, eq=False)
class PredictedWorkload:
    """The testbed's jobs, and all that can be predicted of them."""

    trace: Trace
    fitted: Speeds
    as_measured: Speeds  # fitted, but what was measured stands as it is
    fitted_even: Speeds  # to probes with as many servers as workers
    trainings: Sequence[Training]
    ends: FloatMatrix

    @property
    def length(self) -> FloatMatrix:
        """Factors on what is left."""
        return length_factors(self.trainings, self.ends)

    @property
    def beliefs(self) -> Mapping[str, Beliefs]:
        """What Optimus may go by."""
        truth = self.trace.speeds
        return {
            "the truth": Beliefs(truth),
            "fitted speeds": Beliefs(self.fitted),
            "fitted lengths": Beliefs(truth, length=self.length),
            "both fitted": Beliefs(self.fitted, length=self.length),
            "fitted speeds, measured ones as they are": Beliefs(self.as_measured),
            "speeds fitted to even probes": Beliefs(self.fitted_even),
        }


def workload(seed: int) -> PredictedWorkload:
    """Nine jobs, eight probes of each model, and losses of each job."""
    trace, truth = nine_jobs(seed), true_servers()
    names, rng = trace.speeds.names, np.random.default_rng((seed, SPEEDS))
    points = [probes(truth, curve, PROBES, rng) for curve in range(len(names))]
    even = [even_probes(truth, curve, PROBES, rng) for curve in range(len(names))]
    costs, even_costs = ([fit_costs(each) for each in every] for every in (points, even))
    losses_rng = np.random.default_rng((seed, LOSSES))
    jobs = [training(losses_rng) for _ in range(trace.size)]
    return PredictedWorkload(
        trace,
        served(names, servers_of(costs, MOST)),
        served(names, servers_of(costs, MOST, points)),
        served(names, servers_of(even_costs, MOST)),
        jobs,
        predicted_ends(jobs),
    )


def outcomes(workloads: Sequence[PredictedWorkload]) -> dict[str, FloatMatrix]:
    """Average JCT and makespan in seconds, [workload, these two], by what Optimus goes by."""
    found: dict[str, list[tuple[float, float]]] = {}
    for each in workloads:
        beliefs = each.beliefs
        trials = {name: Trial(each.trace, beliefs=believed) for name, believed in beliefs.items()}
        trials[YOUNG_TOO] = Trial(each.trace, "optimus-ps:young=1", beliefs=beliefs["both fitted"])
        trials["DRF"] = Trial(each.trace, "drf", PLACED["DRF"])
        for name, trial in trials.items():
            metrics = trial.run().metrics()
            found.setdefault(name, []).append((metrics.avg_jct_s, metrics.makespan_s))
    return {name: np.array(values) for name, values in found.items()}


def over_truth(found: Mapping[str, FloatMatrix]) -> dict[str, tuple[float, float]]:
    """Average JCT and makespan over those with the truth."""
    means = {name: values.mean(axis=0) for name, values in found.items()}
    ratios = {name: each / means["the truth"] for name, each in means.items()}
    return {name: (float(each[0]), float(each[1])) for name, each in ratios.items()}


def spread(found: Mapping[str, FloatMatrix], name: str) -> str:
    """How the average JCT differs from that with the truth, from workload to workload."""
    more = (found[name][:, 0] / found["the truth"][:, 0] - 1.0) * 100.0
    return f"{more.min():+.1f} to {more.max():+.1f} %"


def unknown_s(workloads: Sequence[PredictedWorkload]) -> FloatColumn:
    """How long losses tell nothing of each job, were it on 4 workers and 4 servers."""
    out = []
    for each in workloads:
        trace = each.trace
        length_s = trace.iterations * trace.speeds.step_s[trace.curve, 4]
        out.append(length_s * POINTS_MIN / [job.epochs for job in each.trainings])
    return np.concatenate(out)


def predictions(inputs: Inputs) -> Finding:
    """How good the predictions are, and what Optimus loses by them."""
    workloads = [workload(seed) for seed in range(2 * inputs.seeds)]
    speed_off = {count: errors_of_fits(count) for count in COUNTS}
    even_off = errors_of_fits(PROBES, even=True)
    end_off = np.abs(np.concatenate([each.ends for each in workloads]) - 1.0)
    found = outcomes(workloads)
    of = over_truth(found)
    rows = [
        *((f"step time, {n} probes", *_percent(off)) for n, off in speed_off.items()),
        (f"step time, {PROBES} probes with as many servers as workers", *_percent(even_off)),
        *(
            (f"end of training, {stage * 100 // STAGES} % done", *_percent(end_off[:, stage]))
            for stage in range(STAGES)
        ),
    ]
    figures = (
        Figure(
            f"error of a step time, median, {PROBES} probes", "", _percent(speed_off[PROBES])[0]
        ),
        *(
            Figure(f"error of the predicted end, median, {part} % done", "", _percent(off)[0])
            for part, off in ((10, end_off[:, 1]), (50, end_off[:, 5]), (90, end_off[:, 9]))
        ),
        *(
            Figure(f"{what}, {name}, over that with the truth", "", f"{ratios[at]:.3f}")
            for name, ratios in of.items()
            if name != "the truth"
            for at, what in enumerate(("average JCT", "makespan"))
        ),
    )
    plot = Plot(
        "Error of the predicted end of training",
        "part of the training done, %",
        "error, %",
        {"worst": _by_part(end_off.max(axis=0)), "median": _by_part(np.median(end_off, axis=0))},
    )
    table = Details(("predicted", "error, median", "error, worst"), rows)
    return Finding(figures, plot, _notes(workloads, found), table)


def _by_part(off: FloatColumn) -> list[tuple[float, float]]:
    """Errors in percent, by the part of the training that is done."""
    return [(100.0 * stage / STAGES, float(each) * 100.0) for stage, each in enumerate(off)]


def _percent(off: FloatColumn) -> tuple[str, str]:
    """The median and the worst."""
    return f"{np.median(off) * 100:.1f} %", f"{off.max() * 100:.0f} %"


def _notes(
    workloads: Sequence[PredictedWorkload], found: Mapping[str, FloatMatrix]
) -> tuple[str, ...]:
    late = float((unknown_s(workloads) > OptimusPs.young_s).mean())
    return (
        "Published, as text: errors of speed affect the scheduler more than errors of convergence, "
        "and both are small with synchronous training. No numbers are published for this set-up.",
        f"Over {len(workloads)} workloads of nine jobs the average JCT differs from that with the "
        f"truth by {spread(found, 'fitted speeds')} with fitted speeds and by "
        f"{spread(found, 'fitted lengths')} with fitted lengths. A difference of means that is "
        "smaller than these ranges does not show which of the two matters more.",
        "Even probes cannot separate the transfer (w/p) from the constant, nor the two overheads "
        "from each other. Our fit then splits each pair evenly. So does our truth, of which no "
        "more was measured: that even probes do as well as others here is by that choice. A fit "
        "that takes the constant for all of it finds servers to be of no use.",
        f"A job counts as young for {OptimusPs.young_s:.0f} s of running, whatever is known of it. "
        f"On 4 workers and 4 servers {late * 100:.0f} % of the jobs take longer to their third "
        "epoch, before which losses tell nothing.",
    )


YOUNG_TOO: Final = "both fitted, young jobs as others"
DIFFERS: Final = (
    "Step times are true to f(p, w) and losses to 1/(b0 k + b1) + b2, the very forms that are "
    "fitted: errors come from noise alone, and real models would add theirs. A probe has 1 to 10 "
    "servers and workers, drawn apart; in the published code there are as many of the one as of "
    "the other, which is a case of its own here. "
    "Measured step times and losses are off by 3 % (normal, standard deviation). Curves have b0 in "
    "0.03..0.3 (uniform in its logarithm), b1 in 0.2..0.5 and b2 in 0..0.5; a job ends where its "
    "true loss falls by no more than 0.05 of the first in 10 epochs, and its length is spread "
    "evenly over its epochs. Before a fit, a loss is left out that lies more than five times as "
    "far from the median of five in a row as these do; the paper's rule is not known to us. A "
    "job's end is predicted anew after each tenth of its training; before the third epoch 20 "
    "more are assumed, and a job past its predicted end is taken to be in its last epoch. Probes "
    "cost no time, and are not refreshed as jobs run. "
)
EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    Experiment(
        "optimus-predictions",
        "Optimus with its own predictions",
        SOURCE,
        DIFFERS + SETUP,
        predictions,
    ),
)

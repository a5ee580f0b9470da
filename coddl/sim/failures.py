"""Failures of jobs, and jobs killed by their users, drawn from published rates."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Final, NamedTuple, Protocol

import numpy as np

from coddl.core.columns import BoolColumn, FloatColumn, FloatMatrix
from coddl.core.errors import UserError
from coddl.core.named import from_spec
from coddl.traces.trace import Trace, smallest_shares

UNSUCCESSFUL: Final = 0.172  # of all jobs (Philly, ATC '19)
KILLED: Final = 0.135
PASSED_TIME, KILLED_TIME, UNSUCCESSFUL_TIME = 44.5, 37.7, 17.8  # % of the GPU-time
# The rest is our reading of "many are quick" and "more common for larger jobs" (same source).
QUICK: Final = 0.5  # of the errors
ERROR_SPREAD: Final = 2.0  # of the logarithm of the time to a quick one
PER_DOUBLING: Final = 0.25  # by which the odds of an error grow with each doubling of the request
PRERUN_S: Final = 120.0  # a pre-run on one GPU finds the errors of these first seconds


class Faults(NamedTuple):
    """When jobs fail or are killed, as the number of iterations that are left."""

    fails_at: FloatMatrix  # [failures so far, job]; 0: not again; inf: the job is given up
    ends_at: FloatColumn  # [job]: its user stops it; 0: it trains to its end
    checkpoint_s: float  # what a failure spares is as old as this, at most


class TraceWithFaults(NamedTuple):
    """The trace as submitted to the cluster, and the faults of its jobs."""

    trace: Trace
    faults: Faults


class FailureModel(Protocol):
    """Draws the faults of a trace."""

    def draw(self, trace: Trace, seed: int) -> TraceWithFaults:
        """Draw the faults of each job; the same seed gives the same faults."""


@dataclass(frozen=True)
class PhillyFailures:
    """Fails and kills as many jobs as in Microsoft's Philly cluster (ATC '19).

    17.2 % of the jobs have an error, which strikes again at each retry: half of them early
    (log-normal), larger jobs more often; the others somewhere on their way. 13.5 % are killed by
    their user, somewhere on their way, too. Of those, enough are long that unsuccessful and
    killed jobs take as much of the GPU-time as published. Hardware fails now and then, after so
    much GPU-time in the mean; the job goes on from its last checkpoint.
    """

    retries: int = 3  # after which a job is given up
    checkpoint_s: Annotated[float, "above 0"] = 1800.0
    error_s: Annotated[float, "above 0"] = 120.0  # median time to a quick error
    hardware_gpu_h: Annotated[float, "above 0"] = 5000.0  # mean time to a failure of hardware
    prerun: bool = False  # jobs for several GPUs first show on one that they can train at all
    classify: bool = False  # what would strike again is not retried

    def __post_init__(self) -> None:
        if not 0 <= self.retries <= 100:
            raise UserError(
                f"failures with retries={self.retries} cannot be simulated",
                "retries must be within 0..100",
                "retries=3",
            )

    def draw(self, trace: Trace, seed: int) -> TraceWithFaults:
        """Draw the faults of each job."""
        rng = np.random.default_rng((seed, trace.size))
        length_s, odds = trace.length_s, _odds(trace)
        quick, late, kills = (rng.random(trace.size) < each for each in odds)
        errs = quick | late
        on_its_way_s = rng.random(trace.size) * length_s
        error_s = rng.lognormal(np.log(self.error_s), ERROR_SPREAD, trace.size)
        error_s = np.where(quick & (error_s < length_s), error_s, on_its_way_s)
        kill_s = np.where(kills & ~errs, on_its_way_s, np.inf)
        gaps_s = rng.exponential(self.hardware_gpu_h * 3600.0, (self.retries + 1, trace.size))
        strikes_s = gaps_s.cumsum(axis=0) / trace.gpus_requested
        strikes_s = np.minimum(strikes_s, np.where(errs, error_s, np.inf))
        fails_at, ends_at = (
            trace.iterations * np.maximum(0.0, 1.0 - at_s / length_s)
            for at_s in (strikes_s, kill_s)
        )
        fails_at = np.vstack((fails_at, np.full(trace.size, np.inf)))
        if self.classify:
            fails_at[1:][errs & (strikes_s == error_s)] = np.inf
        faults = Faults(fails_at, ends_at, self.checkpoint_s)
        caught = errs & (error_s <= PRERUN_S) & (trace.gpus_requested > 1)
        return (
            _prerun(trace, faults, caught, error_s)
            if self.prerun
            else TraceWithFaults(trace, faults)
        )


def failures_from(spec: str) -> FailureModel | None:
    """Read `none`, or `philly:parameter=value,…`."""
    return None if spec == "none" else from_spec({"philly": PhillyFailures}, spec, "failure model")


def _odds(trace: Trace) -> tuple[FloatColumn, FloatColumn, FloatColumn]:
    """How likely each job has a quick error; if not, a late one; if neither, is killed.

    A job that has a late error or is killed takes half of its GPU-time, in the mean.
    """
    weight = 1.0 + PER_DOUBLING * np.log2(trace.gpus_requested)
    weight *= trace.size / max(weight.sum(), 1.0)
    quick = np.minimum(1.0, QUICK * UNSUCCESSFUL * weight)
    gpu_s, killed_time = trace.length_s * trace.gpus_requested, 2.0 * KILLED_TIME
    late_time, well_time = 2.0 * UNSUCCESSFUL_TIME, PASSED_TIME + killed_time
    part = late_time / (late_time + well_time)
    late = _by_length(gpu_s, 1.0 - quick, (1.0 - QUICK) * UNSUCCESSFUL, part)
    well = (1.0 - quick) * (1.0 - late)
    return quick, late, _by_length(gpu_s, well, KILLED, killed_time / well_time)


def _by_length(
    gpu_s: FloatColumn, some: FloatColumn, of_jobs: float, of_time: float
) -> FloatColumn:
    """The probability that each job is affected, from its GPU time and whether it can be at all.

    It is min(1, exp(c) gpu_s^a), with a and c such that the expected parts of all jobs, and of the
    GPU time of those that can be affected, are as given; if all jobs are alike, only of jobs.
    """
    log_gpu_s = np.log(gpu_s) - np.log(gpu_s.max(initial=1.0))

    def odds(slope: float, height: float) -> FloatColumn:
        out: FloatColumn = np.minimum(1.0, np.exp(height + slope * log_gpu_s))
        return out

    def height_at(slope: float) -> float:
        return _bisected(
            -30.0, 60.0, lambda height: float((some * odds(slope, height)).mean()) < of_jobs
        )

    def takes_too_little(slope: float) -> bool:
        struck = some * odds(slope, height_at(slope)) * gpu_s
        return bool(struck.sum() < of_time * (some * gpu_s).sum())

    slope = _bisected(0.0, 3.0, takes_too_little)
    return odds(slope, height_at(slope))


def _bisected(low: float, high: float, is_low: Callable[[float], bool]) -> float:
    """Where something that holds for low values ceases to."""
    for _ in range(25):
        middle = (low + high) / 2.0
        low, high = (middle, high) if is_low(middle) else (low, middle)
    return (low + high) / 2.0


def _prerun(
    trace: Trace, faults: Faults, caught: BoolColumn, error_s: FloatColumn
) -> TraceWithFaults:
    """Let the jobs that the pre-run catches have one GPU and one try.

    What it costs the others is left out: a few iterations on one GPU.
    """
    one = smallest_shares(trace.speeds)[trace.curve]
    step_s = trace.speeds.step_s[trace.curve, one]
    left = np.maximum(trace.iterations - error_s / step_s, 0.5 * trace.iterations)
    fails_at = faults.fails_at.copy()
    fails_at[0, caught] = left[caught]
    fails_at[1:, caught] = np.inf
    tried = replace(
        trace,
        gpus_requested=np.where(caught, one, trace.gpus_requested),
        gpus_min=np.where(caught, one, trace.gpus_min),
        gpus_max=np.where(caught, one, trace.gpus_max),
    )
    return TraceWithFaults(tried, faults._replace(fails_at=fails_at))

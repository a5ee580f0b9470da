"""One simulated run, and what it says."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coddl.core.columns import BoolColumn, FloatColumn, IntColumn
from coddl.sim.node_scaling import NodesHeld
from coddl.sim.run_key import RunKey
from coddl.traces.trace import Trace


class Events(NamedTuple):
    """All that happened in a run, in order. Kinds: ARRIVE … WAKE_UP of `world`."""

    time_s: FloatColumn
    kind: IntColumn
    job: IntColumn  # row of the trace; -1: none
    gpus: IntColumn  # the job's share from then on


@dataclass(frozen=True, slots=True)
class Metrics:
    """What users compare. `jobs` are those that trained to their end; averages are over them."""

    jobs: int
    avg_jct_s: float
    p50_jct_s: float
    p95_jct_s: float
    p99_jct_s: float
    makespan_s: float
    avg_wait_s: float
    utilization: float
    gpu_hours: float  # that jobs held
    gpu_hours_held: float  # by the nodes, whether jobs held them or not
    avg_nodes: float  # NaN: all GPUs are there all the time
    rho_max: float
    rho_mean: float
    reallocations: int
    migrations: int
    cancelled_preparations: int
    failed_jobs: int
    killed_jobs: int
    lost_gpu_hours: float
    events: int
    wall_s: float


class Losses(NamedTuple):
    """What went wrong with each job."""

    failed: BoolColumn  # given up after its last try
    killed: BoolColumn  # stopped by its user
    failures: IntColumn
    lost_gpu_s: FloatColumn  # GPU-time since a checkpoint when it failed; all, if it was given up


@dataclass(frozen=True, eq=False)
class Run:
    """A run of a policy on a trace with a number of GPUs, with the result of each job."""

    key: RunKey
    trace: Trace
    end_s: float  # when the last event happened
    finish_s: FloatColumn  # NaN: not finished
    first_start_s: FloatColumn  # inf: never
    executed_s: FloatColumn
    attained_gpu_s: FloatColumn
    reallocations: int
    migrations: int
    cancelled_preparations: int
    event_count: int
    wall_s: float
    events: Events | None = None  # kept on request
    losses: Losses | None = None  # None: nothing can go wrong
    nodes: NodesHeld | None = None  # None: all GPUs are there all the time

    @property
    def finished(self) -> BoolColumn:
        """Which jobs have finished, one way or the other."""
        return ~np.isnan(self.finish_s)

    @property
    def succeeded(self) -> BoolColumn:
        """Which jobs have trained to their end."""
        if self.losses is None:
            return self.finished
        return self.finished & ~self.losses.failed & ~self.losses.killed

    @property
    def jct_s(self) -> FloatColumn:
        """Completion time of each job; NaN: not finished."""
        return self.finish_s - self.trace.submitted_s

    @property
    def rho(self) -> FloatColumn:
        """Finish-time fairness: JCT over that of an equal share alone (Themis, NSDI '20).

        An equal share is the cluster divided by the mean number of jobs present during the job's
        stay, at most its gpus_max; less than one GPU means one GPU for that part of the time.
        """
        trace, done = self.trace, self.finished
        came = trace.submitted_s <= self.end_s
        until_s = np.where(done, self.finish_s, self.end_s)
        crowd = np.ones(trace.size)
        crowd[came] = _mean_present(trace.submitted_s[came], until_s[came])
        share = np.minimum(self.key.gpus / crowd[done], trace.gpus_max[done])
        whole = np.maximum(np.floor(share), trace.gpus_min[done]).astype(np.int64)
        step_s = trace.speeds.step_s[trace.curve[done], whole] / np.minimum(1.0, share / whole)
        rho = np.full(trace.size, np.nan)
        rho[done] = self.jct_s[done] / (trace.iterations[done] * step_s)
        return rho

    def metrics(self) -> Metrics:
        """The numbers people compare."""
        done, submitted_s, losses = self.succeeded, self.trace.submitted_s, self.losses
        span_s = self.end_s - float(submitted_s.min(initial=self.end_s))
        # With nothing finished there is no average: one row of NaN gives NaN throughout.
        jct_s, rho = (
            column[done] if done.any() else np.array([np.nan]) for column in (self.jct_s, self.rho)
        )
        wait_s = np.maximum(jct_s - self.executed_s[done], 0.0) if done.any() else jct_s
        p50, p95, p99 = np.percentile(jct_s, (50, 95, 99))
        makespan_s = float(self.finish_s[done].max() - submitted_s.min()) if done.any() else np.nan
        gpu_s = float(self.attained_gpu_s.sum())
        held_gpu_s, avg_nodes = self.key.gpus * span_s, np.nan
        if self.nodes is not None:
            held_gpu_s = self.nodes.gpu_s(self.end_s)
            avg_nodes = held_gpu_s / self.nodes.gpus / span_s if span_s > 0 else np.nan
        return Metrics(
            jobs=int(done.sum()),
            avg_jct_s=float(jct_s.mean()),
            p50_jct_s=float(p50),
            p95_jct_s=float(p95),
            p99_jct_s=float(p99),
            makespan_s=makespan_s,
            avg_wait_s=float(wait_s.mean()),
            utilization=gpu_s / held_gpu_s if held_gpu_s > 0 else np.nan,
            gpu_hours=gpu_s / 3600.0,
            gpu_hours_held=held_gpu_s / 3600.0,
            avg_nodes=avg_nodes,
            rho_max=float(rho.max()),
            rho_mean=float(rho.mean()),
            reallocations=self.reallocations,
            migrations=self.migrations,
            cancelled_preparations=self.cancelled_preparations,
            failed_jobs=0 if losses is None else int(losses.failed.sum()),
            killed_jobs=0 if losses is None else int(losses.killed.sum()),
            lost_gpu_hours=0.0 if losses is None else float(losses.lost_gpu_s.sum()) / 3600.0,
            events=self.event_count,
            wall_s=self.wall_s,
        )


def _mean_present(start_s: FloatColumn, end_s: FloatColumn) -> FloatColumn:
    """For each stay, the mean number of stays (itself included) that are going on during it."""
    if len(start_s) == 0:
        return start_s
    times_s = np.concatenate((start_s, end_s))
    order = np.argsort(times_s, kind="stable")
    times_s = times_s[order]
    present = np.cumsum(np.where(order < len(start_s), 1, -1))
    area = np.concatenate(([0.0], np.cumsum(present[:-1] * np.diff(times_s))))
    at_end, at_start = (np.interp(when_s, times_s, area) for when_s in (end_s, start_s))
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (at_end - at_start) / (end_s - start_s)
    return np.where(end_s > start_s, np.maximum(mean, 1.0), 1.0)

"""What a report plots of a run, computed from whole columns at once.

Times count from the first submission of the run's trace.
"""

from typing import Final, NamedTuple

import numpy as np

from coddl.core.columns import FloatColumn, IntColumn
from coddl.sim.run import Events, Run
from coddl.sim.world import FAIL, FINISH, SHARE, SWAP, WAKE_UP

POINTS: Final = 1000  # of a line over time
QUANTILES: Final = 500  # of a distribution
WINDOW_JOBS: Final = 30  # whose shares can be distinguished by eye
SHIPPED_JOBS: Final = 2000  # of a timeline


class GpuChanges(NamedTuple):
    """Every change of the GPUs a job trains on, in order."""

    time_s: FloatColumn
    job: IntColumn
    before: IntColumn
    gpus: IntColumn


class Cdf(NamedTuple):
    """Completion times, and the part of all jobs that had finished by then."""

    jct_s: FloatColumn
    part: FloatColumn


class TimeSeries(NamedTuple):
    """Means over equal parts of 0..end_s."""

    end_s: float
    active: FloatColumn  # jobs in the system
    waiting: FloatColumn  # of these, jobs without GPUs
    busy: FloatColumn | None  # part of the GPUs that jobs hold; None: not known
    nodes: FloatColumn | None  # that are held; None: all GPUs are there all the time
    filled: FloatColumn | None  # nodes that the GPUs which jobs hold would fill


class Timeline(NamedTuple):
    """Which jobs hold how many GPUs from `from_s` to `to_s`: all at first, then changes."""

    from_s: float
    to_s: float
    rows: IntColumn  # of the trace
    time_s: FloatColumn
    job: IntColumn  # index into `rows`
    gpus: IntColumn
    left_out: int  # jobs that were there but held nothing, and are not in `rows`


def origin_s(run: Run) -> float:
    """When the first job is submitted."""
    return float(run.trace.submitted_s.min()) if run.trace.size else 0.0


def gpu_changes_of(events: Events, origin_s: float = 0.0) -> GpuChanges:
    """The changes of what jobs hold.

    Shares that are prepared are held once they are swapped in, others at once. Having none needs no
    preparation, except where that is seen to be swapped in too.
    """
    kind, none = events.kind, events.gpus == 0
    takes_effect = (swapped := kind == SWAP) | (kind == FINISH) | (kind == FAIL)
    if not swapped.any():
        takes_effect |= kind == SHARE
    elif not (swapped & none).any():
        takes_effect |= (kind == SHARE) & none
    job, gpus = events.job[takes_effect], events.gpus[takes_effect]
    order = np.argsort(job, kind="stable")
    earlier = np.zeros(len(job), np.int64)
    earlier[1:] = np.where(np.diff(job[order]) == 0, gpus[order][:-1], 0)
    before = np.empty_like(earlier)
    before[order] = earlier
    return GpuChanges(events.time_s[takes_effect] - origin_s, job, before, gpus)


def end_s(run: Run) -> float:
    """When the run ends: at the last finish; with jobs unfinished, when something last happened."""
    known = [run.finish_s[run.finished]]
    if run.events is not None and not run.finished.all():
        known.append(run.events.time_s[run.events.kind != WAKE_UP][-1:])
    known.append(run.first_start_s[np.isfinite(run.first_start_s)])
    times_s = np.concatenate(known)
    if not len(times_s):
        times_s = run.trace.submitted_s
    return float(times_s.max()) - origin_s(run) if len(times_s) else 0.0


def jct_cdf(run: Run) -> Cdf:
    """The distribution of completion times over all jobs, those unfinished included."""
    jct_s = np.sort(run.jct_s[run.finished])
    if not len(jct_s):
        return Cdf(jct_s, jct_s)
    last = len(jct_s) - 1
    picked = np.unique(np.linspace(0, last, min(len(jct_s), QUANTILES + 1)).round().astype(int))
    return Cdf(jct_s[picked], (picked + 1) / run.trace.size)


def over_time(run: Run, held: GpuChanges | None) -> TimeSeries:
    """Jobs in the system, jobs without GPUs and the part of the GPUs in use.

    Of a run that kept no events, jobs count as waiting until their first start only.
    """
    start_s, until_s = origin_s(run), end_s(run)
    submitted_s, finish_s = run.trace.submitted_s - start_s, run.finish_s[run.finished] - start_s
    arrived, gone = _step_means(submitted_s, 1, until_s), _step_means(finish_s, 1, until_s)
    nodes = filled = None
    if run.nodes is not None:
        there = np.array([change.held for change in run.nodes.changes])
        times_s = np.array([change.time_s for change in run.nodes.changes]) - start_s
        nodes = _step_means(times_s, np.diff(there, prepend=0), until_s)
    if held is None:
        first_s = run.first_start_s[np.isfinite(run.first_start_s)] - start_s
        waiting, busy = arrived - _step_means(first_s, 1, until_s), None
    else:
        begun = (held.gpus > 0).astype(np.int64) - (held.before > 0)
        waiting = arrived - gone - _step_means(held.time_s, begun, until_s)
        used = _step_means(held.time_s, held.gpus - held.before, until_s)
        busy = used / run.key.gpus
        if run.nodes is not None and nodes is not None:
            filled = used / run.nodes.gpus
            busy = np.divide(filled, nodes, out=np.zeros_like(filled), where=nodes > 0.0)
    return TimeSeries(until_s, arrived - gone, np.maximum(waiting, 0.0), busy, nodes, filled)


def _step_means(time_s: FloatColumn, change: IntColumn | int, end_s: float) -> FloatColumn:
    """The means, over POINTS equal parts of 0..end_s, of what changes by `change` at each time."""
    if end_s <= 0.0:
        return np.zeros(1)
    order = np.argsort(time_s, kind="stable")
    times_s = np.concatenate(([0.0], np.minimum(time_s[order], end_s), [end_s]))
    steps = np.broadcast_to(change, time_s.shape)[order]
    level = np.concatenate(([0.0], np.cumsum(steps)))
    area = np.concatenate(([0.0], np.cumsum(level * np.diff(times_s))))
    edges_s = np.linspace(0.0, end_s, POINTS + 1)
    return np.diff(np.interp(edges_s, times_s, area)) / np.diff(edges_s)


def busiest_window(run: Run, held: GpuChanges) -> tuple[float, float]:
    """The time in which about WINDOW_JOBS jobs hold GPUs and their shares change most.

    A run with too few jobs is its own window; where more always run at once, a window has more.
    """
    until_s, started = end_s(run), np.isfinite(run.first_start_s)
    begin_s = np.sort(run.first_start_s[started]) - origin_s(run)
    leave_s = np.sort(np.where(run.finished, run.finish_s, np.inf)[started]) - origin_s(run)
    count, jobs = len(begin_s), WINDOW_JOBS
    while jobs < count:
        last = np.searchsorted(leave_s, begin_s, side="right") + jobs  # the first job too many
        start_s = begin_s[last < count]
        stop_s = begin_s[last[last < count]]
        changes = np.searchsorted(held.time_s, stop_s) - np.searchsorted(held.time_s, start_s)
        busy = _busy_between(held, start_s, stop_s)
        if len(start_s) and (score := changes * busy).max() > 0.0:
            best = int(np.argmax(score))
            return float(start_s[best]), float(stop_s[best])
        jobs *= 2
    return 0.0, until_s


def _busy_between(held: GpuChanges, start_s: FloatColumn, stop_s: FloatColumn) -> FloatColumn:
    """The mean number of GPUs held in each of these times; 0 where they are empty."""
    level = np.cumsum(held.gpus - held.before)[:-1]
    area = np.concatenate(([0.0], np.cumsum(level * np.diff(held.time_s))))
    used = np.interp(stop_s, held.time_s, area) - np.interp(start_s, held.time_s, area)
    lasts_s = stop_s - start_s
    return np.divide(used, lasts_s, out=np.zeros_like(used), where=lasts_s > 0.0)


def timeline(run: Run, held: GpuChanges, window_s: tuple[float, float], at_most: int) -> Timeline:
    """What jobs hold in and around a window, as far as `at_most` changes reach."""
    first, stop = np.searchsorted(held.time_s, window_s)
    spare = at_most - int(stop - first)
    first = max(0, int(first) - max(0, spare // 2))
    stop = min(len(held.time_s), first + at_most)
    first = max(0, min(first, stop - at_most))
    from_s = float(held.time_s[first]) if first else 0.0
    to_s = float(held.time_s[stop]) if stop < len(held.time_s) else end_s(run)

    holding = np.zeros(run.trace.size, np.int64)  # at from_s
    np.add.at(holding, held.job[:first], (held.gpus - held.before)[:first])
    at_first = np.flatnonzero(holding)
    job = np.concatenate((at_first, held.job[first:stop]))
    gpus = np.concatenate((holding[at_first], held.gpus[first:stop]))
    time_s = np.concatenate((np.full(len(at_first), from_s), held.time_s[first:stop]))

    start_s = origin_s(run)
    finish_s = np.where(run.finished, run.finish_s - start_s, np.inf)
    present = (run.trace.submitted_s - start_s <= to_s) & (finish_s >= from_s)
    touched = np.unique(job)
    present[touched] = False  # what remains waits all the time
    idle = np.flatnonzero(present)
    shown = idle[: max(0, SHIPPED_JOBS - len(touched))]
    rows = np.sort(np.concatenate((touched, shown)))
    return Timeline(
        from_s, to_s, rows, time_s, np.searchsorted(rows, job), gpus, len(idle) - len(shown)
    )

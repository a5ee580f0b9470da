"""A pool's own jobs, replayed: as it was, and under other policies or on other numbers of GPUs."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from coddl.core.columns import BoolColumn, FloatColumn
from coddl.core.errors import UserError
from coddl.core.policies.policy import Policy
from coddl.core.pool.timeline import Capacity
from coddl.core.waiting import counted
from coddl.plugins import policy_named
from coddl.sim.recorded_workload import RecordedWorkload
from coddl.sim.report.summary import AgainstReplay
from coddl.sim.run import Events, Run
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, Watch, run_cases
from coddl.sim.world import ARRIVE, FINISH, SHARE

POLICIES: Final = ("afs-l", "afs-p", "srtf", "tiresias-l", "max-min", "fifo")  # if none is named
CLOSE: Final = 0.05  # within which the replay of a job counts as right
ENOUGH: Final = 10  # jobs that have ended, to compare policies

PolicyNamed = Callable[[str], Policy]


class WhatIfRun(NamedTuple):
    """One run, and the GPUs that there were in it."""

    run: Run
    capacity: Sequence[Capacity]
    is_rigid: bool = False  # its policy gives a job its request or nothing


@dataclass(frozen=True, eq=False)
class WhatIf:
    """What has happened in a pool, and what would have under the alternatives."""

    workload: RecordedWorkload
    runs: tuple[WhatIfRun, ...]  # the first replays what has happened

    @property
    def report_runs(self) -> list[Run]:
        """What was recorded, its replay and the alternatives, as a report shows them."""
        first, *others = (each.run for each in self.runs)
        replayed = dataclasses.replace(first, key=_named(first.key, "replayed"))
        return [recorded_run(self.workload), replayed, *others]

    @property
    def against_replay(self) -> AgainstReplay:
        """How the runs of a report compare with the replay."""
        told, error = self.as_data(), self.mean_error
        was = told["recorded"] | {
            "mean_against_replay": None if error is None else 1.0 / (1.0 + error)
        }
        jobs = [int(self.workload.succeeded.sum())]
        jobs += [int((each.run.succeeded & self._counted).sum()) for each in self.runs]
        return AgainstReplay(1, list(map(_report_numbers, [was, *told["runs"]], jobs)))

    def as_data(self) -> dict[str, Any]:  # Any: JSON
        """Return all of it, for programs."""
        workload, ended = self.workload, self.workload.succeeded
        return {
            "since_s": workload.since_s,
            "until_s": workload.until_s,
            "jobs": workload.trace.size,
            "left_out": [{"count": each.jobs, "why": each.why} for each in workload.left_out],
            "recorded": {
                "policy": workload.policy,
                "gpus": workload.gpus,
                "jct_s": _spread(self.recorded_s[ended]),
                "makespan_s": float(workload.finish_s[ended].max()) if ended.any() else None,
                "utilisation": self._recorded_utilisation,
                "resizes": workload.reallocations,
            },
            "runs": [self._run(at) for at in range(len(self.runs))],
            "replay": {
                "mean_jct_error": self.mean_error,
                "median_job_error": _or_none(np.median(self.errors)) if self.errors.size else None,
                "within_5_percent": _or_none((self.errors <= CLOSE).mean())
                if self.errors.size
                else None,
            },
            "sentence": self.sentence,
        }

    @property
    def _counted(self) -> BoolColumn:
        """Those whose completion times are compared: the jobs that trained to their end, if any."""
        ended = self.workload.succeeded
        return ended if ended.any() else np.ones(ended.size, np.bool_)

    @property
    def recorded_s(self) -> FloatColumn:
        """Completion times as recorded; NaN: not over."""
        return self.workload.finish_s - self.workload.trace.submitted_s

    @property
    def errors(self) -> FloatColumn:
        """By which part of itself the replay misses the completion time of each job that ended."""
        ended = self._ended
        recorded_s = self.recorded_s[ended]
        errors: FloatColumn = np.abs(self.runs[0].run.jct_s[ended] - recorded_s) / recorded_s
        return errors

    @property
    def _ended(self) -> BoolColumn:
        """Jobs that trained to their end, when recorded and when replayed."""
        return self.workload.succeeded & self.runs[0].run.succeeded

    @property
    def mean_error(self) -> float | None:
        """By which part of itself the replay misses the mean completion time; with a sign."""
        ratio = _ratio(self.runs[0].run.jct_s, self.recorded_s, self._ended)
        return None if ratio is None else ratio - 1.0

    @property
    def sentence(self) -> str:
        """Return how well the replay explains what has happened, and what it does not know."""
        return " ".join(filter(None, [self._too_few, self._explains, *self._caveats]))

    @property
    def _too_few(self) -> str:
        ended = int(self.workload.succeeded.sum())
        if ended >= ENOUGH or not ended:
            return ""
        have = "has" if ended == 1 else "have"
        return f"Only {counted(ended, 'job')} {have} ended: too few to compare policies."

    @property
    def _explains(self) -> str:
        ended, error = int(self._ended.sum()), self.mean_error
        if error is None:
            return "No job has trained to its end yet, so the replay cannot be checked."
        way = "above" if error > 0 else "below"
        told = (
            f"The replay of what was has a mean completion time {abs(error):.1%} {way} the "
            "recorded one"
        )
        if ended == 1:
            return f"{told}."
        median = float(np.median(self.errors))
        return f"{told}; half of the {ended} jobs that ended are within {median:.1%}."

    @property
    def _caveats(self) -> list[str]:
        """What the results rest on that was not measured, or is not simulated."""
        workload, found = self.workload, []
        speeds = workload.sources
        if known := sum(speeds.values()):
            parts = [f"{count / known:.0%} {name}" for name, count in speeds.most_common()]
            found.append(f"Speeds, at all sizes that jobs may have: {', '.join(parts)}.")
        if workload.unmeasured:
            jobs = _jobs(workload.unmeasured)
            found.append(
                f"{jobs} measured at one size at most: they are taken to scale as the others."
            )
        if unfinished := int(np.isnan(workload.finish_s).sum()):
            jobs = counted(unfinished, "job")
            found.append(f"{jobs} not over yet: replayed with the rest, but not counted in means.")
        if len(workload.policies) > 1:
            others = ", ".join(each for each in workload.policies if each != workload.policy)
            found.append(
                f"The policy was changed meanwhile ({others}); the replay has {workload.policy} "
                "all the time."
            )
        if workload.kinds > 1:
            found.append(f"All GPUs count as alike, though there are {workload.kinds} kinds.")
        if workload.took_turns:
            jobs = _jobs(workload.took_turns)
            found.append(f"{jobs} sharing a GPU by turns, which is not simulated.")
        if workload.lost_runs:
            runs = counted(workload.lost_runs, "run")
            found.append(
                f"{runs} ended with a loss, after which steps were redone; none is lost here."
            )
        found += [self._all_of_range, *map(self._never_ended, self.runs)]
        return [each for each in found if each]

    @property
    def _all_of_range(self) -> str:
        """Return which alternatives give jobs the most they may have, as no request is known."""
        _, *others = self.runs
        rigid = dict.fromkeys(each.run.key.policy for each in others if each.is_rigid)
        if not rigid or not (ranges := self.workload.unrequested):
            return ""
        *most, last = rigid
        names = f"{', '.join(most)} and {last}" if most else last
        give, come = ("give", "they come") if most else ("gives", "it comes")
        return (
            f"{names} {give} a job all the GPUs of its range ({counted(ranges, 'job')} with a "
            f"range): {come} out worse than with the GPUs that a user would ask for."
        )

    def _never_ended(self, each: WhatIfRun) -> str:
        """Return how many of the jobs that are compared a run leaves without an end, if any."""
        count = int((self._counted & ~each.run.succeeded).sum())
        if not count:
            return ""
        jobs, key = counted(count, "job"), each.run.key
        last = counted(each.capacity[-1].gpus, "GPU")
        return (
            f"{jobs} would never end under {key.policy} on {key.gpus}, with {last} left in the "
            "end: its means are without them."
        )

    @property
    def _recorded_utilisation(self) -> float | None:
        workload = self.workload
        is_over = ~np.isnan(workload.finish_s)
        end_s = workload.until_s - workload.since_s
        end_s = float(workload.finish_s.max()) if is_over.all() else end_s
        return _part(float(workload.gpu_s.sum()), _gpu_s(workload.conditions.capacity, end_s))

    def _run(self, at: int) -> dict[str, Any]:  # Any: JSON
        """What one run says, of the same jobs as are recorded to have ended."""
        run, workload, first = self.runs[at].run, self.workload, self.runs[0].run
        done = run.succeeded & self._counted
        return {
            "policy": run.key.policy,
            "gpus": run.key.gpus,
            "is_replay": at == 0,
            "jct_s": _spread(run.jct_s[done]),
            "makespan_s": float(run.finish_s[done].max()) if done.any() else None,
            "utilisation": _part(
                float(run.attained_gpu_s.sum()), _gpu_s(self.runs[at].capacity, run.end_s)
            ),
            "resizes": run.reallocations,
            "mean_against_recorded": _ratio(
                run.jct_s, self.recorded_s, workload.succeeded & run.succeeded
            ),
            "mean_against_replay": _ratio(run.jct_s, first.jct_s, done & first.succeeded),
        }


def what_if(
    workload: RecordedWorkload,
    policies: Sequence[str] = (),
    gpus: Sequence[int] = (),
    *,
    named: PolicyNamed = policy_named,
    watch: Watch | None = None,
    keep_events: bool = False,
) -> WhatIf:
    """Replay what has happened as it was, then every policy on every number of GPUs.

    Without policies those are the pool's own, on these numbers; without numbers either, a few
    policies on the GPUs that the pool had.
    """
    cases = [_case(workload, workload.policy, None, named)]
    for policy in policies or ((workload.policy,) if gpus else POLICIES):
        for count in gpus or (None,):
            if (policy, count) != (workload.policy, None):
                cases.append(_case(workload, policy, count, named))
    cases = [dataclasses.replace(case, keep_events=keep_events) for case in cases]
    runs = run_cases(cases, watch)
    capacities = [case.conditions.capacity for case in cases if case.conditions is not None]
    rigid = [bool(getattr(case.policy, "rigid", False)) for case in cases]
    return WhatIf(workload, tuple(map(WhatIfRun, runs, capacities, rigid)))


def recorded_run(workload: RecordedWorkload) -> Run:
    """What was recorded, in the form of a run."""
    ended = workload.finish_s[~np.isnan(workload.finish_s)]
    is_over = ended.size == workload.trace.size
    return Run(
        key=_named(RunKey(workload.policy, workload.gpus), "recorded"),
        trace=workload.trace,
        end_s=float(ended.max()) if is_over else workload.until_s - workload.since_s,
        finish_s=workload.finish_s,
        first_start_s=workload.first_start_s,
        executed_s=workload.executed_s,
        attained_gpu_s=workload.gpu_s,
        reallocations=workload.reallocations,
        migrations=0,
        cancelled_preparations=0,
        event_count=len(workload.shares),
        wall_s=0.0,
        events=_events(workload),
    )


def _named(key: RunKey, how: str) -> RunKey:
    return dataclasses.replace(key, policy=f"{key.policy} ({how})")


def _events(workload: RecordedWorkload) -> Events:
    """When jobs came, held how many GPUs, and went."""
    told = [(at_s, ARRIVE, row, 0) for row, at_s in enumerate(workload.trace.submitted_s.tolist())]
    told += [(share.at_s, SHARE, share.row, share.gpus) for share in workload.shares]
    finish_s = workload.finish_s.tolist()
    told += [(at_s, FINISH, row, 0) for row, at_s in enumerate(finish_s) if np.isfinite(at_s)]
    told.sort(key=lambda each: each[0])
    time_s = np.array([each[0] for each in told])
    return Events(time_s, *np.array([each[1:] for each in told], np.int64).T)


def _case(workload: RecordedWorkload, policy: str, gpus: int | None, named: PolicyNamed) -> Case:
    """One run."""
    conditions = workload.conditions
    if gpus is not None:
        conditions = dataclasses.replace(conditions, capacity=(Capacity(0.0, gpus),))
        least = int(workload.trace.gpus_min.max())
        if least > gpus:
            job = workload.numbers[int(workload.trace.gpus_min.argmax())]
            because = f"job {job} of the pool needs at least {counted(least, 'GPU')}"
            raise UserError(f"--gpus {gpus} cannot be replayed", because, f"--gpus {least}")
    most = max(each.gpus for each in conditions.capacity)
    return Case(
        RunKey(policy, most),
        named(policy),
        workload.trace,
        reconfigure=workload.reconfigure,
        stability=workload.stability,
        beliefs=workload.beliefs,
        failures=workload.failures,
        conditions=conditions,
    )


def _gpu_s(capacity: Sequence[Capacity], end_s: float) -> float:
    """GPU-seconds that there were until the end."""
    times_s = [*(min(at_s, end_s) for at_s, _ in capacity), end_s]
    spans_s = [after_s - before_s for before_s, after_s in pairwise(times_s)]
    return sum(each.gpus * span_s for each, span_s in zip(capacity, spans_s, strict=True))


def _report_numbers(told: Mapping[str, Any], jobs: int) -> dict[str, float]:  # Any: JSON
    """The numbers of a run under the names that they have in a report."""
    jct_s = told["jct_s"]
    numbers = {
        "avg_jct_s": jct_s["mean"],
        "p50_jct_s": jct_s["median"],
        "p95_jct_s": jct_s["p95"],
        "p99_jct_s": jct_s["p99"],
        "makespan_s": told["makespan_s"],
        "slower": told["mean_against_replay"],
    }
    known = {key: np.nan if value is None else float(value) for key, value in numbers.items()}
    return {"jobs": float(jobs), **known}


def _spread(jct_s: FloatColumn) -> dict[str, float | None]:
    """The mean of completion times, and how they are spread."""
    if jct_s.size == 0:
        return dict.fromkeys(("mean", "median", "p95", "p99"))
    median, p95, p99 = np.percentile(jct_s, (50, 95, 99)).tolist()
    return {"mean": float(jct_s.mean()), "median": median, "p95": p95, "p99": p99}


def _ratio(of_s: FloatColumn, to_s: FloatColumn, jobs: BoolColumn) -> float | None:
    """The mean of one, over that of the other, among some jobs."""
    return _part(float(of_s[jobs].sum()), float(to_s[jobs].sum()))


def _part(part: float, whole: float) -> float | None:
    return _or_none(part / whole) if whole > 0.0 else None


def _or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _jobs(count: int) -> str:
    return f"{counted(count, 'job')} {'was' if count == 1 else 'were'}"

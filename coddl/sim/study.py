"""A comparison: policies x clusters x loads x seeds on one workload, and its results as a table."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from coddl.core.policies.policy import Policy
from coddl.sim.plugin import policy_named
from coddl.sim.run import Run
from coddl.sim.simulate import Case, Watch, run_cases
from coddl.sim.world import Reconfigure
from coddl.traces.files import read_speeds, read_trace, small_trace
from coddl.traces.make import GENERATORS
from coddl.traces.trace import Oversize, Trace

DEFAULT_POLICIES = (
    "afs-l",
    "afs-p",
    "srtf",
    "srsf",
    "tiresias-l",
    "optimus",
    "max-min",
    "fifo",
)
# Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom; the last serves for more.
T95: tuple[float, ...] = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
)
T95 += (2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056)


@dataclass(frozen=True)
class Question:
    """What to compare. A workload is a file, a trace at hand, or a generator's name (made anew for
    each seed).
    """

    workload: str | Path | Trace | None = None  # None: the small trace that comes with the package
    policies: Sequence[str | Policy] = DEFAULT_POLICIES
    gpus: Sequence[int] = (64,)
    loads: Sequence[float] = (1.0,)
    seeds: int = 1
    queue: str | None = (
        None  # None: all jobs share one cluster; "all": each queue has one of its own
    )
    speeds: str | Path | None = None
    oversize: Oversize = "error"
    reconfigure: Reconfigure = field(default_factory=Reconfigure)
    keep_events: bool = False


@dataclass(frozen=True, eq=False)
class Study(Mapping[str, "np.ndarray[Any, Any]"]):  # Any: strings, whole and real numbers
    """The results, as columns: `study["avg_jct_s"]`, or `pandas.DataFrame(study)`."""

    trace: Trace
    runs: tuple[Run, ...]
    planned: int  # jobs of all runs together, finished or not

    @property
    def rows(self) -> list[dict[str, object]]:
        """One row per policy, queue, cluster and load; over several seeds, means with 95 %
        intervals.
        """
        groups: dict[tuple[object, ...], list[Run]] = {}
        for run in self.runs:
            groups.setdefault((run.policy, run.queue, run.gpus, run.load), []).append(run)
        return [_row(runs) for runs in groups.values()]

    @property
    def finished(self) -> int:
        """Jobs that finished in all runs together: less than planned if the study was stopped."""
        return sum(int(run.finished.sum()) for run in self.runs)

    def __getitem__(self, column: str) -> "np.ndarray[Any, Any]":
        return np.array([row[column] for row in self.rows])

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows[0] if self.runs else ())

    def __len__(self) -> int:
        return len(self.rows[0]) if self.runs else 0


def study(question: Question, watch: Watch | None = None) -> Study:
    """Answer a question."""
    cases = list(_cases(question))
    runs = run_cases(cases, watch)
    return Study(cases[0].trace, tuple(runs), sum(case.trace.size for case in cases))


def _cases(question: Question) -> Iterator[Case]:
    """Every run the question asks for."""
    policies = [(_label(policy), _policy(policy)) for policy in question.policies]
    workload = _workload(question)
    for seed, load in product(range(question.seeds), question.loads):
        whole = workload(load, seed)
        queues = whole.queues if question.queue == "all" else (question.queue or "",)
        for queue, gpus in product(queues, question.gpus):
            trace = whole.of_queue(queue) if queue else whole
            trace = trace.fitted_to(gpus, question.oversize)
            for label, policy in policies:
                yield Case(
                    label=label,
                    policy=policy,
                    trace=trace,
                    gpus=gpus,
                    queue=queue,
                    load=load,
                    seed=seed,
                    reconfigure=question.reconfigure,
                    keep_events=question.keep_events,
                )


def _workload(question: Question) -> Callable[[float, int], Trace]:
    """What gives the trace for a load and a seed."""
    source = question.workload
    speeds = read_speeds(Path(question.speeds)) if question.speeds is not None else None
    if isinstance(source, str) and source in GENERATORS and not Path(source).exists():
        make = GENERATORS[source]
        if source == "poisson":
            return lambda load, seed: make(speeds, gpus=question.gpus[0], load=load, seed=seed)
        return lambda load, seed: make(speeds, seed=seed).at_load(load)
    if isinstance(source, Trace):
        trace = source
    else:
        trace = small_trace() if source is None else read_trace(Path(source), speeds)
    return lambda load, _seed: trace.at_load(load)


def _policy(policy: str | Policy) -> Policy:
    return policy_named(policy) if isinstance(policy, str) else policy


def _label(policy: str | Policy) -> str:
    return policy if isinstance(policy, str) else getattr(policy, "__name__", repr(policy))


def _row(runs: Sequence[Run]) -> dict[str, object]:
    """One line of results from the runs of all seeds."""
    first = runs[0]
    table = [asdict(run.metrics()) for run in runs]
    row: dict[str, object] = {
        "policy": first.policy,
        "vc": first.queue or None,
        "gpus": first.gpus,
        "load": first.load,
        **table[0],
    }
    if len(runs) > 1:
        means = {name: float(np.mean([line[name] for line in table])) for name in table[0]}
        row |= {**means, "jobs": table[0]["jobs"], "seeds": len(runs)}
        row["ci95"] = {name: _ci95([line[name] for line in table]) for name in means}
    return row


def _ci95(values: Sequence[float]) -> float:
    """Half the width of the 95 % interval of the mean."""
    quantile = T95[min(len(values) - 1, len(T95)) - 1] if len(values) > 1 else math.nan
    return float(quantile * np.std(values, ddof=1) / math.sqrt(len(values)))

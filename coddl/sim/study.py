"""A comparison: policies x clusters x loads x seeds on one workload, and its results as a table."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias, cast, get_args

import numpy as np

from coddl.core.errors import UserError
from coddl.core.policies.policy import Policy
from coddl.core.scheduler import Rules
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
    """What to compare.

    A workload is a file, a trace at hand, or a generator's name; that is made anew for each seed.
    """

    workload: str | Path | Trace | None = None  # None: the small trace of the package
    policies: Sequence[str | Policy] = DEFAULT_POLICIES
    gpus: Sequence[int] = ()  # none: 64, or 512 for the poster's jobs
    loads: Sequence[float] = (1.0,)
    seeds: int = 1
    queue: str | None = None  # None: all jobs share a cluster; "all": each queue has its own
    speeds: str | Path | None = None
    oversize: Oversize = "error"
    reconfigure: Reconfigure = field(default_factory=Reconfigure)
    rules: Rules = field(default_factory=Rules)
    keep_events: bool = False

    def __post_init__(self) -> None:
        _refuse(not self.policies, "policies", self.policies, "there is none", "afs-l")
        for gpus in self.gpus:
            given: object = gpus  # a notebook may pass anything
            whole = isinstance(given, int | np.integer) and 0 < given < 2**31
            _refuse(not whole, "gpus", gpus, "it is not a whole number above 0", "64")
        for load in self.loads:
            _refuse(not 1e-6 <= load <= 1e6, "load", load, "it is not within 1e-6..1e6", "1")
        _refuse(not self.loads, "load", self.loads, "there is none", "1")
        _refuse(self.seeds < 1, "seeds", self.seeds, "a study needs one run", "1")
        for name in ("cool_down_s", "min_runtime_s"):
            value = getattr(self.rules, name)
            _refuse(not 0 <= value < 1e12, name, value, "it is not a number of seconds", "30")
        known = self.oversize in get_args(Oversize)
        _refuse(not known, "oversize", self.oversize, "there is no such choice", "skip")

    @property
    def sizes(self) -> list[int]:
        """The cluster sizes, each once."""
        default = 512 if self.workload == "poster" else 64
        return list(dict.fromkeys(int(gpus) for gpus in self.gpus)) or [default]


def _refuse(bad: bool, name: str, value: object, because: str, try_: str) -> None:
    if bad:
        raise UserError(f"{name} {value} cannot be simulated", because, f"{name} {try_}")


class Study(dict[str, "np.ndarray[Any, Any]"]):  # Any: strings, whole and real numbers
    """The results, as columns: `study["avg_jct_s"]`, or `pandas.DataFrame(study)`.

    Of several seeds a column holds means, and `avg_jct_s_ci95` half the width of a 95 % interval.
    """

    def __init__(self, trace: Trace, runs: Sequence[Run], seeds: int, planned: int) -> None:
        self.trace = trace
        self.runs = tuple(runs)
        self.planned = planned  # jobs of all runs together, finished or not
        groups: dict[tuple[object, ...], list[Run]] = {}
        for run in runs:
            groups.setdefault((run.policy, run.queue, run.gpus, run.load), []).append(run)
        # One row per policy, queue, cluster and load.
        self.rows = [_row(runs, seeds) for runs in groups.values()]
        flat = [_flat(row) for row in self.rows]
        super().__init__(
            {name: np.array([row[name] for row in flat]) for name in flat[0]} if flat else {}
        )

    @property
    def finished(self) -> int:
        """Jobs that finished in all runs together: less than planned if the study was stopped."""
        return sum(int(run.finished.sum()) for run in self.runs)

    def __repr__(self) -> str:
        shown = (f"{row['policy']}: {row['avg_jct_s']:,.0f} s" for row in self.rows)
        return f"<Study of {self.trace.name}; average JCT of {', '.join(shown)}>"

    def _repr_html_(self) -> str:
        """The table, for a notebook."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self)
        lines = zip(*(column.tolist() for column in self.values()), strict=True)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(_cell(cell))}</td>" for cell in line) + "</tr>"
            for line in lines
        )
        return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: object) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def _flat(row: Mapping[str, object]) -> dict[str, object]:
    """A row without the nested intervals."""
    intervals = cast(Mapping[str, float], row.get("ci95", {}))
    flat = {name: value for name, value in row.items() if name != "ci95"}
    return flat | {f"{name}_ci95": width for name, width in intervals.items()}


def study(question: Question, watch: Watch | None = None) -> Study:
    """Answer a question."""
    workload = _workload(question)
    cases = list(_cases(question, workload))
    watch = watch or Watch()
    runs = run_cases(cases, watch)
    for run in runs:
        if not run.finished.all() and not watch.stop.is_set():
            left = int((~run.finished).sum())
            raise UserError(
                f"{run.policy} on {run.gpus} GPUs does not come to an end",
                f"it leaves {left:,} of {run.trace.size:,} jobs without GPUs for ever",
                "a policy that serves every job in the end; coddl.testing.PolicyContract helps",
            )
    whole = workload(question.loads[0], 0, question.sizes[0])
    planned = sum(case.trace.size for case in cases)
    return Study(whole, runs, question.seeds, planned)


Workload: TypeAlias = Callable[[float, int, int], Trace]  # load, seed, GPUs -> trace


def _cases(question: Question, workload: Workload) -> Iterator[Case]:
    """Every run the question asks for."""
    policies = _labelled(question.policies)
    loads = dict.fromkeys(map(float, question.loads))
    for seed, load, gpus in product(range(question.seeds), loads, question.sizes):
        whole = workload(load, seed, gpus)
        queues = whole.queues if question.queue == "all" else (question.queue,)
        for queue in queues:
            trace = whole if queue is None else whole.of_queue(queue)
            trace = trace.fitted_to(gpus, question.oversize)
            for label, policy in policies.items():
                yield Case(
                    label=label,
                    policy=policy,
                    trace=trace,
                    gpus=gpus,
                    queue=queue,
                    load=load,
                    seed=seed,
                    reconfigure=question.reconfigure,
                    rules=question.rules,
                    keep_events=question.keep_events,
                )


def _labelled(policies: Sequence[str | Policy]) -> dict[str, Policy]:
    """Policies by what results call them; of two with one name the second gets a number."""
    labelled: dict[str, Policy] = {}
    for policy in policies:
        if not isinstance(policy, str) and (isinstance(policy, type) or not callable(policy)):
            raise UserError(
                f"policy {policy!r} cannot be used",
                "it is neither a name nor something that takes a snapshot",
                '"afs-l", or an instance of your policy',
            )
        name = policy if isinstance(policy, str) else getattr(policy, "__name__", repr(policy))
        label, number = name, 2
        while label in labelled:
            label, number = f"{name} #{number}", number + 1
        labelled[label] = policy_named(policy) if isinstance(policy, str) else policy
    return labelled


def _workload(question: Question) -> Workload:
    """What gives the trace for a load, a seed and a size of the cluster."""
    source = question.workload
    speeds = read_speeds(Path(question.speeds)) if question.speeds is not None else None
    if isinstance(source, str) and source in GENERATORS and not Path(source).exists():
        make = GENERATORS[source]
        if source == "poisson":
            return lambda load, seed, gpus: make(speeds, gpus=gpus, load=load, seed=seed)
        return lambda load, seed, _gpus: make(speeds, seed=seed).at_load(load)
    if isinstance(source, Trace):
        trace = source
    else:
        trace = small_trace() if source is None else read_trace(Path(source), speeds)
    return lambda load, _seed, _gpus: trace.at_load(load)


def _row(runs: Sequence[Run], seeds: int) -> dict[str, object]:
    """One line of results from the runs of all seeds."""
    first = runs[0]
    table = [asdict(run.metrics()) for run in runs]
    row: dict[str, object] = {
        "policy": first.policy,
        "vc": first.queue,
        "gpus": first.gpus,
        "load": first.load,
        **table[0],
    }
    if seeds > 1:
        means = {name: float(np.mean([line[name] for line in table])) for name in table[0]}
        row |= {**means, "seeds": len(runs)}
        row["ci95"] = {name: _ci95([line[name] for line in table]) for name in means}
    return row


def _ci95(values: Sequence[float]) -> float:
    """Half the width of the 95 % interval of the mean."""
    if len(values) < 2:
        return math.nan
    quantile = T95[min(len(values) - 1, len(T95)) - 1]
    return float(quantile * np.std(values, ddof=1) / math.sqrt(len(values)))

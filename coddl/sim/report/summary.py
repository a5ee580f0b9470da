"""What a report says about runs: their names, the table, and the finding in a sentence."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Literal

import numpy as np

from coddl.sim.run import Run

Unit = Literal["seconds", "part", "hours", "ratio", "count"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table: what it shows of each run, and which value is the best."""

    key: str
    name: str
    unit: Unit
    best: Literal["least", "most", ""]
    help: str


COLUMNS: Final = (
    Column("jobs", "Jobs", "count", "most", "Jobs that finished"),
    Column("avg_jct_s", "Avg JCT", "seconds", "least", "Mean completion time: finish - submission"),
    Column("slower", "vs. best", "ratio", "", "Avg JCT over the best avg JCT in the same setting"),
    Column("p50_jct_s", "p50", "seconds", "least", "Half of the jobs complete within"),
    Column("p95_jct_s", "p95", "seconds", "least", "95 % of the jobs complete within"),
    Column("p99_jct_s", "p99", "seconds", "least", "99 % of the jobs complete within"),
    Column("avg_wait_s", "Avg wait", "seconds", "least", "Mean time without GPUs"),
    Column("makespan_s", "Makespan", "seconds", "least", "First submission to last finish"),
    Column("utilization", "GPUs in use", "part", "most", "Mean part of the GPUs that are held"),
    Column("gpu_hours", "GPU-hours", "hours", "least", "GPU time all jobs together held"),
    Column("rho_max", "ρ max", "ratio", "least", "Finish-time fairness, the job treated worst"),
    Column(
        "rho_mean", "ρ mean", "ratio", "least", "Finish-time fairness: JCT over JCT at 1/n share"
    ),
    Column("reallocations", "Resizes", "count", "least", "Changes of share of started jobs"),
)

Setting = tuple[str, str, int, float]
Row = dict[str, float]


def setting_of(run: Run) -> Setting:
    """What two runs must have in common to be compared."""
    return run.trace.name, run.queue, run.gpus, run.load


def labels_of(runs: Sequence[Run]) -> list[str]:
    """Name each run after its policy and whatever differs between the runs; no two alike."""
    parts: tuple[Callable[[Run], str], ...] = (
        lambda run: run.trace.name,
        lambda run: run.queue or "all queues",
        lambda run: f"{run.gpus} GPUs",
        lambda run: f"load {run.load:g}",
        lambda run: f"seed {run.seed}",
    )
    telling = [part for part in parts if len({part(run) for run in runs}) > 1]
    labels = [", ".join((run.policy, *(part(run) for part in telling))) for run in runs]
    total, seen = Counter(labels), Counter[str]()
    for at, label in enumerate(labels):
        seen[label] += 1
        if total[label] > 1:
            labels[at] = f"{label} #{seen[label]}"
    return labels


def table_of(runs: Sequence[Run]) -> list[Row]:
    """The numbers of each run, one row a run."""
    rows: list[Row] = [asdict(run.metrics()) for run in runs]
    for members in _by_setting(runs):
        best = min((rows[at]["avg_jct_s"] for at in members if _known(rows[at])), default=np.nan)
        for at in members:
            rows[at]["slower"] = rows[at]["avg_jct_s"] / best if best > 0.0 else np.nan
    return rows


def best_of(runs: Sequence[Run], rows: Sequence[Row]) -> list[list[str]]:
    """For each run, the columns in which no run of its setting is better and one at least is worse."""
    best: list[list[str]] = [[] for _ in runs]
    for members in _by_setting(runs):
        for column in COLUMNS:
            values = [rows[at][column.key] for at in members]
            known = [value for value in values if np.isfinite(value)]
            if not column.best or len(set(known)) < 2:
                continue
            top = min(known) if column.best == "least" else max(known)
            for at, value in zip(members, values, strict=True):
                if value == top:
                    best[at].append(column.key)
    return best


def finding(runs: Sequence[Run], labels: Sequence[str], rows: Sequence[Row]) -> str:
    """Say in a sentence what comparing the runs shows."""
    known = [at for at, row in enumerate(rows) if _known(row)]
    if not known:
        return "No job has finished." if runs else "Nothing was run."
    if len(known) == 1:
        row = rows[known[0]]
        return (
            f"{labels[known[0]]} finishes {row['jobs']:,} jobs in {duration(row['makespan_s'])}, "
            f"each in {duration(row['avg_jct_s'])} on average."
        )
    told = _comparison(
        [runs[at] for at in known], [labels[at] for at in known], [rows[at] for at in known]
    )
    complete = all(runs[at].finished.all() for at in known)
    return f"{told}." if complete else f"{told} (counting finished jobs only)."


def _comparison(runs: Sequence[Run], labels: Sequence[str], rows: Sequence[Row]) -> str:
    groups = _by_setting(runs)
    means = [_policy_means(runs, rows, members) for members in groups]
    if len(groups) == 1 and len(means[0]) > 1:
        return _ranking(means[0])
    if all(len(mean) > 1 for mean in means):
        wins = Counter(next(iter(mean)) for mean in means)
        policy, count = wins.most_common(1)[0]
        return (
            f"{policy} finishes jobs soonest on average in {count} of {len(groups)} settings; "
            f"over all, {_over_all(policy, means)}"
        )
    order = sorted(range(len(rows)), key=lambda at: rows[at]["avg_jct_s"])
    first, last = order[0], order[-1]
    return (
        f"Jobs finish soonest with {labels[first]}, in {duration(rows[first]['avg_jct_s'])} on average, "
        f"and latest with {labels[last]}, in {duration(rows[last]['avg_jct_s'])}"
    )


def _ranking(mean_s: dict[str, float]) -> str:
    """Compare the first of an ascending table with the last, and with the next."""
    (first, first_s), (second, second_s), *_ = mean_s.items()
    last, last_s = list(mean_s.items())[-1]
    if round(last_s / first_s, 2) == 1.0:
        return f"Jobs finish equally soon on average under {', '.join(mean_s)}"
    text = f"{first} finishes jobs {last_s / first_s:.2f}× sooner on average than {last}"
    if second == last:
        return text
    if round(second_s / first_s, 2) == 1.0:
        return f"{text}, and about as soon as {second}"
    return f"{text}, and {second_s / first_s:.2f}× sooner than {second}, the next best"


def _over_all(policy: str, means: Sequence[dict[str, float]]) -> str:
    """Compare a policy with the others by the geometric mean of the ratios, setting by setting."""
    shared = [name for name in means[0] if all(name in mean for mean in means) and name != policy]
    if not shared or any(policy not in mean for mean in means):
        return "not all policies ran in all of them"
    ratio = {
        name: float(np.exp(np.mean([np.log(mean[name] / mean[policy]) for mean in means])))
        for name in shared
    }
    slowest = max(ratio, key=lambda name: ratio[name])
    return f"{ratio[slowest]:.2f}× sooner than {slowest} (geometric mean)"


def _policy_means(
    runs: Sequence[Run], rows: Sequence[Row], members: Sequence[int]
) -> dict[str, float]:
    """The mean of avg JCT of each policy over its seeds, least first."""
    seeds: dict[str, list[float]] = {}
    for at in members:
        seeds.setdefault(runs[at].policy, []).append(rows[at]["avg_jct_s"])
    means = {policy: float(np.mean(values)) for policy, values in seeds.items()}
    return dict(sorted(means.items(), key=lambda item: item[1]))


def _by_setting(runs: Sequence[Run]) -> list[list[int]]:
    groups: dict[Setting, list[int]] = {}
    for at, run in enumerate(runs):
        groups.setdefault(setting_of(run), []).append(at)
    return list(groups.values())


def _known(row: Row) -> bool:
    return bool(np.isfinite(row["avg_jct_s"]))


def duration(seconds: float) -> str:
    """A time as people say it."""
    for unit, size_s, from_s in (
        ("d", 86400.0, 172800.0),
        ("h", 3600.0, 3600.0),
        ("min", 60.0, 60.0),
    ):
        if seconds >= from_s:
            return f"{seconds / size_s:,.1f} {unit}"
    return f"{seconds:.3g} s"

"""The text of a report: names of runs, the table, and the finding in one sentence."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final, Literal, NamedTuple

import numpy as np

from coddl.core.waiting import counted
from coddl.sim.run import Run
from coddl.sim.run_key import RunKey

Unit = Literal["seconds", "part", "hours", "ratio", "times", "count"]


@dataclass(frozen=True, slots=True)
class ReportColumn:
    """One column of the table: what it shows of each run, and which value is the best."""

    key: str
    name: str
    unit: Unit
    best: Literal["least", "most", ""]
    help: str


COLUMNS: Final = (
    ReportColumn("jobs", "Jobs", "count", "", "Jobs that finished"),
    ReportColumn(
        "avg_jct_s", "Avg JCT", "seconds", "least", "Mean completion time: finish - submission"
    ),
    ReportColumn(
        "slower", "vs. best", "times", "", "Avg JCT over the best avg JCT in the same setting"
    ),
    ReportColumn("p50_jct_s", "p50", "seconds", "least", "Half of the jobs complete within"),
    ReportColumn("p95_jct_s", "p95", "seconds", "least", "95 % of the jobs complete within"),
    ReportColumn("p99_jct_s", "p99", "seconds", "least", "99 % of the jobs complete within"),
    ReportColumn("avg_wait_s", "Avg wait", "seconds", "least", "Mean time without GPUs"),
    ReportColumn("makespan_s", "Makespan", "seconds", "least", "First submission to last finish"),
    ReportColumn(
        "utilization", "GPUs in use", "part", "most", "Mean fraction of the GPUs that jobs hold"
    ),
    ReportColumn("gpu_hours", "GPU-hours", "hours", "least", "GPU time held by all jobs"),
    ReportColumn(
        "gpu_hours_held", "GPU-hours held", "hours", "least", "GPU time of the nodes, used or not"
    ),
    ReportColumn("avg_nodes", "Avg nodes", "ratio", "", "Mean number of nodes held"),
    ReportColumn(
        "rho_max", "ρ max", "ratio", "least", "Finish-time fairness of the worst-treated job"
    ),
    ReportColumn(
        "rho_mean", "ρ mean", "ratio", "least", "Finish-time fairness: JCT over JCT at 1/n share"
    ),
    ReportColumn(
        "reallocations",
        "Resizes",
        "count",
        "least",
        "Changes of the number of GPUs of started jobs",
    ),
)

OF_NODES: Final = ("gpu_hours_held", "avg_nodes")  # shown only where nodes come and go

ComparisonKey = tuple[str, RunKey]  # the trace, and what else is the same
Row = dict[str, float]


class AgainstReplay(NamedTuple):
    """How the runs of a what-if compare with the replay of what happened."""

    replay: int  # the run that is the replay; what was recorded stands before it
    # Of each run what differs from its own metrics, as only jobs that ended in the pool count;
    # "slower" is the ratio of the mean completion time to the replay's.
    numbers: Sequence[Row]


def columns_of(runs: Sequence[Run], against: AgainstReplay | None = None) -> list[ReportColumn]:
    """The columns that say something about these runs."""
    scales = any(run.nodes is not None for run in runs)
    found = [column for column in COLUMNS if scales or column.key not in OF_NODES]
    if against is None:
        return found
    told = "Mean completion time over that of the replay"
    return [
        replace(each, name="vs. replay", help=told) if each.key == "slower" else each
        for each in found
    ]


def comparison_key(run: Run) -> ComparisonKey:
    """What two runs must have in common to be compared."""
    return run.trace.name, run.key.setting


def labels_of(runs: Sequence[Run]) -> list[str]:
    """Name each run after its scheduler and what differs between the runs; no two alike."""
    parts: tuple[Callable[[Run], str], ...] = (
        lambda run: run.trace.name,
        lambda run: "all queues" if run.key.queue is None else run.key.queue,
        lambda run: run.key.cluster,
        lambda run: f"{run.key.gpus} GPUs",
        lambda run: f"load {run.key.load:g}",
        lambda run: f"seed {run.key.seed}",
    )
    telling = [part for part in parts if len({part(run) for run in runs}) > 1]
    labels = [
        ", ".join((run.key.scheduler, *filter(None, (part(run) for part in telling))))
        for run in runs
    ]
    total, seen = Counter(labels), Counter[str]()
    for at, label in enumerate(labels):
        seen[label] += 1
        if total[label] > 1:
            labels[at] = f"{label} #{seen[label]}"
    return labels


def comparable_of(runs: Sequence[Run], against: AgainstReplay | None = None) -> list[list[int]]:
    """The runs of each setting that can be compared: those in which all jobs finished or, if there
    are none, those in which some did. All runs of a what-if are compared with its replay.
    """
    groups: dict[ComparisonKey | None, list[int]] = {}
    for at, run in enumerate(runs):
        groups.setdefault(comparison_key(run) if against is None else None, []).append(at)
    some = [[at for at in group if runs[at].finished.any()] for group in groups.values()]
    return [[at for at in group if runs[at].finished.all()] or group for group in some]


def table_of(runs: Sequence[Run], against: AgainstReplay | None = None) -> list[Row]:
    """The numbers of each run, one row per run."""
    rows: list[Row] = [asdict(run.metrics()) | {"slower": np.nan} for run in runs]
    if against is not None:
        return [row | own for row, own in zip(rows, against.numbers, strict=True)]
    for group in comparable_of(runs):
        best_s = min((rows[at]["avg_jct_s"] for at in group), default=np.nan)
        for at in group:
            rows[at]["slower"] = rows[at]["avg_jct_s"] / best_s if best_s > 0.0 else 1.0
    return rows


def best_of(
    runs: Sequence[Run], rows: Sequence[Row], against: AgainstReplay | None = None
) -> list[list[str]]:
    """For each run, the columns in which no run it compares with is better and some are worse."""
    best: list[list[str]] = [[] for _ in runs]
    for group in comparable_of(runs, against):
        for column in (column for column in columns_of(runs) if column.best):
            known = [rows[at][column.key] for at in group if np.isfinite(rows[at][column.key])]
            if len(set(known)) < 2:
                continue
            top = min(known) if column.best == "least" else max(known)
            for at in group:
                if rows[at][column.key] == top:
                    best[at].append(column.key)
    return best


def finding(
    runs: Sequence[Run],
    labels: Sequence[str],
    rows: Sequence[Row],
    against: AgainstReplay | None = None,
) -> str:
    """Say in a sentence what comparing the runs shows."""
    if against is not None:
        return _against_replay(runs, against)
    groups = [group for group in comparable_of(runs) if group]
    compared = [at for group in groups for at in group]
    if not compared:
        return "No job has finished." if runs else "Nothing was run."
    if len(compared) == 1:
        label, row = labels[compared[0]], rows[compared[0]]
        return (
            f"{label} finishes {row['jobs']:,} jobs in {duration(row['makespan_s'])}, "
            f"each in {duration(row['avg_jct_s'])} on average."
        )
    means = [
        _scheduler_means([(runs[at].key.scheduler, rows[at]) for at in group]) for group in groups
    ]
    told = _comparison(means) or _extremes([(labels[at], rows[at]) for at in compared])
    complete = all(runs[at].finished.all() for at in compared)
    return f"{told}." if complete else f"{told} (counting finished jobs only)."


def _against_replay(runs: Sequence[Run], against: AgainstReplay) -> str:
    """Compare the best policy at each number of GPUs with the replay."""
    replay = runs[against.replay].key
    ratios = [row["slower"] for row in against.numbers]
    known = [
        (ratio, run.key)
        for run, ratio in list(zip(runs, ratios, strict=True))[against.replay + 1 :]
        if np.isfinite(ratio)
    ]
    if not known:
        return (
            "No job has finished." if not np.isfinite(ratios).any() else "Nothing else was tried."
        )
    sizes = sorted({key.gpus for _, key in known})
    best = [min((r, key.policy) for r, key in known if key.gpus == gpus) for gpus in sizes]
    is_one = len({policy for _, policy in best}) == 1
    told = [
        f"{ratio:.2f}× on {counted(gpus, 'GPU')}" + f" ({policy})" * (not is_one)
        for gpus, (ratio, policy) in zip(sizes, best, strict=True)
    ]
    at_best = ", at best" * (len(known) > len(best))
    policy = replay.policy.removesuffix(" (replayed)")
    was = f"{policy} on {counted(replay.gpus, 'GPU')}"
    whole = f"Mean completion time against the replay ({was}){at_best}"
    return f"{whole}{f', with {best[0][1]}' * is_one}: {', '.join(told)}."


def _comparison(means: Sequence[dict[str, float]]) -> str:
    """Compare policies by their avg JCT in each setting; nothing where a setting has but one."""
    if any(len(mean_s) < 2 for mean_s in means):
        return ""
    if len(means) == 1:
        return _ranking(means[0])
    wins = Counter(next(iter(mean_s)) for mean_s in means)
    policy, count = wins.most_common(1)[0]
    return (
        f"{policy} finishes jobs soonest on average in {count} of {len(means)} settings; "
        f"over all, {_over_all(policy, means)}"
    )


def _extremes(named: Sequence[tuple[str, Row]]) -> str:
    times_s = sorted((row["avg_jct_s"], label) for label, row in named)
    (first_s, first), (last_s, last) = times_s[0], times_s[-1]
    return (
        f"Jobs finish soonest with {first}, in {duration(first_s)} on average, "
        f"and latest with {last}, in {duration(last_s)}"
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


def _scheduler_means(named: Sequence[tuple[str, Row]]) -> dict[str, float]:
    """The mean of avg JCT of each policy over its seeds, least first."""
    seeds: dict[str, list[float]] = {}
    for policy, row in named:
        seeds.setdefault(policy, []).append(row["avg_jct_s"])
    means_s = {policy: float(np.mean(values_s)) for policy, values_s in seeds.items()}
    return dict(sorted(means_s.items(), key=lambda item: item[1]))


def duration(seconds: float) -> str:
    """A time as people say it."""
    for unit, size_s in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size_s:
            return f"{seconds / size_s:,.1f} {unit}"
    return f"{seconds:.3g} s"

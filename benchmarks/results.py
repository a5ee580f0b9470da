"""Regenerates docs/results.md and its pictures from real runs: `make results`.

Needs the Philly trace in AFS form, in ../shared/data/philly or in the folder given.
"""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import coddl
from benchmarks.plot import line_plot
from benchmarks.thrashing import MODES, probe_progress
from coddl.sim.study import Study
from coddl.traces.files import read_trace
from coddl.traces.trace import Trace

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TIRESIAS = "tiresias-l:preset=afs"
POLICIES = ("srtf", "srsf", TIRESIAS, "optimus", "max-min", "afs-l", "afs-p")
RIGID, ELASTIC = ("srtf", "srsf", TIRESIAS), ("optimus", "max-min", "afs-l", "afs-p")


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; all columns but the first are aligned to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def by_queue(study: Study, column: str) -> dict[str, dict[str, float]]:
    """queue -> policy -> value."""
    out: dict[str, dict[str, float]] = {}
    for row in study.rows:
        out.setdefault(str(row["vc"]), {})[str(row["policy"])] = float(str(row[column]))
    return out


def published_table(study: Study, trace: Trace) -> str:
    """Average JCT of every policy on every cluster, and AFS' advantage."""
    jct_s = by_queue(study, "avg_jct_s")
    sizes = np.bincount(trace.queue)
    rows, gains = [], []
    for queue in sorted(jct_s, key=lambda queue: sizes[trace.queues.index(queue)]):
        line = jct_s[queue]
        gain = (line["srtf"] / line["afs-l"], line[TIRESIAS] / line["afs-p"])
        gains.append(gain)
        minutes = [f"{line[policy] / 60:,.1f}" for policy in POLICIES]
        ratios = [f"{ratio:.2f}x" for ratio in gain]
        rows.append([f"{queue} ({sizes[trace.queues.index(queue)]:,})", *minutes, *ratios])
    heads = [policy.partition(":")[0] for policy in POLICIES]
    best_l, best_p = (max(column) for column in zip(*gains, strict=True))
    return (
        table(["cluster (jobs)", *heads, "srtf / afs-l", "tiresias-l / afs-p"], rows)
        + f"\n\nUp to **{best_l:.2f}x** over SRTF (published: up to 2.67x) and up to "
        f"**{best_p:.2f}x** over Tiresias-L (published: up to 3.11x)."
    )


def golden_table(study: Study, golden: Path) -> str:
    """Ours against the published simulator's."""
    jct_s = by_queue(study, "avg_jct_s")
    names = {"tiresias-l": TIRESIAS}
    deviations: dict[str, dict[str, str]] = {}
    with golden.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            ours = jct_s[row["vc"]][names.get(row["policy"], row["policy"])] / 60
            percent = (ours / float(row["avg_jct_min"]) - 1) * 100
            deviations.setdefault(row["vc"], {})[row["policy"]] = f"{percent:+.2f} %"
    policies = list(next(iter(deviations.values())))
    return table(["cluster", *policies], [[vc, *line.values()] for vc, line in deviations.items()])


def reallocation_table(study: Study, trace: Trace) -> str:
    """How much more often elastic policies reconfigure."""
    changes = by_queue(study, "reallocations")
    pairs = {
        "afs-l / srtf": (("afs-l",), ("srtf",)),
        "afs-p / tiresias-l": (("afs-p",), (TIRESIAS,)),
        "elastic / rigid": (ELASTIC, RIGID),
    }
    rows, ratios = [], []
    for queue, line in changes.items():
        jobs = int((trace.queue == trace.queues.index(queue)).sum())
        ratio = [
            np.mean([line[policy] + jobs for policy in more])
            / np.mean([line[policy] + jobs for policy in fewer])
            for more, fewer in pairs.values()
        ]
        ratios.append(ratio)
        cells = (f"{line[policy]:,.0f}" for policy in POLICIES)
        rows.append([queue, *cells, *(f"{value:.1f}x" for value in ratio)])
    heads = [policy.partition(":")[0] for policy in POLICIES]
    means, most = np.mean(ratios, axis=0), np.max(ratios, axis=0)
    told = "; ".join(
        f"{name} **{mean:.1f}x** on average, up to **{top:.1f}x**"
        for name, mean, top in zip(pairs, means, most, strict=True)
    )
    return (
        table(["cluster", *heads, *pairs], rows)
        + f"\n\nConfigurations: {told} (published: 6.3x on average, up to 22x)."
    )


def stall_table(trace: Trace) -> str:
    """What a stall at every change costs."""
    rows = []
    for policy in ("afs-l", "afs-p", "afs-p:tie=keep", "srtf"):
        cells = []
        for seconds in (0, 30, 60, 120, 300):
            study = coddl.simulate(trace, policy, vc="103959", reconfigure=f"stall:{seconds}")
            cells.append(f"{study['avg_jct_s'][0] / 60:.0f}")
        rows.append([policy, *cells])
    return table(["avg JCT, min", "0 s", "30 s", "60 s", "120 s", "300 s"], rows)


def contest_table(trace: Trace) -> str:
    """The exact scan of AFS against the tournament."""
    specs = ("afs-l:contest=scan", "afs-l:contest=tournament", "afs-p:contest=scan",
             "afs-p:contest=tournament", "afs-p:tie=keep")  # fmt: skip
    study = coddl.simulate(trace, specs, vc="all")
    jct_s, changes = by_queue(study, "avg_jct_s"), by_queue(study, "reallocations")
    rows = []
    for queue, line in jct_s.items():
        moves = changes[queue]
        rows.append(
            [
                queue,
                f"{line[specs[0]] / 60:,.2f}",
                f"{(line[specs[1]] / line[specs[0]] - 1) * 100:+.3f} %",
                f"{line[specs[2]] / 60:,.2f}",
                f"{(line[specs[3]] / line[specs[2]] - 1) * 100:+.2f} %",
                f"{(line[specs[4]] / line[specs[2]] - 1) * 100:+.2f} %",
                f"{(moves[specs[4]] / moves[specs[2]] - 1) * 100:+.0f} %",
            ]
        )
    head = ["cluster", "afs-l scan, min", "tournament", "afs-p scan, min", "tournament", "tie=keep",
            "changes with tie=keep"]  # fmt: skip
    return table(head, rows)


def thrashing_table(trace: Trace) -> str:
    """Progress of a job submitted at time zero, by how the cluster reconfigures."""
    lines = {mode: probe_progress(trace, spec) for mode, spec in MODES.items()}
    line_plot(
        DOCS / "img" / "thrashing.svg",
        "Progress of a job submitted at time zero (afs-p, 64 GPUs)",
        "hours",
        "iterations, thousands",
        {
            mode: [(t / 3600, done / 1000) for t, done in probe.progress]
            for mode, probe in lines.items()
        },
    )
    rows = [
        [
            mode,
            f"{probe.finish_s / 3600:.1f} h",
            f"{probe.still_s / 3600:.2f} h",
            f"{probe.avg_jct_s / 60:,.0f} min",
            f"{probe.cancelled:,}",
        ]
        for mode, probe in lines.items()
    ]
    return table(
        ["reconfiguration", "its JCT", "it stood still", "avg JCT of all", "cancelled"], rows
    )


def poster_table() -> str:
    """Static against dynamic allocation, the first slide deck's experiment."""
    study = coddl.simulate("poster", ("fifo", "max-min", "afs-l"), gpus=512, seeds=5)
    rows = [
        [
            row["policy"],
            *(
                f"{row[name] / scale:,.1f} ± {row['ci95'][name] / scale:,.1f}"  # type: ignore[operator, index]
                for name, scale in (("avg_jct_s", 60), ("makespan_s", 3600))
            ),
        ]
        for row in study.rows
    ]
    return table(["policy", "avg JCT, min", "makespan, h"], rows)


def main() -> None:
    """Run everything, write the page."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT.parent / "shared/data/philly"
    if not (folder / "jobs.csv.gz").is_file():
        sys.exit(f"error: the results cannot be made\n  because {folder} has no jobs.csv.gz")
    (DOCS / "img").mkdir(exist_ok=True)
    trace = read_trace(folder / "jobs.csv.gz")
    study = coddl.simulate(trace, POLICIES, vc="all", gpus=64)
    page = (ROOT / "benchmarks" / "results.template.md").read_text(encoding="utf-8")
    sections = {
        "published": published_table(study, trace),
        "golden": golden_table(study, folder / "golden.csv"),
        "reallocations": reallocation_table(study, trace),
        "stalls": stall_table(trace),
        "contest": contest_table(trace),
        "thrashing": thrashing_table(trace),
        "poster": poster_table(),
    }
    for name, text in sections.items():
        page = page.replace(f"{{{{{name}}}}}", text)
    (DOCS / "results.md").write_text(page, encoding="utf-8")
    print("docs/results.md written")


if __name__ == "__main__":
    main()

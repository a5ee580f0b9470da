"""The report: one file that needs nothing else and tells the numbers of the runs."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coddl.core.columns import FloatColumn
from coddl.core.errors import UserError
from coddl.core.speed.table import interpolated
from coddl.sim.node_scaling import NodeChange, NodesHeld
from coddl.sim.report import write_report
from coddl.sim.report.page import PLOTTED_RUNS, TIMELINE_CHANGES
from coddl.sim.report.series import (
    POINTS,
    QUANTILES,
    SHIPPED_JOBS,
    WINDOW_JOBS,
    busiest_window,
    gpu_changes_of,
    timeline,
)
from coddl.sim.report.summary import best_of, columns_of, finding, labels_of, table_of
from coddl.sim.run import Events, Run
from coddl.sim.run_key import RunKey
from coddl.sim.world import ARRIVE, FINISH, SHARE, SWAP, WAKE_UP
from coddl.traces.trace import Trace

Times = Sequence[float] | FloatColumn
Told = tuple[float, int, int, int]  # time, kind, job, GPUs
START_S = 1000.0  # when the first job is submitted
HOSTILE = "</script><script>alert(1)</script><!-- \"'&\u2028\ud800 {{data}}"


def trace(submitted_s: Sequence[float], name: str = "t", model: str = "m") -> Trace:
    jobs = len(submitted_s)
    nobody, one, work = np.zeros(jobs, np.int64), np.ones(jobs, np.int64), np.full(jobs, 10.0)
    speeds = interpolated({model: [(1, 1.0), (4, 0.25)]})
    when_s = np.array(submitted_s, float) + START_S
    return Trace(name, speeds, when_s, nobody, work, one, one, 4 * one, nobody, nobody)


def events(told: Sequence[Told]) -> Events:
    time_s, kind, job, gpus = zip(*told, strict=True) if told else ((), (), (), ())
    whole = (np.array(column, np.int64) for column in (kind, job, gpus))
    return Events(np.array(time_s, float) + START_S, *whole)


def run(policy: str = "p", finish_s: Times = (10.0, 30.0), **changes: Any) -> Run:
    """Job 0 holds 2 GPUs for 10 s. Job 1 comes at 5 s and has 4 from 10 s on, 2 from 20 s on."""
    ends_s = np.array(finish_s, float) + START_S
    key = {name: changes.pop(name) for name in [*changes] if name in RunKey.__slots__}
    plain = Run(
        key=replace(RunKey(policy, gpus=4), **key),
        trace=trace((0.0, 5.0)),
        end_s=START_S + 30.0,
        finish_s=ends_s,
        first_start_s=np.array([0.0, 10.0]) + START_S,
        executed_s=np.array([10.0, 20.0]),
        attained_gpu_s=np.array([20.0, 60.0]),
        migrations=0,
        reallocations=1,
        cancelled_preparations=0,
        event_count=5,
        wall_s=0.0,
        events=events(STORY),
    )
    made = replace(plain, **changes)
    last_s = np.max(made.finish_s[made.finished], initial=START_S)
    return replace(made, **{"end_s": float(last_s), **changes})


STORY: list[Told] = [
    (0.0, ARRIVE, 0, 0),
    (0.0, SHARE, 0, 2),
    (5.0, ARRIVE, 1, 0),
    (10.0, FINISH, 0, 0),
    (10.0, SHARE, 1, 4),
    (20.0, SHARE, 1, 2),
    (30.0, FINISH, 1, 0),
    (99.0, WAKE_UP, -1, 0),
]


def many_jobs(jobs: int) -> Run:
    """Each job comes a second after the one before, and stays for ten; its share goes 1, 2, 3."""
    at_s = np.arange(jobs, dtype=float)
    told = [(at_s + 0, ARRIVE, 0), (at_s + 0, SHARE, 1), (at_s + 4, SHARE, 2), (at_s + 8, SHARE, 3)]
    told.append((at_s + 10, FINISH, 0))
    time_s = np.concatenate([when_s for when_s, _, _ in told])
    kind, gpus = (np.repeat([row[k] for row in told], jobs) for k in (1, 2))
    order = np.argsort(time_s, kind="stable")
    row = np.tile(np.arange(jobs), len(told))
    log = Events(time_s[order] + START_S, kind[order], row[order], gpus[order])
    return run(
        gpus=40,
        trace=trace(at_s.tolist()),
        finish_s=at_s + 10.0,
        first_start_s=at_s + START_S,
        executed_s=np.full(jobs, 10.0),
        attained_gpu_s=np.full(jobs, 4.0 + 8.0 + 6.0),
        events=log,
    )


class Page(HTMLParser):
    """What a browser would see of the file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text = path.read_text("utf-8")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.embedded = ""
        self.inside: dict[str, str | None] = {}
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = dict(attrs)

    def handle_endtag(self, tag: str) -> None:
        self.inside = {"ended": tag}

    def handle_data(self, data: str) -> None:
        if self.inside.get("id") == "data":
            self.embedded += data

    @property
    def data(self) -> dict[str, Any]:  # Any: what JSON holds
        loaded: dict[str, Any] = json.loads(self.embedded)
        return loaded


def page_of(runs: Sequence[Run], folder: Path, **more: Any) -> Page:
    write_report(runs, folder / "report.html", **{"title": "A comparison", **more})
    return Page(folder / "report.html")


def test_the_file_needs_nothing_else(tmp_path: Path) -> None:
    page = page_of([run("a"), run("b")], tmp_path)
    assert not {"src", "href", "srcset", "action"} & {name for _, had in page.tags for name in had}
    assert not {"link", "iframe", "img", "base", "object"} & {tag for tag, _ in page.tags}
    assert not re.search(r"@import|url\(|fetch\(|XMLHttp|import\(|innerHTML", page.text)
    assert "default-src 'none'" in page.text
    assert "{{" not in page.text


def test_the_script_finds_what_it_names(tmp_path: Path) -> None:
    page = page_of([run()], tmp_path)
    named = set(re.findall(r'(?:byId|chart)\("([\w-]+)"', page.text))
    assert named <= {had.get("id") for _, had in page.tags}
    drawn = {"cdf", "active", "waiting", "busy", "nodes", "shares"}
    assert drawn <= {had.get("id") for tag, had in page.tags if tag == "figure"}


def test_lines_tell_the_numbers_of_the_run(tmp_path: Path) -> None:
    made = run()
    [shown] = page_of([made], tmp_path).data["runs"]
    metrics = made.metrics()
    assert shown["end_s"] == 30.0 == metrics.makespan_s
    assert shown["cdf"] == {"jct_s": [10.0, 25.0], "part": [0.5, 1.0]}
    assert np.mean(shown["busy"]) == pytest.approx(metrics.utilization, abs=1e-4)
    assert np.mean(shown["active"]) * 30.0 == pytest.approx(35.0, abs=0.05)  # sum of JCT
    assert np.mean(shown["waiting"]) * 30.0 == pytest.approx(2 * metrics.avg_wait_s, abs=0.05)
    assert [shown["busy"][POINTS * at_s // 30] for at_s in (5, 15, 25)] == [0.5, 1.0, 0.5]
    assert shown["numbers"]["avg_jct_s"] == metrics.avg_jct_s == 17.5


def test_nodes_are_drawn_beside_what_jobs_fill_of_them(tmp_path: Path) -> None:
    begin, less = NodeChange(START_S, 3, 2, "5 jobs"), NodeChange(START_S + 20.0, 1, 1, "1 job")
    made = run(nodes=NodesHeld(2, (begin, less)))
    plain, shown = page_of([run(), made], tmp_path).data["runs"]
    assert "nodes" not in plain
    assert [shown["nodes"][POINTS * at_s // 30] for at_s in (5, 15, 25)] == [3.0, 3.0, 1.0]
    assert [shown["filled"][POINTS * at_s // 30] for at_s in (5, 15, 25)] == [1.0, 2.0, 1.0]
    assert [shown["busy"][POINTS * at_s // 30] for at_s in (5, 15, 25)] == [0.3333, 0.6667, 1.0]
    assert shown["node_changes"] == {"time_s": [0.0, 20.0], "because": ["5 jobs", "1 job"]}
    assert shown["numbers"]["avg_nodes"] == pytest.approx(7.0 / 3.0)
    assert shown["numbers"]["gpu_hours_held"] == pytest.approx(2 * 70.0 / 3600.0)


def test_columns_about_nodes_are_shown_only_where_they_come_and_go() -> None:
    scaled = run(nodes=NodesHeld(2, (NodeChange(START_S, 3, 2, "5 jobs"),)))
    without, with_them = ({each.key for each in columns_of(runs)} for runs in ([run()], [scaled]))
    assert with_them - without == {"gpu_hours_held", "avg_nodes"}


def test_the_timeline_tells_who_holds_what(tmp_path: Path) -> None:
    [shown] = page_of([run()], tmp_path).data["runs"]
    line = shown["timeline"]
    changes = list(zip(line["time_s"], line["job"], line["gpus"], strict=True))
    assert changes == [(0, 0, 2), (10, 0, 0), (10, 1, 4), (20, 1, 2), (30, 1, 0)]
    assert (line["from_s"], line["to_s"], line["left_out"]) == (0.0, 30.0, 0)
    assert (line["submitted_s"], line["finish_s"]) == ([0.0, 5.0], [10.0, 30.0])
    assert line["models"] == ["m"]


HELD = {
    "a share is held at once": ([(1.0, SHARE, 0, 2), (2.0, SHARE, 0, 0)], [(1, 0, 2), (2, 2, 0)]),
    "or when it is swapped in": (
        [(1.0, SHARE, 0, 2), (2.0, SWAP, 0, 2), (3.0, SHARE, 0, 4), (4.0, SHARE, 0, 0)],
        [(2, 0, 2), (4, 2, 0)],
    ),
    "and so may be having none": (
        [(1.0, SHARE, 0, 2), (2.0, SWAP, 0, 2), (3.0, SHARE, 0, 0), (4.0, SWAP, 0, 0)],
        [(2, 0, 2), (4, 2, 0)],
    ),
    "a finish ends it": ([(1.0, SHARE, 0, 2), (5.0, FINISH, 0, 0)], [(1, 0, 2), (5, 2, 0)]),
    "nothing happened": ([], []),
}


@pytest.mark.parametrize(("told", "want"), HELD.values(), ids=HELD.keys())
def test_what_is_held(told: list[Told], want: list[tuple[int, int, int]]) -> None:
    held = gpu_changes_of(events(told), START_S)
    assert list(zip(held.time_s, held.before, held.gpus, strict=True)) == want


def test_names_cannot_break_out_of_the_data(tmp_path: Path) -> None:
    named = trace((0.0, 5.0), name=HOSTILE, model=HOSTILE)
    page = page_of([run(HOSTILE, trace=named, queue=HOSTILE)], tmp_path, title=HOSTILE)
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert [tag for tag, _ in page.tags].count("style") == 1
    [shown] = page.data["runs"]
    assert shown["label"] == HOSTILE
    assert shown["timeline"]["models"] == [HOSTILE]
    assert page.data["title"] == HOSTILE
    assert ["Queue", HOSTILE] in page.data["facts"]


def test_runs_without_events_keep_what_can_be_known(tmp_path: Path) -> None:
    data = page_of([run("silent", events=None), run("told")], tmp_path).data
    silent, told = data["runs"]
    assert "busy" not in silent
    assert "timeline" not in silent
    assert silent["active"] == told["active"]
    assert silent["waiting"] == told["waiting"]  # job 1 waits before its first start only
    assert any("No events were kept of silent" in note for note in data["notes"])
    assert data["opened"] == 1


def test_unfinished_jobs_are_left_out_of_averages_and_said_so(tmp_path: Path) -> None:
    cut = run("cut", finish_s=(10.0, np.nan), events=events(STORY[:-2]))
    whole = run("whole")
    page = page_of([cut, whole], tmp_path)
    shown = page.data["runs"][0]
    assert shown["cdf"] == {"jct_s": [10.0], "part": [0.5]}
    assert shown["end_s"] == 20.0  # when something last happened
    assert shown["timeline"]["finish_s"] == [10.0, None]
    assert "cut: 1 of 2 jobs did not finish." in page.data["notes"]
    assert shown["numbers"]["slower"] is None  # its jobs that finished say nothing of the others
    assert page.data["finding"].startswith("whole finishes 2 jobs")


def test_a_run_in_which_nothing_finished(tmp_path: Path) -> None:
    page = page_of([run(finish_s=(np.nan, np.nan), events=events(STORY[:2]))], tmp_path)
    assert page.data["finding"] == "No job has finished."
    assert page.data["runs"][0]["cdf"] == {"jct_s": [], "part": []}


def test_a_trace_without_jobs_and_no_run_at_all(tmp_path: Path) -> None:
    columns: dict[str, Any] = dict.fromkeys(
        ("finish_s", "first_start_s", "executed_s", "attained_gpu_s"), np.zeros(0)
    )
    page = page_of([run(trace=trace(()), events=events([]), **columns)], tmp_path)
    assert page.data["runs"][0]["end_s"] == 0.0
    assert page_of([], tmp_path).data["finding"] == "Nothing was run."


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()  # nothing can take its place
    (tmp_path / "report.html" / "mine").write_text("kept")
    with pytest.raises(UserError, match=r"report\.html"):
        write_report([run()], tmp_path / "report.html", title="")
    assert [path.name for path in tmp_path.rglob("*")] == ["report.html", "mine"]


def test_a_report_replaces_the_one_before(tmp_path: Path) -> None:
    page_of([run("replaced")], tmp_path)
    assert "replaced" not in page_of([run("new")], tmp_path).embedded
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_long_run_stays_small(tmp_path: Path) -> None:
    made = many_jobs(20_000)
    page = page_of([made], tmp_path)
    [shown] = page.data["runs"]
    assert len(shown["busy"]) == len(shown["active"]) == len(shown["waiting"]) == POINTS
    assert len(shown["cdf"]["jct_s"]) <= QUANTILES + 1
    assert shown["cdf"]["part"][-1] == 1.0
    line = shown["timeline"]
    assert len(line["time_s"]) <= TIMELINE_CHANGES + made.key.gpus
    assert 0.0 <= line["from_s"] < page.data["window_s"][0] + 1.0
    assert line["to_s"] < shown["end_s"]
    assert np.mean(shown["busy"]) == pytest.approx(made.metrics().utilization, abs=1e-4)


def test_part_of_a_timeline_is_as_the_whole() -> None:
    made = many_jobs(500)
    held = gpu_changes_of(made.events or events([]), START_S)
    part = timeline(made, held, (200.0, 210.0), at_most=100)
    assert len(part.time_s) <= 100 + made.key.gpus
    assert part.from_s < 200.0 < 210.0 < part.to_s
    for now_s in np.linspace(part.from_s, part.to_s, 9)[:-1]:
        shares = np.zeros(500, np.int64)
        seen = np.zeros(500, np.int64)
        for job, gpus, at_s in zip(held.job, held.gpus, held.time_s, strict=True):
            shares[job] = gpus if at_s <= now_s else shares[job]
        for job, gpus, at_s in zip(part.job, part.gpus, part.time_s, strict=True):
            seen[part.rows[job]] = gpus if at_s <= now_s else seen[part.rows[job]]
        assert seen.tolist() == shares.tolist()


def test_jobs_that_wait_all_the_time_are_counted_beyond_a_number() -> None:
    jobs = SHIPPED_JOBS + 500
    waits = run(
        trace=trace([0.0] * jobs),
        finish_s=[np.nan] * jobs,
        first_start_s=np.full(jobs, np.inf),
        events=events([(0.0, SHARE, 7, 4)]),
    )
    line = timeline(
        waits, gpu_changes_of(events([(0.0, SHARE, 7, 4)]), START_S), (0.0, 1.0), at_most=10
    )
    assert (len(line.rows), line.left_out) == (SHIPPED_JOBS, 500)
    assert line.rows[line.job].tolist() == [7]


def test_the_window_opens_where_some_thirty_jobs_hold_gpus(tmp_path: Path) -> None:
    made = many_jobs(500)
    first_s, last_s = busiest_window(made, gpu_changes_of(made.events or events([]), START_S))
    start_s, stop_s = made.first_start_s - START_S, made.finish_s - START_S
    assert ((start_s < last_s) & (stop_s > first_s)).sum() == WINDOW_JOBS
    assert page_of([run()], tmp_path).data["window_s"] == [0.0, 30.0]  # all of a small run
    assert page_of([run()], tmp_path, window_s=(3.0, 4.0)).data["window_s"] == [3.0, 4.0]


LABELS = {
    "the policy alone": ([run("a"), run("b")], ["a", "b"]),
    "what varies": ([run("a", gpus=4), run("a", gpus=8)], ["a, 4 GPUs", "a, 8 GPUs"]),
    "queues": ([run("a"), run("a", queue="q")], ["a, all queues", "a, q"]),
    "all that varies": (
        [run("a", load=0.5, seed=1), run("a", seed=2)],
        ["a, load 0.5, seed 1", "a, load 1, seed 2"],
    ),
    "placements": (
        [run("a", placement="spread"), run("a", placement="close")],
        ["a + spread", "a + close"],
    ),
    "clusters of one size": (
        [run("a", cluster="1x4"), run("a", cluster="2x2")],
        ["a, 1x4", "a, 2x2"],
    ),
    "a number for the same thing twice": ([run("a"), run("a"), run("b")], ["a #1", "a #2", "b"]),
}


@pytest.mark.parametrize(("runs", "want"), LABELS.values(), ids=LABELS.keys())
def test_no_two_runs_have_one_name(runs: list[Run], want: list[str]) -> None:
    assert labels_of(runs) == want


def test_with_many_runs_the_table_shows_all_and_the_plots_the_first(tmp_path: Path) -> None:
    data = page_of([run(seed=seed) for seed in range(PLOTTED_RUNS + 2)], tmp_path).data
    assert ["cdf" in shown for shown in data["runs"]] == [True] * PLOTTED_RUNS + [False] * 2
    assert "The plots show the first 12 of 14 runs." in data["notes"]


QUICK, SLOW, SLOWER = (10.0, 30.0), (10.0, 55.0), (10.0, 125.0)  # avg JCT 17.5, 30, 65
PARTIAL = (10.0, np.nan)  # one job of two
TWO_CLUSTERS = (("a", QUICK, "1x4"), ("b", SLOWER, "1x4"), ("a", SLOWER, "2x2"), ("b", SLOW, "2x2"))
FINDINGS = {
    "two": ([run("a"), run("b", SLOW)], "a finishes jobs 1.71× sooner on average than b."),
    "three": (
        [run("c", SLOWER), run("a"), run("b", SLOW)],
        "a finishes jobs 3.71× sooner on average than c, and 1.71× sooner than b, the next best.",
    ),
    "a tie": (
        [run("a"), run("b"), run("c", SLOW)],
        "a finishes jobs 1.71× sooner on average than c, and about as soon as b.",
    ),
    "all tie": ([run("a"), run("b")], "Jobs finish equally soon on average under a, b."),
    "one": ([run("a")], "a finishes 2 jobs in 30 s, each in 17.5 s on average."),
    "one policy": (
        [run("a"), run("a", SLOW, gpus=8)],
        "Jobs finish soonest with a, 4 GPUs, in 17.5 s on average, "
        "and latest with a, 8 GPUs, in 30 s.",
    ),
    "settings": (
        [run("a"), run("b", SLOW), run("a", gpus=8), run("b", SLOWER, gpus=8)],
        "a finishes jobs soonest on average in 2 of 2 settings; "
        "over all, 2.52× sooner than b (geometric mean).",
    ),
    "seeds": (
        [run("a"), run("a", SLOWER, seed=1), run("b", SLOW), run("b", SLOW, seed=1)],
        "b finishes jobs 1.38× sooner on average than a.",
    ),
    "placements": (
        [run("a", placement="spread"), run("a", SLOWER, placement="close"), run("b", SLOW)],
        "a + spread finishes jobs 3.71× sooner on average than a + close, "
        "and 1.71× sooner than b, the next best.",
    ),
    "clusters of one size": (
        [run(name, ends, cluster=cluster) for name, ends, cluster in TWO_CLUSTERS],
        "a finishes jobs soonest on average in 1 of 2 settings; "
        "over all, 1.31× sooner than b (geometric mean).",
    ),
    "one is incomplete": (
        [run("a"), run("b", SLOW), run("c", PARTIAL)],
        "a finishes jobs 1.71× sooner on average than b.",
    ),
    "all are": (
        [run("a", PARTIAL), run("b", (20.0, np.nan))],
        "a finishes jobs 2.00× sooner on average than b (counting finished jobs only).",
    ),
}


@pytest.mark.parametrize(("runs", "want"), FINDINGS.values(), ids=FINDINGS.keys())
def test_the_finding_is_a_sentence(runs: list[Run], want: str) -> None:
    assert finding(runs, labels_of(runs), table_of(runs)) == want


def test_the_best_is_marked_among_what_can_be_compared() -> None:
    runs = [run("a"), run("b", SLOW, reallocations=0), run("c", PARTIAL), run("a", SLOWER, gpus=8)]
    rows = table_of(runs)
    best = best_of(runs, rows)
    assert {"avg_jct_s", "p99_jct_s", "makespan_s", "utilization"} <= set(best[0])
    assert best[1] == ["reallocations"]
    assert best[2:] == [[], []]  # not all jobs finished; nothing to compare with
    assert [row["slower"] for row in rows] == pytest.approx(
        [1.0, 30 / 17.5, np.nan, 1.0], nan_ok=True
    )

"""Experiments: each can be told apart, says what differs, and finds what can be drawn."""

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from coddl.core.errors import UserError
from coddl.core.registry import placement_from
from coddl.reproduce import afs, afs_thrashing, philly
from coddl.reproduce.experiment import Experiment, Finding, Inputs, MissingData, Plot
from coddl.reproduce.plot import COLOURS, drawn, ticks, write_plot, written
from coddl.reproduce.registry import ALL, EXPERIMENTS, experiments_named
from coddl.testing.builders import speeds_from
from coddl.traces.generators import poisson
from coddl.traces.trace import Trace, trace_of

SVG: Final = "{http://www.w3.org/2000/svg}"
# Those that need no data and little time; `make results` runs all of them.
QUICK: Final = ("poster-512", "afs-burst", "afs-tiresias-jobs")


def test_every_experiment_has_a_name_of_its_own() -> None:
    assert len(EXPERIMENTS) == len(ALL)
    assert len({each.title for each in ALL}) == len(ALL)  # a title is an anchor in the results
    assert "all" not in EXPERIMENTS
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", name) for name in EXPERIMENTS)


@pytest.mark.parametrize("experiment", ALL, ids=lambda each: each.name)
def test_an_experiment_says_what_it_tries_and_what_differs(experiment: Experiment) -> None:
    assert experiment.title[0].isupper() or experiment.title[0].isdigit()
    assert not experiment.title.endswith(".")
    assert experiment.source
    assert experiment.differs.endswith(".")


@pytest.mark.parametrize(
    "experiment", [each for each in ALL if each.needs], ids=lambda each: each.name
)
def test_an_experiment_whose_data_is_missing_says_which(
    experiment: Experiment, tmp_path: Path
) -> None:
    for inputs in (Inputs(), Inputs(tmp_path)):
        with pytest.raises(MissingData, match=experiment.needs):
            experiment.run(inputs)


@pytest.fixture(scope="module", params=QUICK)
def finding(request: pytest.FixtureRequest) -> Finding:
    return EXPERIMENTS[str(request.param)].run(Inputs(seeds=2))


def test_a_finding_compares_with_something_published_or_says_why_not(finding: Finding) -> None:
    assert finding.figures
    assert any(each.published for each in finding.figures) or "published" in " ".join(finding.notes)
    assert all(each.what and each.ours and "nan" not in each.ours for each in finding.figures)


def test_a_finding_can_be_drawn(finding: Finding) -> None:
    picture = ET.fromstring(drawn(finding.plot))
    texts = {"".join(each.itertext()) for each in picture.iter(f"{SVG}text")}
    assert {finding.plot.title, finding.plot.x, finding.plot.y, *finding.plot.lines} <= texts
    assert bool(finding.plot.lines) != bool(finding.plot.bars)
    assert all(len(bars) == len(finding.plot.categories) for bars in finding.plot.bars.values())


def test_details_are_as_wide_as_their_head(finding: Finding) -> None:
    if finding.details is not None:
        assert {len(row) for row in finding.details.rows} == {len(finding.details.head)}


def test_experiments_are_chosen_by_name_each_once() -> None:
    names = ["poster-512", "afs-burst", "poster-512"]
    assert [each.name for each in experiments_named(names)] == ["poster-512", "afs-burst"]
    assert experiments_named(["poster-512", "all"]) == list(ALL)


@pytest.mark.parametrize(
    ("name", "meant"), [("poster", "poster-512"), ("afs-brust", "afs-burst"), ("§", "all")]
)
def test_an_unknown_name_is_answered_with_near_ones(name: str, meant: str) -> None:
    with pytest.raises(UserError) as error:
        experiments_named([name])
    assert meant in error.value.try_


def test_the_busiest_days_are_those_with_most_jobs() -> None:
    days = [0, 1, 1, 2, 5, 5, 5, 6]
    trace = submitted([day * 86400.0 + 7.0 for day in days])
    assert afs_thrashing.busiest_days(trace, "", 2).size == 4  # days 5 and 6
    assert afs_thrashing.busiest_days(trace, "", 3).size == 4  # days 0 to 2, or 4 to 6
    assert afs_thrashing.busiest_days(trace, "", 7).size == 8


def test_the_watched_job_comes_before_all_others_at_time_zero() -> None:
    trace = afs_thrashing.with_probe(submitted([50.0, 60.0]), 1000.0)
    assert trace.submitted_s.tolist() == [0.0, 0.0, 10.0]
    assert trace.iterations[0] == 1000.0
    assert trace.speeds.names[trace.curve[0]] == "resnet50"


def test_a_job_alone_stands_still_for_its_start_and_no_longer() -> None:
    # The job of 10,000 s is over before the second comes; it starts at 28 GPUs, its best.
    alone = afs_thrashing.with_probe(submitted([1e6]), 1.0)
    step_s = float(alone.speeds.step_s[alone.curve[0], 28])
    iterations = math.floor(10_000 / step_s)
    alone = replace(alone, submitted_s=np.array([0.0, 1e6]), iterations=np.array([iterations, 1.0]))
    free = afs_thrashing.watched(alone, "none")
    assert free.still_s == 0.0
    assert free.finish_s == pytest.approx(iterations * step_s)
    serial = afs_thrashing.watched(alone, "serial:60")
    assert serial.finish_s == pytest.approx(free.finish_s + 60.0)
    concurrent = afs_thrashing.watched(alone, "concurrent:60,1")
    assert concurrent.finish_s == pytest.approx(free.finish_s + 60.0)
    assert concurrent.still_s == 0.0  # it held nothing while it was prepared


def submitted(times_s: list[float]) -> Trace:
    """Give a trace of jobs that come at these times."""
    return replace(poisson(jobs=len(times_s), gpus=64), submitted_s=np.array(times_s))


def test_waits_are_told_apart_by_cause() -> None:
    # Two jobs for the only server, an hour each: the second waits for neither share nor locality.
    jobs = trace_of(
        "two",
        speeds_from([[1.0] * 8]),
        submitted_s=np.zeros(2),
        curve=np.zeros(2, np.int64),
        iterations=np.full(2, 3600.0),
        gpus_requested=np.full(2, 8),
    )
    seen = philly.watch(jobs, 8, placement_from("philly"), "none")
    assert philly.LocalityResult.of(seen, 5, 8) == pytest.approx((0.0, 0.0, 30.0, 1.0, 1.5))


@pytest.mark.parametrize(("placement", "empty"), [("philly", 0.0), ("consolidate", 0.5)])
def test_servers_without_a_job_are_counted(placement: str, empty: float) -> None:
    # Two jobs of one GPU, an hour each, on two servers.
    jobs = trace_of(
        "two",
        speeds_from([[1.0] * 8]),
        submitted_s=np.zeros(2),
        curve=np.zeros(2, np.int64),
        iterations=np.full(2, 3600.0),
        gpus_requested=np.ones(2, np.int64),
    )
    history = philly.watch(jobs, 16, placement_from(placement), "none").seen.history
    assert (3600.0, 2 / 16, empty) in [pytest.approx(each) for each in history]


def test_queues_are_told_from_small_to_large() -> None:
    rows = [
        {"vc": "a", "jobs": 10, "policy": "srtf", "avg_jct_s": 3.0},
        {"vc": "b", "jobs": 9, "policy": "srtf", "avg_jct_s": 2.0},
        {"vc": "b", "jobs": 9, "policy": "fifo", "avg_jct_s": 4.0},
    ]
    by_queue = afs.by_queue(rows, "avg_jct_s")
    assert list(by_queue.items()) == [("b", {"srtf": 2.0, "fifo": 4.0}), ("a", {"srtf": 3.0})]


TICKS = {
    "from zero": (3.0, 11.0, (0, 2, 4, 6, 8, 10, 12)),
    "a whole one": (0.0, 1.0, (0, 0.2, 0.4, 0.6, 0.8, 1.0)),
    "below zero": (-0.3, 0.5, (-0.4, -0.2, 0.0, 0.2, 0.4, 0.6)),
    "nothing": (0.0, 0.0, (0, 1)),
    "large": (0.0, 120_000.0, (0, 20_000, 40_000, 60_000, 80_000, 100_000, 120_000)),
    "only negative": (-5.0, -1.0, (-5, -4, -3, -2, -1, 0)),
}


@pytest.mark.parametrize(("low", "high", "want"), TICKS.values(), ids=TICKS.keys())
def test_an_axis_has_round_values_that_enclose_the_data(
    low: float, high: float, want: tuple[float, ...]
) -> None:
    assert ticks(low, high) == want


@pytest.mark.parametrize(
    ("value", "want"),
    [(0.0, "0"), (2.5, "2.5"), (2.666, "2.67"), (13.04, "13"), (1234.5, "1,234"), (1e9, "1e+09"),
     (0.00012, "0.00012"), (-0.5, "-0.5")],
)  # fmt: skip
def test_a_number_is_written_short(value: float, want: str) -> None:
    assert written(value) == want


def bars(**series: list[float]) -> Plot:
    return Plot("t", "x", "y", bars=series, categories=["one", "two"])


def rectangles(plot: Plot) -> list[tuple[float, float]]:
    """Give (left, width) of every bar."""
    found = ET.fromstring(drawn(plot)).iter(f"{SVG}rect")
    return [
        (float(each.get("x", "")), float(each.get("width", "")))
        for each in found
        if each.get("fill") in COLOURS and each.get("width") != "11"
    ]


def test_a_bar_is_as_long_as_its_value() -> None:
    (one_at, one), (two_at, two) = rectangles(bars(a=[1.0, 3.0]))
    assert two == pytest.approx(3 * one, abs=0.3)
    assert one_at == two_at


def test_a_bar_below_zero_goes_the_other_way() -> None:
    (below_at, below), (above_at, above) = rectangles(bars(a=[-2.0, 2.0]))
    assert above == pytest.approx(below)
    assert below_at + below == pytest.approx(above_at, abs=0.2)


def test_what_is_no_number_is_left_out() -> None:
    assert len(rectangles(bars(a=[math.nan, 2.0], b=[1.0, math.inf]))) == 2
    line = Plot("t", "x", "y", {"l": [(0.0, 1.0), (1.0, math.nan), (2.0, 3.0)]})
    assert drawn(line).count("<circle") == 2
    assert "nan" not in drawn(line)


def strokes(plot: Plot) -> list[str]:
    """The strokes of the intervals."""
    found = ET.fromstring(drawn(plot)).iter(f"{SVG}path")
    return [path.attrib["d"] for path in found if path.get("fill") == "none"]


def test_a_mean_over_seeds_shows_its_interval() -> None:
    plain = bars(a=[10.0, 20.0])
    assert strokes(plain) == []
    assert len(strokes(replace(plain, errors={"a": [1.0, math.nan]}))) == 1  # one seed: no interval
    line = Plot("t", "x", "y", {"a": [(0.0, 1.0), (1.0, 2.0)]}, errors={"a": [0.5, 0.5]})
    assert len(strokes(line)) == 2


def test_an_axis_has_room_for_intervals() -> None:
    wide = replace(bars(a=[10.0, 0.0]), errors={"a": [11.0, 0.0]})  # 0..21: a bar has one sign
    [(_, plain)], [(_, beside)] = rectangles(bars(a=[10.0, 0.0]))[:1], rectangles(wide)[:1]
    assert 0.35 * plain < beside < 0.6 * plain


def test_names_beside_lines_do_not_overlap() -> None:
    lines = {f"line {i}": [(0.0, 1.0), (1.0, 5.0 + i / 100)] for i in range(9)}
    picture = ET.fromstring(drawn(Plot("t", "x", "y", lines)))
    heights = sorted(
        float(each.get("y", "")) for each in picture.iter(f"{SVG}text") if each.text in lines
    )
    assert len(heights) == 9
    assert all(below - above >= 17.9 for above, below in pairwise(heights))
    dashed = [each for each in picture.iter(f"{SVG}polyline") if each.get("stroke-dasharray")]
    assert len(dashed) == 2  # nine lines, seven colours


def test_marks_lie_on_their_line() -> None:
    line = [(float(x), float(x)) for x in range(100)]
    plot = Plot("t", "x", "y", {"a": line}, marks={"a": [(50.0, 50.0, "1→4")]})
    picture = ET.fromstring(drawn(plot))
    assert "1→4" in {each.text for each in picture.iter(f"{SVG}text")}
    [mark] = picture.iter(f"{SVG}circle")  # so many points have none of their own
    [curve] = picture.iter(f"{SVG}polyline")
    assert f"{mark.get('cx')},{mark.get('cy')}" in curve.get("points", "").split()


def test_whatever_a_plot_says_stays_text(tmp_path: Path) -> None:
    hostile = '</text><script>"&'
    plot = Plot(hostile, hostile, hostile, bars={hostile: [1.0], "b": [2.0]}, categories=[hostile])
    write_plot(tmp_path / "plot.svg", plot)
    picture = ET.parse(tmp_path / "plot.svg")
    assert hostile in {each.text for each in picture.iter(f"{SVG}text")}
    assert not list(picture.iter(f"{SVG}script"))

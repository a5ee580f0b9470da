"""Nodes that come and go against a fixed number."""

from dataclasses import replace

import numpy as np
import pytest

from coddl.reproduce import nodes
from coddl.reproduce.nodes import DAY_S, FIXED, GPUS, QUEUE, SCALED, TRIED, window_of
from coddl.sim.node_scaling import NodeChange, NodesHeld
from coddl.sim.run import Run
from coddl.traces.files import read_trace
from coddl.traces.generators import poisson
from coddl.traces.trace import Trace
from tests.shared import PHILLY, needs_philly


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Jobs of three days, all of them in the first half of a day, most of them on the second."""
    some = poisson(jobs=90, gpus=64, load=0.5, seed=1)
    day, within = np.repeat([0.0, 1.0, 2.0, 3.0], [10, 60, 19, 1]), np.linspace(0.0, 0.5, 90)
    return replace(some, submitted_s=np.sort((day + within) * DAY_S))


@pytest.fixture(scope="module")
def runs(trace: Trace) -> dict[nodes.Tried, Run]:
    return nodes.runs_of(trace)


def test_a_window_counts_what_is_held_within_it(runs: dict[nodes.Tried, Run]) -> None:
    run = runs["afs-p", FIXED]
    changes = [NodeChange(0.0, 4, 4, ""), NodeChange(1800.0, 2, 2, ""), NodeChange(9e3, 8, 8, "")]
    window = window_of(replace(run, nodes=NodesHeld(GPUS, tuple(changes))), 0.0, 7200.0)
    assert window.hours == 2.0
    assert window.held.tolist() == [4.0] * 6 + [2.0] * 18
    assert window.held_gpu_h == pytest.approx(GPUS * (4 * 0.5 + 2 * 1.5))


def test_all_that_jobs_used_is_counted(runs: dict[nodes.Tried, Run]) -> None:
    run = runs["afs-p", SCALED]
    until_s = 300.0 * np.ceil(run.end_s / 300.0)
    window = window_of(run, 0.0, until_s)
    assert window.used_gpu_h == pytest.approx(run.attained_gpu_s.sum() / 3600.0, rel=1e-6)
    assert window.avg_jct_s == pytest.approx(run.metrics().avg_jct_s)


def test_the_day_is_the_one_that_varies_most(runs: dict[nodes.Tried, Run]) -> None:
    assert nodes.varied_day(runs["afs-p", FIXED]) == 1


def test_a_finding_has_a_row_for_each_run(runs: dict[nodes.Tried, Run]) -> None:
    windows = {each: window_of(run, DAY_S, 2.0 * DAY_S) for each, run in runs.items()}
    found = nodes.finding(1, 3, windows, windows)
    assert found.details is not None
    assert [row[:2] for row in found.details.rows] == [
        [policy, "32" if bounds == FIXED else "2..32"] for policy, bounds in TRIED
    ]
    assert {len(row) for row in found.details.rows} == {len(found.details.head)}
    assert all("nan" not in each.ours for each in found.figures)


@needs_philly
def test_a_day_of_philly_holds_less_and_takes_little_longer() -> None:
    whole = read_trace(PHILLY / "jobs.csv.gz").of_queue(QUEUE)
    on_day = np.floor(whole.submitted_s / DAY_S) == 64
    runs = nodes.runs_of(whole.rows(on_day))
    for policy in ("afs-p", "srtf"):
        fixed, scaled = (runs[policy, bounds].metrics() for bounds in (FIXED, SCALED))
        assert scaled.gpu_hours_held < 0.5 * fixed.gpu_hours_held
        assert scaled.avg_jct_s < 1.5 * fixed.avg_jct_s

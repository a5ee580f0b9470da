"""The experiment on estimated speeds: what it runs, and what it says of it, on a small trace."""

from dataclasses import replace

import numpy as np
import pytest

from coddl.core.speed.table import speeds_of
from coddl.reproduce.estimate_philly import (
    BYTES,
    ESTIMATED,
    FREE,
    LEARNED_JOBS,
    STALL,
    TRUE,
    VISITED,
    RunMeans,
    RunOf,
    compared,
    lost,
    model_errors,
    planned,
    resizes,
)
from coddl.reproduce.experiment import Finding
from coddl.traces.files import packaged_speeds
from coddl.traces.generators import poisson

AFS = packaged_speeds("vgg16", "googlenet", "resnet50", "deepspeech2", "chatbot")


@pytest.fixture(scope="module")
def finding() -> Finding:
    trace = poisson(AFS, jobs=40, gpus=64, load=1.0)
    queue = (np.arange(trace.size) >= 30).astype(np.int64)
    return compared(replace(trace, queue=queue, queues=("large", "small")), seeds=2)


def test_all_that_was_run_is_shown(finding: Finding) -> None:
    assert finding.details is not None
    assert [row[0] for row in finding.details.rows] == ["small (10)", "large (30)"]
    assert {len(row) for row in finding.details.rows} == {len(finding.details.head)}
    assert "-" not in {cell for row in finding.details.rows for cell in row}
    assert all("nan" not in each.ours for each in finding.figures)
    assert all(len(bars) == len(finding.plot.categories) for bars in finding.plot.bars.values())
    assert "published" in " ".join(finding.notes)
    assert all(name in " ".join(finding.notes) for name in AFS.names)


def test_speeds_that_change_are_run_on_small_clusters_alone() -> None:
    runs = planned({"small": 10, "large": LEARNED_JOBS + 1})
    assert len(set(runs)) == len(runs)
    of_large = {(run.known, run.cost) for run in runs if run.queue == "large"}
    assert of_large == {(TRUE, FREE), (BYTES, FREE), (ESTIMATED, FREE)}
    compared_to = {run._replace(known=TRUE) for run in runs}
    assert compared_to <= set(runs)  # each has a run with true speeds beside it


def test_what_is_lost_is_relative_to_the_same_cluster_and_cost() -> None:
    results = {
        RunOf("a", "afs-p", TRUE, FREE): RunMeans(100.0, 10.0),
        RunOf("a", "afs-p", VISITED, FREE): RunMeans(103.0, 30.0),
        RunOf("a", "afs-p", TRUE, STALL): RunMeans(200.0, 10.0),
        RunOf("a", "afs-p", VISITED, STALL): RunMeans(220.0, 20.0),
        RunOf("b", "afs-p", TRUE, FREE): RunMeans(50.0, 0.0),
        RunOf("b", "afs-p", VISITED, FREE): RunMeans(49.0, 4.0),
    }
    assert lost(results, "afs-p", VISITED) == pytest.approx({"a": 3.0, "b": -2.0})
    assert lost(results, "afs-p", VISITED, STALL) == pytest.approx({"a": 10.0})
    assert resizes(results, "afs-p", VISITED, FREE) == 3.0  # b has none to compare with


def test_errors_of_a_model_are_those_at_the_sizes_of_its_table() -> None:
    wrong = AFS.step_s.copy()
    wrong[0, [2, 4]] *= [1.2, 0.9]
    wrong[0, 3] *= 7.0  # between two measured sizes
    errors = model_errors(AFS, speeds_of(AFS.names, wrong, AFS.measured))
    assert errors["vgg16"] == pytest.approx((20.0 + 10.0 + 0.0) / 3)  # at 2, 4 and 8
    assert errors["googlenet"] == 0.0

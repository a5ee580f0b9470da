"""The evidence for our own policy: what it runs and says, on a small trace of two clusters."""

from dataclasses import replace

import numpy as np
import pytest

from coddl.reproduce import beyond_afs
from coddl.reproduce.beyond_afs import generated, known_lengths, unknown_lengths, with_places
from coddl.reproduce.experiment import Finding
from coddl.traces.files import packaged_speeds
from coddl.traces.generators import poisson
from coddl.traces.trace import Trace

SPEEDS = packaged_speeds("vgg16", "googlenet", "resnet50", "deepspeech2", "chatbot")


@pytest.fixture(scope="module")
def trace() -> Trace:
    jobs = poisson(SPEEDS, jobs=310, gpus=64, load=20.0)
    queue = (np.arange(jobs.size) >= 300).astype(np.int64)
    return replace(jobs, queue=queue, queues=("large", "small"))


def figure(finding: Finding, what: str) -> str:
    return next(each.ours for each in finding.figures if each.what.startswith(what))


def test_changes_are_told_for_every_cluster_and_size(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beyond_afs, "LOADS", (0.5, 1.0))
    finding = known_lengths(trace, seeds=2)
    assert finding.details is not None
    assert [row[0] for row in finding.details.rows] == ["small", "large"]
    assert {len(row) for row in finding.details.rows} == {len(finding.details.head)}
    small, large = ([float(cell) for cell in row[1:4]] for row in finding.details.rows)
    told = figure(finding, "average JCT against afs-l").replace(" %", "").split(" · ")
    means = [(a + b) / 2 for a, b in zip(small, large, strict=True)]
    assert [float(each) for each in told] == pytest.approx(means, abs=0.011)
    assert "±" in figure(finding, "average JCT, lengths off")
    assert [[load for load, _ in line] for line in finding.plot.lines.values()] == [[0.5, 1.0]] * 3
    assert any("0.5 % above afs-l" in note for note in finding.notes)


def test_unknown_lengths_are_compared_with_afs_p(trace: Trace) -> None:
    finding = unknown_lengths(trace, seeds=2)
    assert finding.details is not None
    assert len(finding.details.rows) == 6
    per_gpu = {row[0]: float(row[3]) for row in finding.details.rows}
    assert per_gpu["large at 32"] > 1.0 > per_gpu["small at 128"]
    assert float(figure(finding, "where jobs outnumber GPUs").removesuffix(" %")) != 0.0


def test_generated_jobs_are_compared_at_every_load_and_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(beyond_afs, "GENERATED", {8: 20, 16: 20})
    finding = generated(seeds=2)
    assert finding.details is not None
    assert len(finding.details.rows) == 2 * len(beyond_afs.GENERATED_LOADS)
    assert [*finding.plot.lines] == ["8 GPUs", "16 GPUs"]
    assert all("±" in cell for row in finding.details.rows for cell in row[2:4])


def test_places_are_compared_for_each_placement(trace: Trace) -> None:
    finding = with_places(trace, ["small"])
    assert finding.details is not None
    assert [row[0] for row in finding.details.rows] == ["small"]
    assert len(finding.figures) == len(beyond_afs.PLACEMENTS)

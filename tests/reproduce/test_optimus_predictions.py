"""What Optimus predicts, and what it is told of that while jobs train."""

from collections.abc import Callable

import numpy as np
import pytest

from coddl.core.parameter_server.costs import Point
from coddl.core.speed.convergence import LossCurve, Stop
from coddl.reproduce.experiment import Inputs
from coddl.reproduce.optimus_predictions import (
    NOISE,
    PROBED,
    STAGES,
    Training,
    even_probes,
    length_factors,
    off_by,
    over_truth,
    predicted_ends,
    predictions,
    probes,
    training,
    true_servers,
)
from coddl.reproduce.plot import drawn

# Its first loss is 1; 2.5 / ((e/4 - 1.75)(e/4 + 0.75)) <= 0.05 first holds at e = 31.
CURVE = LossCurve(0.25, 0.75, 0.0)


def exact(epochs: int = 31) -> Training:
    """Give a job whose losses are seen without noise."""
    return Training(CURVE, np.array([CURVE.loss(epoch) for epoch in range(1, epochs + 1)]))


def test_a_job_ends_where_its_true_loss_hardly_falls() -> None:
    assert Stop().end(CURVE) == 31
    assert Stop(epochs_max=20).end(CURVE) == 20
    drawn = training(np.random.default_rng(3))
    assert drawn.epochs == Stop().end(drawn.curve.over(drawn.curve.loss(1)))


def test_losses_are_off_by_noise() -> None:
    rng = np.random.default_rng(0)
    jobs = [training(rng) for _ in range(40)]
    off = np.concatenate(
        [job.losses / [job.curve.loss(k + 1) for k in range(job.epochs)] - 1.0 for job in jobs]
    )
    assert off.std() == pytest.approx(NOISE, rel=0.1)
    assert off.mean() == pytest.approx(0.0, abs=NOISE / 10)


# Epochs seen -> the end that is predicted: 20 more epochs before the third.
ENDS = {0: 20.0, 2: 22.0, 4: 31.0, 15: 31.0, 30: 31.0}


@pytest.mark.parametrize(("seen", "want"), ENDS.items())
def test_the_end_is_predicted_from_what_was_seen(seen: int, want: float) -> None:
    assert exact().predicted_end(seen) == want


def test_predictions_are_made_at_the_beginning_of_each_tenth() -> None:
    # Of 31 epochs 0 and 3 are over at the first two; three losses without noise are enough.
    (ends,) = predicted_ends([exact()])
    assert ends == pytest.approx([20 / 31, *[1.0] * (STAGES - 1)])


def test_a_right_end_leaves_the_length_as_it_is() -> None:
    job = exact(20)
    early, right, late = length_factors([job] * 3, np.array([[0.5], [1.0], [1.5]]) + np.zeros(10))
    assert right == pytest.approx(1.0)
    assert late == pytest.approx([(15 - i) / (10 - i) for i in range(10)])
    # Half of it was predicted; from there on it is in its last epoch, the 20th part.
    assert early[:5] == pytest.approx([(5 - i) / (10 - i) for i in range(5)])
    assert early[5:] == pytest.approx([0.05 / (1.0 - i / 10) for i in range(5, 10)])


@pytest.mark.parametrize("draw", [probes, even_probes])
def test_probes_are_of_different_pairs_and_off_by_noise(draw: Callable[..., list[Point]]) -> None:
    truth = true_servers()
    points = draw(truth, 2, 8, np.random.default_rng(1))
    assert len({(point.servers, point.workers) for point in points}) == 8
    assert all(1 <= tasks <= PROBED for point in points for tasks in point[:2])
    off = [point.step_s / truth.step_s[2, point.workers, point.servers] - 1.0 for point in points]
    assert 0.0 < np.abs(off).max() < 5 * NOISE
    even = all(point.servers == point.workers for point in points)
    assert even == (draw is even_probes)


def test_probes_without_noise_give_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coddl.reproduce.optimus_predictions.NOISE", 0.0)
    truth, rng = true_servers(), np.random.default_rng(1)
    for curve in range(len(truth.step_s)):
        assert off_by(truth, curve, probes(truth, curve, 8, rng)).max() < 1e-6
        # What even probes can't tell apart is split as in the truth.
        assert off_by(truth, curve, even_probes(truth, curve, 8, rng)).max() < 1e-6


def test_outcomes_are_told_relative_to_the_truth() -> None:
    found = {
        "the truth": np.array([[1.0, 8.0], [3.0, 8.0]]),
        "b": np.array([[2.0, 6.0], [3.0, 6.0]]),
    }
    assert over_truth(found) == {"the truth": (1.0, 1.0), "b": (1.25, 0.75)}


def test_the_experiment_tells_all_that_optimus_may_go_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coddl.reproduce.optimus_predictions.DRAWS", 2)
    finding = predictions(Inputs(seeds=1))
    ours = {figure.what: figure.ours for figure in finding.figures}
    jct = {what: float(number) for what, number in ours.items() if what.startswith("average JCT")}
    assert len(jct) == 7
    assert jct["average JCT, DRF, over that with the truth"] > 1.0
    medians = dict(finding.plot.lines["median"])
    assert medians[90.0] < medians[0.0]  # who has seen more losses knows better
    assert finding.details is not None
    assert {len(row) for row in finding.details.rows} == {len(finding.details.head)}
    assert "published" in " ".join(finding.notes)
    assert "<svg" in drawn(finding.plot)

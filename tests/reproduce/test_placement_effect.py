"""The effect of placement, and how well it is predicted."""

from itertools import product

import numpy as np
import pytest

from coddl.core.cluster import Link, Links
from coddl.core.speed.estimate import even_buckets, step_s, sync_s
from coddl.reproduce.experiment import Inputs
from coddl.reproduce.placement_effect import (
    Prediction,
    errors_after_runs,
    estimate,
    extremes,
    links_from,
    predicted_steps,
    spread_of,
)
from coddl.traces.models import model_named
from coddl.traces.pollux import Measured, MeasuredPlacement, StepTime
from tests.shared import T4_PLACEMENTS, needs_t4

TRUE = Links(island=Link(8.0, 5.0), rack=Link(0.5, 15.0))
PLACEMENTS = [MeasuredPlacement(digits) for digits in ((1,), (2,), (1, 1), (2, 2), (1, 3), (4, 4))]


def as_the_model_says(name: str, update_s: float = 0.01) -> Measured:
    """Steps of a cluster where nothing happens but what the estimate knows of."""
    buckets = even_buckets(model_named(name))
    out: dict[MeasuredPlacement, dict[float, StepTime]] = {
        placement: {} for placement in PLACEMENTS
    }
    for placement, batch in product(PLACEMENTS, (4.0, 8.0)):
        sync = sync_s(spread_of(placement), buckets.size_bytes, TRUE)
        step = float(step_s(np.array(0.05 * batch), buckets.ready, sync)) + update_s
        out[placement][batch] = StepTime(step, step - 0.05 * batch)
    return out


def test_the_links_are_found_from_two_gpus() -> None:
    links = links_from(as_the_model_says("bert"), "bert")
    assert links.island.gb_s == pytest.approx(8.0)
    assert links.rack.gb_s == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["bert", "vgg16", "resnet50"])
def test_a_cluster_as_the_model_says_is_predicted(name: str) -> None:
    known = predicted_steps(as_the_model_says(name), name, TRUE, "hierarchical")
    assert len(known) == 2 * (len(PLACEMENTS) - 1)
    assert max(guess.error for guess in known) < 1e-9


def test_runs_correct_what_comes_after_them() -> None:
    known = [
        Prediction("rack", 2.0, 1.0),
        Prediction("rack", 4.0, 2.0),
        Prediction("island", 1.0, 1.0),
    ]
    assert errors_after_runs(known).tolist() == [0.5, 0.0, 0.0]


def test_the_best_and_the_worst_place_are_named() -> None:
    """Eight GPUs have 6 samples each, the middle of 4 and 8; four have 12, in two passes of 6."""
    measured: Measured = {
        MeasuredPlacement((2, 2)): {4.0: StepTime(2.0, 1.0), 8.0: StepTime(2.0, 1.0)},
        MeasuredPlacement((1, 3)): {4.0: StepTime(1.5, 0.5), 8.0: StepTime(1.5, 0.5)},
        MeasuredPlacement((4, 4)): {4.0: StepTime(1.0, 0.0), 8.0: StepTime(1.0, 0.0)},
    }
    found = extremes(measured, 4)
    assert (found.best, found.worst) == ("1+3", "2+2")
    assert found.factor == pytest.approx(3.0 / 2.5)


@needs_t4
def test_steps_on_t4s_are_predicted_within_a_quarter() -> None:
    finding = estimate(Inputs(T4_PLACEMENTS.parent))
    flat, hierarchical, later = (float(each.ours.rstrip("%")) for each in finding.figures)
    assert max(flat, hierarchical) < 25.0
    assert later < hierarchical / 2

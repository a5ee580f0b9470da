"""When a training without a known end ends, from its losses."""

from collections.abc import Callable

import numpy as np
import pytest

from coddl.core.speed.convergence import LossCurve, Stop
from coddl.core.speed.training_length import (
    LOSSES_MAX,
    LOSSES_MIN,
    LossPoint,
    PredictedLength,
    predicted_length,
    thinned,
    with_loss,
)

EPOCH = 5  # steps; the loss takes longer to fall by half
CURVE = LossCurve(0.003, 0.2, 0.4)  # falls half of the way in 0.2/0.003 = 67 steps


def points(loss: Callable[[float], float], last: int, first: int = 1) -> list[LossPoint]:
    """Give losses as runs tell them: one whenever a tenth more steps are made."""
    steps = np.unique(np.round(first * 1.1 ** np.arange(200.0)).astype(int))
    return [LossPoint(int(step), loss(step)) for step in steps if step <= last]


def test_the_end_is_where_optimus_takes_a_training_to_have_converged() -> None:
    """With the epochs of a script: those of Optimus, between whole epochs."""
    by_epoch = LossCurve(CURVE.b0 * 100, CURVE.b1, CURVE.b2).over(CURVE.loss(1))
    epochs = Stop().end(by_epoch)
    found = predicted_length(points(CURVE.loss, 600), epoch_steps=100)
    assert found is not None
    assert found.epoch_steps == 100
    assert (epochs - 1) * 100 < found.end_step <= epochs * 100
    assert found.end_step == pytest.approx(100 * Stop().end_at(by_epoch), rel=1e-3)


EPOCHS = {
    "the script's": (CURVE, 80, 80.0),
    "as long as the loss takes to fall by half, if the script's is shorter": (
        CURVE,
        5,
        1 + 200 / 3,
    ),
    "or unknown": (LossCurve(CURVE.b0 / 10, CURVE.b1, CURVE.b2), None, 1 + 2000 / 3),
    "at least 100 steps, if it is unknown": (CURVE, None, 100.0),
}


@pytest.mark.parametrize(("curve", "told", "want"), EPOCHS.values(), ids=EPOCHS.keys())
def test_the_length_of_an_epoch(curve: LossCurve, told: int | None, want: float) -> None:
    found = predicted_length(points(curve.loss, 6000), told)
    assert found is not None
    assert found.epoch_steps == pytest.approx(want, rel=1e-2)
    assert 10 * found.epoch_steps < found.end_step < 20 * found.epoch_steps


@pytest.mark.parametrize("seen", [0.2, 0.4, 0.6, 0.8])
def test_the_end_is_known_within_its_error_long_before(seen: float) -> None:
    truth = predicted_length(points(CURVE.loss, 2000), EPOCH)
    assert truth is not None
    noise, off, errors = np.random.default_rng(7), [], []
    for _ in range(20):
        noisy = points(lambda k: CURVE.loss(k) * (1 + 0.02 * noise.standard_normal()), 2000)
        found = predicted_length([p for p in noisy if p.step <= seen * truth.end_step], EPOCH)
        assert found is not None
        off.append(abs(found.end_step - truth.end_step))
        errors.append(found.error_steps)
    assert np.median(off) < 0.15 * truth.end_step
    assert np.mean(np.array(off) <= 2 * np.array(errors)) > 0.8, "the error is an honest one"


def test_more_losses_make_a_prediction_more_certain() -> None:
    noise = np.random.default_rng(3)
    noisy = points(lambda k: CURVE.loss(k) * (1 + 0.02 * noise.standard_normal()), 1200)
    early, late = (predicted_length([p for p in noisy if p.step <= n], EPOCH) for n in (100, 1200))
    assert early is not None
    assert late is not None
    assert late.error_steps < early.error_steps / 2


NOTHING = {
    "too few": points(CURVE.loss, 600)[: LOSSES_MIN - 1],
    "rising": points(lambda k: 1.0 + k / 1000, 600),
    "flat": points(lambda _: 1.0, 600),
    "noise around a level": points(
        lambda k: 1.0 + 0.1 * np.random.default_rng(int(k)).standard_normal(), 600
    ),
    "not a number": [*points(CURVE.loss, 600), LossPoint(700, float("nan"))],
    "none": [],
}


@pytest.mark.parametrize("losses", NOTHING.values(), ids=NOTHING.keys())
def test_losses_that_do_not_fall_or_are_too_few_tell_nothing(losses: list[LossPoint]) -> None:
    assert predicted_length(losses) is None


def test_a_training_that_should_be_over_is_in_its_last_epoch() -> None:
    length = PredictedLength(1000.0, 150.0, 64.0)
    assert [length.left(step) for step in (0, 700, 990, 5000)] == [1000, 300, 64, 64]
    assert length.error(700) == 0.5
    assert length.error(0) == 0.15


def test_no_prediction_states_less_than_a_fifth_of_the_whole() -> None:
    found = predicted_length(points(CURVE.loss, 2000), EPOCH)
    assert found is not None
    assert found.error_steps == pytest.approx(0.2 * found.end_step)


def test_many_losses_are_thinned_where_they_are_closest() -> None:
    known: tuple[LossPoint, ...] = ()
    for step in range(1, 5001):
        known = with_loss(known, LossPoint(step, CURVE.loss(step)))
    steps = [point.step for point in known]
    assert len(known) == LOSSES_MAX
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1]) == (1, 5000)
    off = [abs(point.loss - CURVE.loss(point.step)) for point in known]
    assert max(off) < 0.02 * CURVE.loss(1), "the shape is kept"


def test_steps_that_are_made_again_have_their_new_losses() -> None:
    known = tuple(LossPoint(step, 1.0) for step in (10, 20, 30))
    assert with_loss(known, LossPoint(20, 0.5)) == (LossPoint(10, 1.0), LossPoint(20, 0.5))


def test_some_of_many_losses_are_shown_with_the_first_and_the_last() -> None:
    many = points(CURVE.loss, 600)
    some = thinned(many, 5)
    assert (len(some), some[0], some[-1]) == (5, many[0], many[-1])
    assert thinned(many[:3], 5) == tuple(many[:3])
    assert thinned([], 5) == ()

"""Estimates that learn from what was measured."""

from itertools import pairwise
from math import log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coddl.core.speed.adjustment import (
    ALONE_SD,
    COMPUTE_SD,
    EXCHANGE_SD,
    MEASURED_SD,
    MeasuredStep,
    PredictedStep,
    StepColumns,
    adjusted,
    carried,
    fitted_form,
    predicted_step,
)
from coddl.core.speed.inspection import LinkSpeed
from coddl.core.speed.profile import GradientBucket, SliceTime, TrainingProfile
from coddl.core.speed.replay import Arrangement, replayed


def step(
    workers: int, nodes: int = 1, step_s: float = 1.0, exchange_part: float = 0.5
) -> PredictedStep:
    """A predicted step."""
    return PredictedStep(workers, nodes, step_s, step_s * (1.0 - exchange_part), exchange_part)


def test_nothing_measured_leaves_the_prediction_and_says_how_sure_it_is() -> None:
    guess = adjusted([], step(4, exchange_part=1.0))
    assert guess.step_s == 1.0
    assert guess.known_by == "predicted"
    assert guess.relative_sd == pytest.approx(sqrt(EXCHANGE_SD**2 + ALONE_SD**2))
    sure = adjusted([], step(1, exchange_part=0.0))
    assert sure.relative_sd == pytest.approx(sqrt(COMPUTE_SD**2 + ALONE_SD**2))


def test_an_exact_measurement_wins_and_of_two_the_last() -> None:
    known = [MeasuredStep(step(4), 3.0), MeasuredStep(step(4), 2.0)]
    assert adjusted(known, step(4)) == (2.0, MEASURED_SD, "measured")


def test_one_measurement_is_carried_by_hand() -> None:
    """On two workers of a node, all of it exchange; asked for four of a node."""
    known = [MeasuredStep(step(2, exchange_part=1.0), 1.5)]
    alike = EXCHANGE_SD**2 * 2 ** (-1 / 4)
    whole = EXCHANGE_SD**2 + ALONE_SD**2 + MEASURED_SD**2
    guess = adjusted(known, step(4, exchange_part=1.0))
    assert guess.known_by == "carried"
    assert log(guess.step_s) == pytest.approx(log(1.5) * alike / whole)
    assert guess.relative_sd == pytest.approx(
        sqrt(EXCHANGE_SD**2 + ALONE_SD**2 - alike * alike / whole)
    )


def test_the_factor_goes_back_to_one_and_the_uncertainty_up_with_the_distance() -> None:
    known = [MeasuredStep(step(2), 1.5)]
    guesses = [adjusted(known, step(workers)) for workers in (3, 4, 8, 64, 10**6)]
    for near, far in pairwise(guesses):
        assert near.step_s > far.step_s > 1.0
        assert near.relative_sd < far.relative_sd


def test_another_locality_is_farther_away() -> None:
    known = [MeasuredStep(step(2, 1), 1.5)]
    same, other = adjusted(known, step(4, 1)), adjusted(known, step(4, 2))
    assert 1.0 < other.step_s < same.step_s
    assert other.relative_sd > same.relative_sd


def test_a_step_that_only_computes_tells_nothing_of_links() -> None:
    known = [MeasuredStep(step(2, exchange_part=0.0), 1.5)]
    guess = adjusted(known, step(4, exchange_part=1.0))
    assert guess.step_s == pytest.approx(1.0)
    assert guess.relative_sd == adjusted([], step(4, exchange_part=1.0)).relative_sd


@given(
    st.lists(
        st.tuples(st.integers(2, 64), st.integers(1, 2), st.floats(0.0, 1.0), st.floats(-1, 1)),
        max_size=6,
    )
)
def test_what_is_known_never_makes_less_sure(rows: list[tuple[int, int, float, float]]) -> None:
    def columns(chosen: list[tuple[int, int, float, float]]) -> StepColumns:
        return StepColumns(
            np.array([n for n, _, _, _ in chosen], np.int64),
            np.array([nodes for _, nodes, _, _ in chosen], np.int64),
            np.array([part for _, _, part, _ in chosen], np.float64),
        )

    asked = StepColumns(np.array([3, 16]), np.array([1, 4]), np.array([0.2, 0.9]))
    before = np.full(2, np.inf)
    for count in range(len(rows) + 1):
        known = rows[:count]
        ratios = carried(columns(known), np.array([log_ for *_, log_ in known]), asked)
        assert (ratios.sd <= before + 1e-9).all()
        assert (ratios.sd >= ALONE_SD - 1e-9).all()
        before = ratios.sd


def by_form(workers: int, nodes: int, overlap: float) -> tuple[PredictedStep, float]:
    """A replay that takes exchanges for free, and the truth: they take 0.5 s a worker."""
    compute_s = 4.0 / workers
    net_s = 1.0 + 0.5 * workers
    truth_s = (compute_s**overlap + net_s**overlap) ** (1 / overlap)
    return PredictedStep(workers, nodes, compute_s, compute_s, 0.0), truth_s


def test_the_form_is_found_again() -> None:
    known = [MeasuredStep(*by_form(n, 1, 1.0)) for n in (2, 3, 4, 6)]
    form = fitted_form(known)
    assert form.overlap == 1.0
    assert form.on_node == pytest.approx((1.0, 0.5))
    assert form.between is None


def test_the_form_takes_over_where_the_replay_disagrees() -> None:
    known = [MeasuredStep(*by_form(n, 1, 1.0)) for n in (2, 3, 4, 6)]
    predicted, truth_s = by_form(8, 1, 1.0)
    guess = adjusted(known, predicted)
    assert guess.known_by == "fitted"
    assert guess.step_s == pytest.approx(truth_s, rel=1e-6)
    fewer = adjusted(known[:3], predicted)
    assert fewer.known_by == "carried"
    assert abs(fewer.step_s - truth_s) > abs(guess.step_s - truth_s)


def test_the_form_says_nothing_of_a_locality_that_was_not_measured() -> None:
    known = [MeasuredStep(*by_form(n, 1, 1.0)) for n in (2, 3, 4, 6)]
    assert adjusted(known, by_form(4, 2, 1.0)[0]).known_by == "carried"


def test_a_common_factor_is_no_disagreement() -> None:
    known = [MeasuredStep(step(n), 1.4) for n in (2, 3, 4, 6)]
    guess = adjusted(known, step(8))
    assert guess.known_by == "carried"
    assert guess.step_s == pytest.approx(1.4, rel=0.1)


def test_a_replay_gives_what_adjustments_ask_for() -> None:
    profile = TrainingProfile(
        "cpu", 4, (SliceTime(4, 1.0, 1.0),), 0.0, 0.0, 0.0, (GradientBucket(10**9, 1.0),)
    )
    where = Arrangement((1, 1))
    timeline = replayed(profile, where, {"cluster": LinkSpeed(1.0, 0.0, 0.0, "gloo")})
    assert predicted_step(where, timeline) == pytest.approx((2, 2, 2.0, 1.0, 0.5))

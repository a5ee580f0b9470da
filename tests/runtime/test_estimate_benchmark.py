"""The benchmark of estimates runs and reports what it promises; its figures are not tested."""

import pytest

from benchmarks import estimate
from benchmarks.estimates import accuracy, network
from benchmarks.estimates.accuracy import Estimate, PlacedStep, Setting
from benchmarks.estimates.models import Pace
from coddl.core.errors import UserError
from coddl.core.speed.adjustment import PredictedStep


def placed(on: str, predicted_s: float, measured_s: float) -> PlacedStep:
    """A step, half of it exchange unless one worker makes it."""
    on_nodes = [int(each) for each in on.split("+")]
    part = 0.5 if on != accuracy.ALONE else 0.0
    compute_s = predicted_s * (1.0 - part)
    step = PredictedStep(sum(on_nodes), len(on_nodes), predicted_s, compute_s, part)
    return PlacedStep(on, step, measured_s)


def setting(*steps: PlacedStep) -> Setting:
    return Setting("m", "slow", (placed("1", 1.0, 1.0), *steps))


def test_errors_are_parts_of_what_was_measured() -> None:
    found = accuracy.summary([setting(placed("2", 0.6, 0.5), placed("1+1", 0.9, 1.0))])
    assert found["before"]["mean_error"] == pytest.approx(0.15)
    assert found["before"]["worst_error"] == pytest.approx(0.2)
    assert found["before"]["worst"]["on"] == "2"
    assert found["before"]["estimates"] == 2


def test_what_one_resize_has_shown_counts_for_the_others() -> None:
    slower = setting(placed("1+1", 0.5, 0.6), placed("1+1+1", 0.4, 0.48))
    ((on, (estimate_,)), _) = accuracy.afterwards(slower)
    assert (on, estimate_.on) == ("1+1", "1+1+1")
    assert 0.4 < estimate_.step_s <= 0.48


@pytest.mark.parametrize(
    ("one", "other", "want"),
    [
        (Estimate("2", 0.5, 0.5), Estimate("1+1", 0.6, 0.7), True),
        (Estimate("2", 0.7, 0.5), Estimate("1+1", 0.6, 0.7), False),
        (Estimate("2", 0.7, 0.50), Estimate("1+1", 0.6, 0.54), None),
    ],
    ids=["right", "wrong", "too close to tell"],
)
def test_pairs_that_differ_are_ranked(one: Estimate, other: Estimate, want: bool | None) -> None:
    assert accuracy.is_ranked_right(one, other) is want


def test_steps_of_short_batches_and_after_them_do_not_count() -> None:
    times = {step: float(step) for step in range(2 * estimate.UPDATES)}
    times[estimate.UPDATES - 1] += 0.5
    found = estimate.full_steps(times, after=1)
    assert set(found) == {1.0}
    assert len(found) == 2 * estimate.UPDATES - 2 - 3


def test_stages_wait_for_their_part_of_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr("benchmarks.estimates.models.time.sleep", sleep)
    monkeypatch.setattr("benchmarks.estimates.models.time.monotonic", lambda: now_s)
    pace = Pace((0.3, 0.06), (1.0, 3.0))
    pace.begin(10)
    pace.end_forward(0)
    assert now_s == pytest.approx(0.3 / 4)
    pace.end_forward(1)
    assert now_s == pytest.approx(0.3)
    pace.begin_backward(1)
    assert now_s == pytest.approx(0.3 + 0.6 * 3 / 4)
    pace.begin_backward(0)
    assert now_s == pytest.approx(0.9)


def test_names_that_are_not_known_are_refused() -> None:
    with pytest.raises(UserError, match="'vgg' is no model"):
        network.only(["cnn", "mlp"], ["vgg"], "model")


@pytest.mark.slow
def test_a_model_is_profiled_resized_and_compared_with_its_estimate() -> None:
    try:
        network.check()
    except UserError as missing:
        pytest.skip(missing.because)
    extent = estimate.Extent(["mlp"], ["fast"], [(1, 1)], steps=2)
    found = estimate.measure(extent, lambda _: None)
    (case,) = found["cases"]
    assert (case["model"], case["link"], case["on"]) == ("mlp", "fast", "1+1")
    assert min(case["predicted_s"], case["measured_s"]) > 0
    assert found["before"]["estimates"] == 1
    assert found["links"]["fast"]["cluster"]["backend"] == "gloo"
    assert found["relay"]["cpu_s_per_gb"] > 0
    assert "mlp" in estimate.table(found)
    assert not [*network.left_behind()], "nothing is left behind"

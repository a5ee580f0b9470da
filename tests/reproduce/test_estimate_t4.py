"""Steps on many GPUs, predicted from one: on made-up clusters, and on the measured one."""

from itertools import product

import numpy as np
import pytest

from coddl.core.speed.estimate import step_s
from coddl.reproduce.estimate_t4 import (
    ModelRows,
    adjusted_rows,
    calibrated_speeds,
    errors_of,
    estimate,
    replayed_rows,
    rows_of,
)
from coddl.reproduce.experiment import Inputs
from coddl.reproduce.pollux_form import (
    FormRows,
    calibrated_network,
    fitted_s,
    grad_fit,
    least_squares,
    predicted_s,
)
from coddl.traces.models import buckets_of, model_named
from coddl.traces.pollux import Measured, MeasuredPlacement, StepTime
from tests.shared import T4_PLACEMENTS, needs_t4

PLACES = [MeasuredPlacement(digits) for digits in ((1,), (2,), (1, 1), (2, 2), (1, 3), (4, 4))]
PER_GB = {(1, 2): 0.1, (2, 2): 1.0, (2, 4): 2.0, (2, 8): 3.0}
SAMPLE_S = {"bert": 0.1, "imagenet": 0.005, "cifar10": 0.0005}


def as_the_model_says(name: str, slower: float = 1.0) -> Measured:
    """Steps of a cluster where nothing happens but what the estimate knows of."""
    buckets = buckets_of(name)
    out: dict[MeasuredPlacement, dict[float, StepTime]] = {place: {} for place in PLACES}
    for place, batch in product(PLACES, (4.0, 8.0, 16.0)):
        compute_s = 0.01 + SAMPLE_S[name] * batch
        key = len(place.on_nodes), place.gpus
        sync = slower * PER_GB.get(key, 0.0) * 1e-9 * buckets.size_bytes
        whole_s = float(step_s(np.array(compute_s), buckets.ready, sync)) + 0.002
        out[place][batch] = StepTime(whole_s, whole_s - compute_s)
    return out


def models(slower: dict[str, float]) -> dict[str, ModelRows]:
    """Rows of three models, some of which the network treats worse than others."""
    return {
        name: rows_of(name, as_the_model_says(name, slower.get(name, 1.0))) for name in SAMPLE_S
    }


def test_gradients_of_late_stages_are_ready_early() -> None:
    """Two thirds of ResNet-50 are in its last stage, which takes a fifth of the pass."""
    buckets = buckets_of("imagenet")
    assert buckets.size_bytes.sum() == pytest.approx(model_named("imagenet").gradient_bytes)
    assert buckets.size_bytes[:2].tolist() == [2**20, 25 * 2**20]
    sent = np.cumsum(buckets.size_bytes) / buckets.size_bytes.sum()
    half = buckets.ready[np.searchsorted(sent, 0.5)]
    assert half < 1 / 3 + 2 / 3 * 0.2
    assert buckets.ready[-1] == 1.0
    assert (np.diff(buckets.ready) >= 0.0).all()


def test_embeddings_come_with_the_end_of_the_backward_pass() -> None:
    buckets = buckets_of("bert")
    last = buckets.ready == 1.0
    assert buckets.size_bytes[last].sum() == pytest.approx(23837184 * 4, rel=0.3)


def test_the_cluster_is_found_from_other_models_and_predicts_the_one() -> None:
    rows = models({})
    others = [rows["imagenet"], rows["cifar10"]]
    speeds = calibrated_speeds(others)
    assert speeds[2, 8] == pytest.approx(3.0, rel=0.1)
    replay = replayed_rows(rows["bert"], {key: PER_GB[key] for key in speeds})
    assert replay.step_s == pytest.approx(rows["bert"].step_s)


def test_the_rows_of_a_model_never_reach_its_own_calibration() -> None:
    """What is predicted of bert before any of its rows is the same, however bert has run."""
    one, other = models({}), models({"bert": 5.0})
    speeds = [calibrated_speeds([each["imagenet"], each["cifar10"]]) for each in (one, other)]
    assert speeds[0] == speeds[1]
    replay = [
        replayed_rows(each["bert"], speed) for each, speed in zip((one, other), speeds, strict=True)
    ]
    assert replay[0].step_s.tolist() == replay[1].step_s.tolist()


def test_two_rows_tell_that_the_network_is_slower_for_a_model() -> None:
    rows = models({"bert": 1.5})["bert"]
    replay = replayed_rows(rows, PER_GB)
    known = [int(np.argmax(rows.gpus == 4)), len(rows.gpus) - 1]
    ratios = adjusted_rows(rows, replay, known)
    before = np.abs(np.log(replay.step_s / rows.step_s))
    after = np.abs(np.log(replay.step_s / rows.step_s) + ratios.mean)
    waits = replay.exchange_part > 0.2
    assert waits.sum() > 3
    assert after[waits].mean() < 0.5 * before[waits].mean()


def formed(network: np.ndarray, scale: float) -> FormRows:
    """Rows that are as Pollux' form says."""
    gpus, nodes, batch = (
        np.array(each, np.float64)
        for each in zip(*product((2, 4, 8), (1, 2), (4, 8, 16)), strict=True)
    )
    alone = np.array([4.0, 8.0, 16.0])
    rows = FormRows(gpus, nodes, batch, np.ones_like(gpus), alone, 0.1 + 0.02 * alone, scale)
    return rows._replace(step_s=predicted_s(np.log([0.1, 0.02]), network, rows))


NETWORK = np.array([*np.log([0.02, 0.005, 0.3, 0.02]), -1.0])


def test_the_form_of_pollux_is_found_again() -> None:
    others = [formed(NETWORK, scale) for scale in (0.3, 1.0, 3.0)]
    network = calibrated_network(others)
    rows = formed(NETWORK, 2.0)
    assert predicted_s(grad_fit(rows), network, rows) == pytest.approx(rows.step_s, rel=0.01)


def test_two_rows_move_the_form_towards_what_they_say() -> None:
    slower = NETWORK + np.array([0.0, 0.0, 0.5, 0.5, 0.0])
    rows = formed(slower, 1.0)
    known = [int(np.argmax(rows.nodes == 2)), len(rows.nodes) - 1]
    before = np.abs(np.log(predicted_s(grad_fit(rows), NETWORK, rows) / rows.step_s))
    after = np.abs(np.log(fitted_s(NETWORK, rows, known) / rows.step_s))
    assert after.mean() < 0.5 * before.mean()


def test_least_squares_finds_the_bottom_of_a_valley() -> None:
    found = least_squares(
        lambda x: np.array([10 * (x[1] - x[0] ** 2), 1 - x[0]]), np.array([-1.2, 1.0]), 200
    )
    assert found == pytest.approx([1.0, 1.0], abs=1e-3)


def test_models_that_agree_are_predicted() -> None:
    found = errors_of("imagenet", models({}), draws=3)
    assert found.before["ours"].mean < 0.03
    assert found.after["ours"].mean < 0.03


@needs_t4
def test_steps_on_t4s_are_predicted_better_than_by_pollux_form() -> None:
    finding = estimate(Inputs(T4_PLACEMENTS.parent))
    figures = {
        each.what.split(": ")[1]: [float(part) for part in each.ours.split(" / ")]
        for each in finding.figures
    }
    for part in ("one GPU", "two rows more"):
        ours, form = figures[f"{part}, ours"], figures[f"{part}, Pollux' form"]
        assert all(mine < other for mine, other in zip(ours, form, strict=True))
    assert figures["one GPU, ours"][0] < 15.0
    assert figures["two rows more, ours"][0] < 10.0

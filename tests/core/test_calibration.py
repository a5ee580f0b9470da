"""Links fitted to step times: they come out again, and no training is fitted to itself."""

import numpy as np
import pytest

from coddl.core.errors import UserError
from coddl.core.speed.calibration import (
    BUCKETS,
    UNDIVIDED,
    Calibration,
    KnownTraining,
    LinkGrid,
    MeasuredScaling,
    all_errors,
    calibrated_without,
    table_sizes,
)
from coddl.core.speed.curves import curve_of, fewest_nodes, replayed_sizes, sizes_to
from coddl.core.speed.estimate import Model
from coddl.core.speed.replay import replayed

NODE = 4
SIZES = (2, 4, 8, 12, 16)
TRAININGS = {
    "small": KnownTraining(0.3, Model(26e6, 0.1)),
    "middle": KnownTraining(0.9, Model(100e6, 0.1)),
    "large": KnownTraining(2.8, Model(260e6, 0.1)),
    "skewed": KnownTraining(3.0, Model(500e6, 0.7)),
    "slow": KnownTraining(0.6, Model(80e6, 0.1), "recurrent"),
    "slower": KnownTraining(1.2, Model(50e6, 0.1), "recurrent"),
}


def scaling(training: KnownTraining, truth: Calibration) -> MeasuredScaling:
    profile = truth.profile(training)
    steps = {n: replayed(profile, fewest_nodes(n, NODE), truth.links).step_s for n in SIZES}
    return MeasuredScaling(training, steps)


def truth_at(row: int, bucket: float, undivided: float) -> Calibration:
    return Calibration(LinkGrid.all().links(row), bucket, {"": 0.0, "recurrent": undivided})


@pytest.mark.parametrize("bucket", range(len(BUCKETS)))
@pytest.mark.parametrize("row", [0, 1234, 5000])
def test_the_grid_replays_as_replays_do(bucket: int, row: int) -> None:
    truth = truth_at(row, BUCKETS[bucket], UNDIVIDED[3])
    chosen = {name: TRAININGS[name] for name in ("small", "skewed", "slow")}
    off = all_errors({name: scaling(each, truth) for name, each in chosen.items()}, NODE)
    for name, training in chosen.items():
        undivided = 3 if training.family else 0
        assert off[name][bucket, undivided, row] == pytest.approx(0.0, abs=1e-5)


def test_a_training_is_predicted_from_the_others_alone() -> None:
    truth = truth_at(2345, BUCKETS[1], UNDIVIDED[6])
    measured = {name: scaling(each, truth) for name, each in TRAININGS.items()}
    # What was measured of it is wrong, and does not matter.
    measured["slow"] = measured["slow"]._replace(step_s=dict.fromkeys(SIZES, 7.0))
    found = calibrated_without("slow", measured, all_errors(measured, NODE))
    steps = replayed_sizes(found.profile(TRAININGS["slow"]), found.links, NODE, 16)
    want = scaling(TRAININGS["slow"], truth).step_s
    assert {n: steps[n].step_s for n in SIZES} == pytest.approx(want, rel=0.02)
    assert found.undivided["recurrent"] == UNDIVIDED[6]


def test_a_family_of_one_counts_as_all_others_do() -> None:
    truth = truth_at(2345, BUCKETS[1], UNDIVIDED[0])
    measured = {name: scaling(each, truth) for name, each in TRAININGS.items() if name != "slower"}
    found = calibrated_without("slow", measured, all_errors(measured, NODE))
    assert found.undivided["recurrent"] == found.undivided[""] == 0.0


def test_one_training_alone_tells_nothing_of_the_links() -> None:
    measured = {"it": scaling(TRAININGS["small"], truth_at(7, BUCKETS[0], 0.0))}
    with pytest.raises(UserError, match="no other model") as error:
        calibrated_without("it", measured, all_errors(measured, NODE))
    assert "--links" in error.value.try_


def test_a_profile_takes_on_one_gpu_what_is_known() -> None:
    for training in TRAININGS.values():
        calibration = truth_at(77, BUCKETS[0], 0.4)
        profile = calibration.profile(training)
        alone = replayed(profile, fewest_nodes(1, NODE), calibration.links)
        assert alone.step_s == pytest.approx(training.alone_s)
        assert sum(each.bytes_ for each in profile.buckets) == pytest.approx(
            training.model.gradient_bytes, abs=len(profile.buckets)
        )


def test_tables_are_measured_at_halves_of_a_node_and_at_whole_ones() -> None:
    assert table_sizes(4, 13) == [1, 2, 4, 8, 12]
    assert table_sizes(8, 16) == [1, 2, 4, 8, 16]
    assert table_sizes(6, 12) == [1, 2, 4, 6, 12]
    assert table_sizes(4, 3) == [1, 2]
    assert table_sizes(1, 3) == [1, 2, 3]


def test_a_curve_is_linear_between_two_replays_and_flat_beyond_the_last() -> None:
    calibration = truth_at(1234, BUCKETS[0], 0.0)
    steps = replayed_sizes(calibration.profile(TRAININGS["large"]), calibration.links, NODE, 40)
    curve = curve_of(steps, 50)
    assert list(steps) == [*range(1, 16), 16, 18, 20, 22, 24, 26, 28, 30, 32, 36, 40]
    assert curve[0] == np.inf
    assert curve[33] == pytest.approx((3 * steps[32].step_s + steps[36].step_s) / 4)
    assert curve[50] == curve[40] == steps[40].step_s
    assert max(sizes_to(300)) == 300

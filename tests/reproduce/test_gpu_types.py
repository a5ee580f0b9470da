"""One batch on GPUs of several types, where a step has a fixed cost."""

from dataclasses import replace

import numpy as np
import pytest

from coddl.core.speed.places import plain
from coddl.core.speed.table import speeds_of
from coddl.reproduce.gpu_types import StepCost, step_cost_of, step_costs_of, with_fixed_costs


def test_a_line_is_found_again() -> None:
    batches = [8, 16, 64]
    assert step_cost_of(batches, 0.3 + 0.02 * np.array(batches)) == pytest.approx((0.3, 0.02))


def test_every_batch_of_a_model_counts_and_no_other_model() -> None:
    """The fast kind takes 1 + b seconds, the slow one 3 + 2b."""
    names = ("M (batch size 2)", "Mean (batch size 2)", "M (batch size 8)", "M")
    step_s = np.array([[np.inf, seconds] for seconds in (3.0, 50.0, 9.0, 50.0)])
    factors = np.array([[1.0, 7.0 / 3.0], [1.0, 1.0], [1.0, 19.0 / 9.0], [1.0, 1.0]])
    table = replace(
        speeds_of(names, step_s, np.zeros((4, 2), np.bool_)),
        known_places=plain(4, 2)._replace(kinds=factors),
        kinds=("fast", "slow"),
    )
    lines = step_costs_of("M", table)
    assert lines["fast"] == pytest.approx((1.0, 1.0))
    assert lines["slow"] == pytest.approx((3.0, 2.0))


FAST, SLOW = StepCost(1.0, 1.0), StepCost(11.0, 2.0)
# Devices, and seconds with 32 samples by speed, by the line, and in 16 virtual nodes of 2.
SPLITS = {
    "one device": ([FAST], [33.0, 33.0, 16 * 3.0]),
    "alike": ([FAST, FAST], [17.0, 17.0, 8 * 3.0]),
    # 33 s and 75 s for all: 22 and 10. 25 and 7 end together, but for less than a sample. A virtual
    # node takes 3 s and 15 s: 14 and 2 of them.
    "unlike": ([FAST, SLOW], [11.0 + 2 * 10, 26.0, 14 * 3.0]),
    # 33 s and 72 s for all: 22 and 10. A virtual node takes 3 s and 42 s: 15 and 1.
    "who is not worth its start gets none": ([FAST, StepCost(40.0, 1.0)], [50.0, 33.0, 15 * 3.0]),
}


@pytest.mark.parametrize(("devices", "want"), SPLITS.values(), ids=SPLITS.keys())
def test_a_step_ends_with_its_last_device(devices: list[StepCost], want: list[float]) -> None:
    assert with_fixed_costs(32, devices) == pytest.approx(want)

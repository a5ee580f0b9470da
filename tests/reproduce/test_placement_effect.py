"""The effect of placement."""

import pytest

from coddl.reproduce.placement_effect import extremes
from coddl.traces.pollux import Measured, MeasuredPlacement, StepTime


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

"""Which losses a run tells the server."""

import numpy as np

from coddl.agent.loss_spans import LossSpans


def test_a_run_tells_a_loss_when_it_is_a_tenth_further() -> None:
    spans = LossSpans()
    told = [point for step in range(1, 1001) if (point := spans.add(step, 1 / step, 1))]
    assert [point.step for point in told[:12]] == [*range(1, 12), 12]
    assert 40 < len(told) < 60
    gaps = np.diff([point.step for point in told[20:]]) / [point.step for point in told[20:-1]]
    assert gaps.min() > 0.05
    assert gaps.max() < 0.2
    assert spans.add(1000, 9.0, 1) is None  # a repeat


def test_a_told_loss_is_the_mean_of_all_since_the_last_one() -> None:
    spans = LossSpans()
    assert spans.add(100, 5.0, 1) == (100, 5.0)
    assert spans.add(104, 1.0, 3) is None
    assert spans.add(110, 2.0, 1) == (round((3 * 104 + 110) / 4), 1.25)


def test_a_run_that_goes_on_from_an_older_state_tells_at_once() -> None:
    spans = LossSpans()
    spans.add(100, 5.0, 1)
    spans.add(105, 5.0, 1)
    assert spans.add(50, 7.0, 2) == (50, 7.0)
    assert spans.add(52, 7.0, 2) is None

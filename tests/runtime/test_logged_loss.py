"""The mean of the losses that a script logs."""

import pytest

from coddl.runtime.worker.logged_loss import LoggedLoss

torch = pytest.importorskip("torch")


def test_the_mean_since_the_last_time_is_given() -> None:
    logged = LoggedLoss()
    assert logged.take() is None
    for step, loss in ((4, 1.0), (5, 2.0), (6, 6.0)):
        logged.add(loss, step)
    assert logged.take() == {"step": 5, "loss": 3.0, "count": 3}
    assert logged.take() is None
    logged.add(7, 8)
    assert logged.take() == {"step": 8, "loss": 7.0, "count": 1}


def test_tensors_and_numbers_are_added_up_without_a_graph() -> None:
    logged = LoggedLoss()
    loss = torch.tensor([2.0], dtype=torch.float16, requires_grad=True)
    logged.add(loss * 2, 1)
    logged.add(6.0, 3)
    assert logged.take() == {"step": 2, "loss": 5.0, "count": 2}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1.7e308])
def test_what_is_no_number_spoils_one_mean_and_no_other(bad: float) -> None:
    logged = LoggedLoss()
    logged.add(1.0, 1)
    logged.add(bad, 2)
    assert logged.take() is None
    logged.add(1.0, 3)
    assert logged.take() == {"step": 3, "loss": 1.0, "count": 1}

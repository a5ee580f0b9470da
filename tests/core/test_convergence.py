"""How long a job still has to train, from its losses."""

import numpy as np
import pytest

from coddl.core.speed.convergence import LossCurve, Stop, epochs_left, fit_losses, is_outlier

CURVES = {
    "a plain one": LossCurve(0.3, 0.2, 0.4),
    "one that goes to zero": LossCurve(0.1, 0.5, 0.0),
    "one that starts steep": LossCurve(2.0, 0.05, 1.5),
}


@pytest.mark.parametrize("truth", CURVES.values(), ids=CURVES.keys())
def test_losses_without_noise_give_the_curve_back(truth: LossCurve) -> None:
    epochs = np.arange(1.0, 15.0)
    found = fit_losses(epochs, np.array([truth.loss(epoch) for epoch in epochs]))
    assert found is not None
    want = (truth.b0, truth.b1, truth.b2)
    assert (found.b0, found.b1, found.b2) == pytest.approx(want, rel=1e-3, abs=1e-6)


def test_later_losses_count_more() -> None:
    """The first third was another curve: what comes later is met far better."""
    epochs = np.arange(1.0, 19.0)
    late, early = LossCurve(0.3, 0.2, 0.4), LossCurve(0.3, 0.05, 0.9)
    losses = np.array([(early if epoch <= 6 else late).loss(epoch) for epoch in epochs])
    found = fit_losses(epochs, losses)
    assert found is not None
    off = np.abs([found.loss(epoch) - loss for epoch, loss in zip(epochs, losses, strict=True)])
    assert off[12:].max() < off[:6].max() / 10


def losses_of(curve: LossCurve, epochs: int) -> tuple[np.ndarray, np.ndarray]:
    seen = np.arange(1.0, epochs + 1.0)
    return seen, np.array([curve.loss(epoch) for epoch in seen])


def scaled(seen: tuple[np.ndarray, np.ndarray], by: float) -> tuple[np.ndarray, np.ndarray]:
    return seen[0], seen[1] * by


def spoiled(
    seen: tuple[np.ndarray, np.ndarray], at: int, by: float
) -> tuple[np.ndarray, np.ndarray]:
    return seen[0], np.where(np.arange(len(seen[1])) == at, by, seen[1])


# Losses so far, and the epochs that are left.
LEFT = {
    # 3 / ((0.3(e-10) + 0.2)(0.3e + 0.2)) <= 0.05 x 2.4, the first loss, first holds at e = 22.
    "until it falls by no more than 0.05 of the largest in ten epochs": (
        losses_of(CURVES["a plain one"], 14), Stop(), 22 - 14,
    ),
    "losses of any size": (scaled(losses_of(CURVES["a plain one"], 14), 1e3), Stop(), 22 - 14),
    "outliers apart, whatever their size": (
        spoiled(losses_of(CURVES["a plain one"], 14), at=8, by=9.0), Stop(), 22 - 14,
    ),
    "nothing, if it is there": (losses_of(CURVES["a plain one"], 40), Stop(), 0),
    "never more than the most": (
        losses_of(CURVES["a plain one"], 14), Stop(fall=1e-6, epochs_max=60), 60 - 14,
    ),
    "two losses tell nothing": ((np.array([1.0, 2.0]), np.array([9.0, 5.0])), Stop(), 20),
    "nor does a loss that rises": ((np.arange(5.0), np.arange(5.0) + 1.0), Stop(), 20),
    "nor do losses that are no numbers": (
        (np.arange(1.0, 5.0), np.array([9.0, 5.0, np.nan, np.inf])), Stop(), 20,
    ),
    # 1/k has its pole at 0: 1/(e-10) - 1/e <= 0.04 first holds at e = 22.
    "a curve may begin at infinity": (
        (np.arange(1.0, 7.0), 1.0 / np.arange(1.0, 7.0)), Stop(fall=0.04), 22 - 6,
    ),
    "nor does one epoch, many times": ((np.ones(4), np.array([4.0, 3.0, 2.0, 1.0])), Stop(), 20),
    "nor do losses below zero": ((np.arange(4.0), -np.arange(4.0)), Stop(), 20),
    # The same curve with a loss of 9 at 0, where it has its pole.
    "not even there does it take losses to fit": (
        (np.arange(7.0), np.append(9.0, 1.0 / np.arange(1.0, 7.0))), Stop(fall=0.04 / 9), 22 - 6,
    ),
    "nor does none": ((np.zeros(0), np.zeros(0)), Stop(), 20),
    "but the most holds even then": (
        (np.array([89.0, 90.0]), np.array([9.0, 5.0])), Stop(), 10,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("seen", "stop", "want"), LEFT.values(), ids=LEFT.keys())
def test_epochs_left(seen: tuple[np.ndarray, np.ndarray], stop: Stop, want: float) -> None:
    assert epochs_left(*seen, stop) == want


# Losses, and which of them stand out.
OUTLIERS = {
    "none that only fall, however steeply": ([99.0, 9.0, 5.0, 4.9, 4.8, 1.0, 0.9], []),
    # Of 4, 3, 9, 2.5, 2 the median is 3 and the median distance 1; of 5, 4, 7.9, 3, 2 it is 4 and 1
    "more than five times as far off as the others": ([4.0, 3.0, 9.0, 2.5, 2.0], [2]),
    "not less": ([5.0, 4.0, 7.9, 3.0, 2.0], []),
    "not at the ends": ([9.0, 3.0, 2.9, 2.8, 9.0], []),
    "not of four": ([4.0, 9.0, 3.0, 2.0], []),
}  # fmt: skip


@pytest.mark.parametrize(("losses", "want"), OUTLIERS.values(), ids=OUTLIERS.keys())
def test_losses_that_stand_out(losses: list[float], want: list[int]) -> None:
    assert np.flatnonzero(is_outlier(np.array(losses))).tolist() == want


def test_a_curve_is_infinite_at_its_pole() -> None:
    assert LossCurve(1.0, 0.0, 0.5).loss(0) == np.inf

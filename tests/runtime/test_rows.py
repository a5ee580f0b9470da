"""What workers say when they find out that they do different things."""

import pytest

torch = pytest.importorskip("torch")

from coddl.runtime.errors import TrainingError  # noqa: E402
from coddl.runtime.worker.guard import rates_of  # noqa: E402
from coddl.runtime.worker.rows import PeerRow, check  # noqa: E402


def row(*rates: float) -> PeerRow:
    groups = [{"params": [torch.zeros(1)], "lr": rate} for rate in rates]
    return PeerRow("gradients", 7, 7, 1, rates=rates_of([torch.optim.SGD(groups)]))


def test_workers_with_the_same_rates_are_fine() -> None:
    check([row(0.1, 0.01), row(0.1, 0.01)], [0, 1])


@pytest.mark.parametrize("others", [(0.05, 0.01), (0.1, 0.02)], ids=["first group", "second group"])
def test_different_learning_rates_are_named(others: tuple[float, float]) -> None:
    with pytest.raises(TrainingError, match="different learning rates") as caught:
        check([row(0.1, 0.01), row(*others)], [0, 3])
    assert caught.value.because == (
        "worker 0 was in backward() in epoch 1, step 7, exchange 7, with learning rate 0.1 in its "
        "first group; worker 3 was in backward() in epoch 1, step 7, exchange 7, with learning "
        f"rate {others[0]} in its first group"
    )


def test_a_rate_survives_the_way_to_the_others() -> None:
    (read,) = PeerRow.unpacked(bytes(row(3e-4).packed()), frozenset())
    assert read == row(3e-4)

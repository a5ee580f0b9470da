"""A worker's measuring of its memory, with a device that is told what to say."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.optim import SGD  # noqa: E402
from torch.utils.data import IterableDataset, TensorDataset  # noqa: E402

from coddl.runtime.worker.footprint import Footprint, memory_of, model_of  # noqa: E402


class Device:
    """A device whose peak a test sets."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self.usable_bytes = 1000
        self.restarts = 0

    def restart(self) -> None:
        self.peak_bytes = 0
        self.restarts += 1

    def use(self, bytes_: int) -> None:
        self.peak_bytes = max(self.peak_bytes, bytes_)


class Training:
    """Two optimizers and their footprint; an update needs so many bytes, and so do its passes."""

    def __init__(self) -> None:
        self.device = Device()
        self.model = nn.Linear(3, 1)
        self.update_bytes = 0
        training = self

        class Counted(SGD):
            def step(self, closure: Any = None) -> Any:
                training.device.use(training.update_bytes)
                return super().step(closure)

        # torch gives a class hooks when it is used: from now on SGD's own `step` has them, too.
        SGD(self.model.parameters(), lr=0.0)
        self.optimizers = [Counted([p], lr=0.0) for p in self.model.parameters()]
        self.footprint = Footprint(self.device, self.optimizers)

    def update(self, *optimizers: int, bytes_: int = 0, closure: Any = None) -> None:
        self.device.use(bytes_)
        for number in optimizers:
            self.optimizers[number].step(closure)


def test_a_peak_is_known_once_every_optimizer_has_made_two_updates() -> None:
    training = Training()
    training.footprint.begin(32, is_alone=False)
    training.update_bytes = 950
    training.update(0, bytes_=900)  # what was before is left out
    training.update_bytes = 800
    for optimizers in ((1, 0), (0,), (0,)):
        training.update(*optimizers, bytes_=700)
        assert training.footprint.take() is None
    training.update(1)
    assert training.footprint.take() == {
        "samples": 32,
        "peak_bytes": 700,
        "update_bytes": 800,
        "exchange_bytes": 16,  # three weights and a bias
        "device_bytes": 1000,
    }
    restarts = training.device.restarts
    for _ in range(3):
        training.update(0, 1)
    assert training.footprint.take() is None, "once"
    assert training.device.restarts == restarts, "the count is the script's own again"
    for optimizer in training.optimizers:
        assert not optimizer._optimizer_step_pre_hooks, "nothing is left to pay for"
        assert not optimizer._optimizer_step_post_hooks


def peak(training: Training, samples: int, bytes_: int) -> int | None:
    """Give what is measured in three passes."""
    for _ in range(3):
        training.update(0, 1, bytes_=bytes_)
    found = training.footprint.take()
    assert found is None or found["samples"] == samples
    return None if found is None else found["peak_bytes"]


def test_each_size_of_slices_is_measured_from_when_it_begins() -> None:
    training = Training()
    training.footprint.begin(64, is_alone=True)
    training.update(0, 1, bytes_=900)
    training.footprint.begin(32, is_alone=False)
    assert peak(training, 32, 500) == 500
    training.footprint.begin(64, is_alone=True)
    assert peak(training, 64, 800) == 800


def test_what_runs_between_epochs_is_left_out() -> None:
    training = Training()
    training.footprint.begin(64, is_alone=True)
    for _ in range(2):
        training.update(0, 1, bytes_=500)
    training.footprint.rest()
    training.device.peak_bytes = 990  # an evaluation
    assert training.footprint.take() is None
    assert peak(training, 64, 500) == 500
    training.footprint.rest()
    assert peak(training, 64, 500) is None


def test_what_was_measured_is_kept_over_an_evaluation() -> None:
    training = Training()
    training.footprint.begin(64, is_alone=True)
    for _ in range(3):
        training.update(0, 1, bytes_=500)
    training.footprint.rest()
    training.update(0, 1, bytes_=990)
    found = training.footprint.take()
    assert found is not None
    assert found["peak_bytes"] == 500


def test_an_update_that_needs_less_than_its_passes_is_known_too() -> None:
    training = Training()
    training.update_bytes = 300
    training.footprint.begin(64, is_alone=True)
    training.update(0, 1)
    training.update(bytes_=400)  # gradients of a first pass are accumulated: no update follows
    for _ in range(2):
        training.update(0, 1, bytes_=380)
    found = training.footprint.take()
    assert found is not None
    assert (found["peak_bytes"], found["update_bytes"]) == (400, 300)


def test_the_passes_of_a_closure_are_passes() -> None:
    training = Training()
    training.footprint.begin(64, is_alone=True)
    training.update_bytes = 300
    for _ in range(3):
        training.update(0, 1, closure=lambda: training.device.use(600))
    found = training.footprint.take()
    assert found is not None
    assert (found["peak_bytes"], found["update_bytes"]) == (600, 0), "an update's is not known"


def test_the_count_is_left_alone_from_the_last_measured_update_on() -> None:
    training = Training()
    training.update_bytes = 300
    training.footprint.begin(64, is_alone=True)
    for _ in range(3):
        training.update(0, 1, bytes_=500)
    assert training.device.peak_bytes == 300
    training.update(0, 1, bytes_=500)
    assert training.device.peak_bytes == 500, "nothing was begun anew before it was taken"


def test_alone_a_worker_needs_nothing_for_an_exchange() -> None:
    training = Training()
    training.footprint.begin(64, is_alone=True)
    for _ in range(3):
        training.update(0, 1)
    found = training.footprint.take()
    assert found is not None
    assert found["exchange_bytes"] == 0


def test_on_a_cpu_nothing_is_measured() -> None:
    assert memory_of(torch.device("cpu")) is None
    training = Training()
    footprint = Footprint(None, training.optimizers)
    footprint.begin(64, is_alone=True)
    assert not training.optimizers[0]._optimizer_step_post_hooks
    assert footprint.take() is None


class Words(IterableDataset[str]):
    def __iter__(self) -> Any:
        return iter(["word"])


def key(width: int = 8, samples: Any = None, *, dtype: Any = None, in_parts: bool = False) -> int:
    data = TensorDataset(torch.zeros(4, 3, 32, 32)) if samples is None else samples
    model = nn.Linear(3, width, dtype=dtype)
    return model_of(list(model.parameters()), [data], in_parts=in_parts)


def test_models_are_alike_if_parameters_and_samples_have_the_same_shapes() -> None:
    other_data = TensorDataset(torch.ones(9, 3, 32, 32))
    assert key() == key(samples=other_data)
    larger = TensorDataset(torch.zeros(4, 3, 64, 64))
    others = [key(9), key(samples=larger), key(dtype=torch.float64), key(in_parts=True)]
    assert len({key(), *others}) == 5


def test_datasets_that_cannot_be_read_by_number_do_not_stand_in_the_way() -> None:
    for samples in (Words(), {"a": 1}, TensorDataset(torch.zeros(0, 3)), [(1, "text"), (2, "t")]):
        assert key(samples=samples) == key(samples=samples)


def test_reading_a_sample_draws_no_random_numbers() -> None:
    class Random(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            return torch.rand(3)

    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    model_of([], [Random(torch.zeros(4))], in_parts=False)
    assert torch.equal(torch.rand(1), expected)

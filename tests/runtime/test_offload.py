"""Tensors that leave their device and come back are the tensors they were."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from coddl.runtime.worker import offload as offload_module  # noqa: E402
from coddl.runtime.worker import pinned  # noqa: E402
from coddl.runtime.worker.image import Stash  # noqa: E402
from coddl.runtime.worker.offload import RESIDENT_BYTES_MAX, Offload  # noqa: E402

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=on_gpu)]


@pytest.fixture
def stash(tmp_path: Path) -> Iterator[Stash]:
    stash = Stash(tmp_path)
    yield stash
    stash.close()


class Training:
    """A model with tied weights and buffers, in the middle of its training."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(1)
        self.device = torch.device(device)
        first, last = nn.Linear(32, 32), nn.Linear(32, 32)
        last.weight = first.weight
        layers = [first, nn.BatchNorm1d(32), nn.ReLU(), last]
        self.model = nn.Sequential(*layers).to(self.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-2)
        self.x = torch.randn(16, 32, device=self.device)
        for _ in range(3):
            self.step()

    def step(self) -> float:
        loss = self.model(self.x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        return float(loss.item())

    def tensors(self) -> list[Tensor]:
        parameters: list[Tensor] = list(self.model.parameters())
        gradients = [p.grad for p in parameters if p.grad is not None]
        held = [t for s in self.optimizer.state.values() for t in s.values() if t.dim()]
        return [*parameters, *gradients, *self.model.buffers(), *held]

    def tree(self) -> dict[str, Any]:
        parameters = [p.detach() for p in self.model.parameters()]
        return {"parameters": parameters, "optimizer": self.optimizer.state_dict()}


@pytest.mark.parametrize("device", DEVICES)
def test_a_training_goes_on_as_if_nothing_had_been(stash: Stash, device: str) -> None:
    undisturbed, training = Training(device), Training(device)
    offload = Offload(training.device)
    for _ in range(2):
        _, copied = stash.write_copied({}, training.tree())
        offloaded = offload.move_out(copied, training.tensors())
        assert offloaded.bytes_ >= sum(p.nbytes for p in training.model.parameters())
        assert not any(t.untyped_storage().nbytes() for t in training.tensors())
        assert offloaded.resident_bytes <= RESIDENT_BYTES_MAX
        offload.move_back()
        for _ in range(2):
            assert training.step() == undisturbed.step()
    for mine, theirs in zip(training.tensors(), undisturbed.tensors(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("device", DEVICES)
def test_views_and_ties_hold(stash: Stash, device: str) -> None:
    training = Training(device)
    layers: list[Any] = list(training.model)
    weight = layers[0].weight
    view, values = weight.detach()[3:5], weight.detach().clone().cpu()
    offload = Offload(training.device)
    _, copied = stash.write_copied({}, training.tree())
    offload.move_out(copied, training.tensors())
    offload.move_back()
    assert layers[3].weight is weight
    assert view.data_ptr() == weight.detach()[3:5].data_ptr()
    assert torch.equal(view.cpu(), values[3:5])
    assert training.optimizer.param_groups[0]["params"][0] is weight


ODD = {
    "a part of a larger storage": lambda device: torch.randn(7, 100, device=device)[2:4, ::3],
    "transposed": lambda device: torch.randn(5, 9, device=device).t(),
    "channels last": lambda device: torch.randn(2, 3, 4, 4, device=device).to(
        memory_format=torch.channels_last
    ),
    "conjugated": lambda device: torch.randn(5, dtype=torch.cfloat, device=device).conj(),
    "empty": lambda device: torch.empty(0, 3, device=device),
    "a number": lambda device: torch.tensor(3.5, device=device),
    "bytes": lambda device: torch.arange(13, dtype=torch.uint8, device=device),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ODD)
def test_tensors_of_all_kinds_come_back(stash: Stash, kind: str, device: str) -> None:
    tensor = ODD[kind](device)
    values = tensor.detach().clone().cpu()
    for written in (True, False):
        offload = Offload(torch.device(device))
        copied = stash.write_copied({}, [tensor])[1] if written else []
        offload.move_out(copied, [tensor])
        offload.move_back()
        assert torch.equal(tensor.cpu(), values)


class Wrapper(torch.Tensor):  # type: ignore[misc,name-defined]
    """A tensor without memory of its own, as those of quantization libraries are."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Wrapper":
        about = {"dtype": inner.dtype, "device": inner.device}
        made: Any = torch.Tensor._make_wrapper_subclass(cls, inner.shape, **about)
        made.inner = inner
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, *_: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_that_wrap_others_are_left_alone(device: str) -> None:
    wrapper = Wrapper(torch.arange(5.0, device=device))
    offload = Offload(torch.device(device))
    offload.move_out([], [wrapper, wrapper.inner])
    assert wrapper.inner.untyped_storage().nbytes() == 0
    offload.move_back()
    assert wrapper.inner.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_memory_that_is_not_ours_to_free_stays() -> None:
    data = bytearray(range(16))
    borrowed = torch.frombuffer(data, dtype=torch.uint8)
    offload = Offload(torch.device("cpu"))
    assert offload.move_out([], [borrowed]).bytes_ == 0
    assert borrowed.tolist() == list(range(16))


@pytest.mark.parametrize("device", DEVICES)
def test_copies_are_cut_where_pinned_slices_meet(
    stash: Stash, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(pinned, "SLICE_BYTES", 1 << 12)
    monkeypatch.setattr("coddl.runtime.worker.image.SLICE_BYTES", 1 << 12)
    tensors = [torch.randn(3001, device=device) for _ in range(3)]
    values = [tensor.clone().cpu() for tensor in tensors]
    offload = Offload(torch.device(device))
    offload.move_out(stash.write_copied({}, tensors[:1])[1], tensors)
    offload.move_back()
    for tensor, value in zip(tensors, values, strict=True):
        assert torch.equal(tensor.cpu(), value)


@on_gpu
def test_tensors_that_nobody_named_leave_a_gpu_too() -> None:
    unnamed = {"mask": torch.ones(64 << 20, device="cuda")}
    offload = Offload(torch.device("cuda"))
    offloaded = offload.move_out([], [])
    assert unnamed["mask"].untyped_storage().nbytes() == 0
    assert offloaded.resident_bytes <= RESIDENT_BYTES_MAX
    offload.move_back()
    assert unnamed["mask"].sum().item() == 64 << 20


@on_gpu
def test_what_a_cuda_graph_keeps_is_told() -> None:
    x = torch.ones(32 << 20, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x * 2 + 1) * 3
    del y
    offload = Offload(torch.device("cuda"))
    assert offload.move_out([], []).resident_bytes > RESIDENT_BYTES_MAX
    offload.move_back()
    assert x.sum().item() == 32 << 20


def test_what_finds_no_room_stays_out_and_comes_back_later(
    stash: Stash, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, offload = Training("cpu"), Offload(torch.device("cpu"))
    before = [tensor.clone() for tensor in training.tensors()]
    _, copied = stash.write_copied({"step": 1}, training.tree())
    offload.move_out(copied, training.tensors())
    fill, filled = offload_module._fill, list[Any]()

    def refuse_third(moved: Any) -> None:
        if len(filled) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        filled.append(moved)
        fill(moved)

    with monkeypatch.context() as patch:
        patch.setattr(offload_module, "_fill", refuse_third)
        with pytest.raises(torch.OutOfMemoryError):
            offload.move_back()
    assert not any(tensor.untyped_storage().nbytes() for tensor in training.tensors())
    offload.move_back()
    assert not offload.is_out
    for tensor, value in zip(training.tensors(), before, strict=True):
        assert torch.equal(tensor, value)

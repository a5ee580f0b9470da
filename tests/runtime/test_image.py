"""An image gives back what it was given, bit for bit, or it is not read at all."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim import lr_scheduler

from coddl.runtime import imagefile
from coddl.runtime.errors import TrainingError
from coddl.runtime.imagefile import UnreadableImage
from coddl.runtime.worker import image, pinned
from coddl.runtime.worker.image import Stash, flatten, opened, unflatten
from tests.runtime.images import load
from tests.runtime.test_checkpoint_store import files_up_to

ROOT = Path(__file__).parents[2]
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def stash(tmp_path: Path) -> Iterator[Stash]:
    with closing(Stash(tmp_path)) as stash:
        yield stash


def same(a: Any, b: Any) -> bool:
    """Compare trees by type and value, tensors bit by bit and stride by stride, NaN with NaN."""
    if isinstance(a, Tensor):
        return (
            isinstance(b, Tensor)
            and (a.dtype, a.shape, a.device) == (b.dtype, b.shape, b.device)
            and (not _dense(a) or a.stride() == b.stride())
            and _bits(a) == _bits(b)
        )
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b or (a != a and b != b))


def _bits(tensor: Tensor) -> list[int]:
    row = tensor.detach().cpu().resolve_conj().contiguous().flatten()
    bits: list[int] = row.view(torch.uint8).tolist()
    return bits


def _dense(tensor: Tensor) -> bool:
    return tensor.numel() > 1 and tensor.untyped_storage().nbytes() == tensor.nbytes


# --- what a tree may hold ----------------------------------------------------------------------

VALUES = {
    "nothing": None,
    "truth is no number": [True, False, 1, 0],
    "numbers": [0, -1, 2**200, 0.1, -0.0, 5e-324, 1e308],
    "numbers that JSON lacks": [math.inf, -math.inf, math.nan],
    "strings": ["", "ä\n\0", "\ud800"],
    "a dict with integer keys": {0: "a", 10: {"b": 1}},
    "keys of all kinds": {None: 1, True: 2, "x": 3, 2.5: 4, (1, "y"): 5},
    "keys that look like tags": {"tensor": 0, "dict": {}, "float": "inf"},
    "tuples": (1, (2, [3, ()])),
    "a counter": Counter({3: 2, 7: 1}),
    "torch's own": [torch.float32, torch.bfloat16, torch.device("cpu"), torch.device("cuda:1")],
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    skeleton, tensors = flatten(value)
    assert same(unflatten(json.loads(json.dumps(skeleton, allow_nan=False)), tensors), value)


PLAIN: dict[str, tuple[Any, Any]] = {
    "an ordered dict": (OrderedDict(a=1), {"a": 1}),
    "a defaultdict": (defaultdict(list, {1: [2]}), {1: [2]}),
    "a numpy double": (np.float64(0.1), 0.1),
    "a numpy single": (np.float32(0.5), 0.5),
    "a numpy integer": (np.int64(3), 3),
    "a numpy truth": (np.bool_(True), True),
    "a size": (torch.Size([2, 3]), (2, 3)),
}


@pytest.mark.parametrize(("value", "want"), PLAIN.values(), ids=PLAIN.keys())
def test_a_relative_of_a_plain_value_comes_back_plain(value: Any, want: Any) -> None:
    assert same(unflatten(*flatten(value)), want)


class Foo:
    pass


class Pair(NamedTuple):
    a: int
    b: int


UNKEPT: dict[str, tuple[Any, str]] = {
    "an object": ({"scheduler": {"lr_lambdas": [Foo()]}}, "scheduler.lr_lambdas.0 holds a Foo"),
    "a function": ({3: ({"f": len},)}, "3.0.f holds a builtin_function_or_method"),
    "a set": ([{1}], "0 holds a set"),
    "a named tuple": ({"x": Pair(1, 2)}, "x holds a Pair"),
    "an array": ({"x": np.zeros(2)}, "x holds a ndarray"),
    "a key": ({Foo: 1}, "holds a type"),
    "the tree itself": (Foo(), "the state holds a Foo"),
    "a meta tensor": ([torch.empty(2, device="meta")], "0 holds a tensor of layout"),
    "a sparse tensor": ([torch.eye(2).to_sparse()], "0 holds a tensor of layout torch.sparse_coo"),
}


@pytest.mark.parametrize(("tree", "want"), UNKEPT.values(), ids=UNKEPT.keys())
def test_what_can_not_be_kept_is_named(tree: Any, want: str) -> None:
    with pytest.raises(TrainingError, match="state_dict") as caught:
        flatten(tree)
    assert want in caught.value.what


# --- tensors -----------------------------------------------------------------------------------

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint64),
    *(torch.bool, torch.complex64),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_of_a_tensor_comes_back(stash: Stash, dtype: torch.dtype) -> None:
    size = dtype.itemsize
    bytes_ = torch.arange(256 * size, dtype=torch.int64).mul(37).to(torch.uint8)  # NaNs and all
    tensor = (bytes_ % 2 if dtype is torch.bool else bytes_).view(dtype)
    _, tree = load(stash.write({}, [tensor]))
    assert same(tree, [tensor])


SHAPES: dict[str, Callable[[], Tensor]] = {
    "no dimension": lambda: torch.tensor(3.5),
    "no element": lambda: torch.empty(0),
    "no element, three dimensions": lambda: torch.empty(2, 0, 3, dtype=torch.float64),
    "odd length": lambda: torch.arange(7, dtype=torch.uint8),
    "transposed": lambda: torch.arange(6.0).view(2, 3).t(),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "with gaps": lambda: torch.arange(20.0)[::3],
    "channels last with gaps": lambda: torch.randn(2, 3, 4, 6).to(
        memory_format=torch.channels_last
    )[..., ::2],
    "expanded": lambda: torch.arange(3.0).expand(4, 3),
    "a conjugate": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "a parameter": lambda: torch.nn.Parameter(torch.randn(3)),
}


@pytest.mark.parametrize("make", SHAPES.values(), ids=SHAPES.keys())
def test_every_shape_of_tensor_comes_back(stash: Stash, make: Callable[[], Tensor]) -> None:
    tree = [torch.ones(1), make(), torch.ones(1)]  # with neighbours, which must not be touched
    path = stash.write({"step": 3}, tree)
    with opened(path) as (meta, seen, _):
        assert meta == {"step": 3}
        assert same(tree, seen)
    assert same(tree, load(path)[1])


def test_what_is_loaded_is_its_owners_alone(stash: Stash) -> None:
    path = stash.write({}, [torch.zeros(1000)])
    _, mine = load(path)
    mine[0].fill_(7)
    with opened(path) as (_, seen, _):
        assert same(seen, [torch.zeros(1000)])
        seen[0].fill_(5)  # not allowed, but the file is out of reach all the same
    assert same(load(path)[1], [torch.zeros(1000)])


# --- what a job holds --------------------------------------------------------------------------


def model() -> torch.nn.Module:
    torch.manual_seed(1)
    layers = (torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    return torch.nn.Sequential(*layers)


def train(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    net(torch.linspace(0, 1, 32).view(8, 4)).square().sum().backward()
    optimizer.step()


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW with amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "Adam with a tensor for a rate": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_training_goes_on_as_if_nothing_had_been(
    stash: Stash, make: Callable[[Any], torch.optim.Optimizer]
) -> None:
    net, other = model(), model()
    optimizer, fresh = make(net.parameters()), make(other.parameters())
    for _ in range(3):
        train(net, optimizer)
    kept = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
    _, tree = load(stash.write({}, kept))
    other.load_state_dict(tree["model"])
    fresh.load_state_dict(tree["optimizer"])
    train(net, optimizer)
    train(other, fresh)
    assert same(dict(net.state_dict()), dict(other.state_dict()))
    assert same(optimizer.state_dict(), fresh.state_dict())


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=20),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 4, 4]),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=10),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[3]
    ),
}


@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS.keys())
def test_a_schedule_goes_on_where_it_was(
    stash: Stash, make: Callable[[torch.optim.Optimizer], Any]
) -> None:
    def step() -> list[float]:
        for optimizer, scheduler in pairs:
            optimizer.step()
            scheduler.step(*[1.0] if "Plateau" in type(scheduler).__name__ else [])
        return [optimizer.param_groups[0]["lr"] for optimizer, _ in pairs]

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    pairs = [(optimizer, make(optimizer))]
    for _ in range(2):
        step()
    kept = {"optimizer": optimizer.state_dict(), "scheduler": pairs[0][1].state_dict()}
    _, tree = load(stash.write({}, kept))
    assert same(tree, {"optimizer": kept["optimizer"], "scheduler": dict(kept["scheduler"])})
    fresh = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    pairs.append((fresh, make(fresh)))
    fresh.load_state_dict(tree["optimizer"])
    pairs[1][1].load_state_dict(tree["scheduler"])
    for _ in range(4):
        rates = step()
        assert rates[0] == rates[1]


def test_a_gradient_scaler_comes_back(stash: Stash) -> None:
    scaler, fresh = (torch.amp.GradScaler("cpu", init_scale=s) for s in (512.0, 4.0))
    scaler.scale(torch.ones(1))
    fresh.load_state_dict(load(stash.write({}, scaler.state_dict()))[1])
    assert same(fresh.state_dict(), scaler.state_dict())


# --- slots -------------------------------------------------------------------------------------


class Failing(Tensor):
    """A tensor that calls a function when it is copied: the middle of a write, exactly."""

    then: Callable[[], None]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.copy_:
            cls.then()
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]


def failing(then: Callable[[], None]) -> list[Tensor]:
    kind = type("Failing", (Failing,), {"then": staticmethod(then)})
    return [torch.full((1000,), 9.0), torch.ones(3).as_subclass(kind), torch.full((1000,), 9.0)]


def test_a_torn_image_is_never_read(stash: Stash, tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("the GPU is gone")

    older = stash.write({"step": 1}, [torch.ones(9)])
    newest = stash.write({"step": 2}, [torch.ones(9)])
    with pytest.raises(RuntimeError, match="the GPU is gone"):
        stash.write({"step": 3}, failing(fail))
    assert not imagefile.is_complete(older)
    with pytest.raises(UnreadableImage, match="is incomplete"):
        load(older)
    assert imagefile.newest_image(tmp_path) == newest
    assert imagefile.step_of(newest) == 2
    assert stash.write({"step": 4}, [torch.ones(9)]) == older  # and the slot serves again
    assert imagefile.step_of(older) == 4


def test_an_image_being_written_is_not_read(stash: Stash, tmp_path: Path) -> None:
    seen: list[str] = []

    def look() -> None:
        for path in tmp_path.iterdir():
            with pytest.raises(UnreadableImage) as caught:
                load(path)
            seen.append(str(caught.value))

    stash.write({"step": 1}, failing(look))
    assert seen == ["is being written"]


def test_kill_9_in_the_middle_of_a_write_leaves_the_image_before(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from tests.runtime.test_image import Stash, failing, torch\n"
        "stash = Stash(Path(sys.argv[1]))\n"
        "for step in (1, 2):\n"
        "    stash.write({'step': step}, [torch.full((1000,), float(step))])\n"
        "stash.write({'step': 3}, failing(lambda: os.kill(os.getpid(), signal.SIGKILL)))\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    killed = subprocess.run(command, cwd=ROOT, timeout=60, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    torn, newest = sorted(tmp_path.iterdir(), key=imagefile.is_complete)
    with pytest.raises(UnreadableImage, match="is incomplete"):
        load(torn)
    assert imagefile.newest_image(tmp_path) == newest
    assert same(load(newest), ({"step": 2}, [torch.full((1000,), 2.0)]))
    with closing(Stash(tmp_path)) as heir:  # who comes after may write, and takes the torn slot
        assert heir.write({"step": 4}, []) == torn
    assert imagefile.newest_image(tmp_path) == torn


def test_two_slots_take_turns_and_a_reader_keeps_its_own(stash: Stash, tmp_path: Path) -> None:
    def write(step: int) -> str:
        return stash.write({"step": step}, [torch.full((5,), float(step))]).name

    assert [write(step) for step in range(4)] == ["slot-0.img", "slot-1.img"] * 2
    with opened(tmp_path / "slot-0.img") as (meta, tree, _):
        assert [write(step) for step in range(4, 8)] == ["slot-2.img", "slot-1.img"] * 2
        assert meta == {"step": 2}
        assert same(tree, [torch.full((5,), 2.0)])
    assert write(8) == "slot-0.img"


def test_a_tensor_kept_beyond_its_time_blocks_no_slot_and_stays_mapped(stash: Stash) -> None:
    with opened(stash.write({}, [torch.ones(5)])) as (_, tree, _):
        pass
    names = [stash.write({}, [torch.zeros(5)]).name for _ in range(3)]
    assert names == ["slot-1.img", "slot-0.img", "slot-1.img"]
    assert tree[0].sum().item() == 0  # which is why nobody should


def test_workers_that_share_a_folder_do_not_overwrite_the_newest(tmp_path: Path) -> None:
    with closing(Stash(tmp_path)) as one, closing(Stash(tmp_path)) as two:
        for step, stash in enumerate([one, two, two, one, one, two]):
            newest = imagefile.newest_image(tmp_path)
            path = stash.write({"step": step}, [torch.full((3000 * (step + 1),), float(step))])
            assert path != newest
            assert imagefile.newest_image(tmp_path) == path
            assert imagefile.step_of(path) == step
    assert len(list(tmp_path.iterdir())) == 2


def test_a_slot_grows_with_its_image(stash: Stash) -> None:
    for length in (10, 1_000_000, 10, 2_000_000):
        tree = {"x": torch.arange(length), "y": ["z"] * (length // 100)}
        assert same(load(stash.write({}, tree))[1], tree)


def test_without_room_the_images_there_are_stay_whole(stash: Stash, tmp_path: Path) -> None:
    paths = [stash.write({"step": step}, [torch.ones(step)]) for step in (1, 2)]
    with files_up_to(2 << 20), pytest.raises(TrainingError, match="File too large") as caught:
        stash.write({"step": 3}, [torch.ones(1 << 20)])
    assert str(tmp_path) in caught.value.what
    assert "takes 41984" in caught.value.because
    with files_up_to(2 << 20), pytest.raises(TrainingError, match="File too large"):
        stash.reserve(3 << 20)
    assert [imagefile.step_of(path) for path in paths] == [1, 2]
    stash.write({"step": 3}, [torch.ones(1 << 20)])


def test_a_folder_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        closing(Stash(tmp_path / "file" / "folder")) as stash,
        pytest.raises(TrainingError, match="Not a directory"),
    ):
        stash.write({}, [])


# --- ahead of time -----------------------------------------------------------------------------


def test_what_is_reserved_is_enough(stash: Stash, tmp_path: Path) -> None:
    tree = {"x": [torch.ones(n, 3) for n in range(200)]}
    stash.reserve(image.nbytes(tree))
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes.keys() == {"slot-0.img", "slot-1.img"}
    for step in range(2):
        assert same(load(stash.write({"step": step, "seed": 2**60}, tree))[1], tree)
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == sizes


def test_writing_goes_on_while_room_is_reserved(
    stash: Stash, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "SLICE_BYTES", 1 << 16)  # so that there are many turns to take
    bytes_ = 32 << 20
    reserving = threading.Thread(target=stash.reserve, args=(bytes_,))
    reserving.start()
    writes = 0
    while reserving.is_alive() or writes < 10:
        tree = [torch.full((1000 + 5000 * (writes % 5),), float(writes))]
        assert same(load(stash.write({}, tree))[1], tree)
        writes += 1
    reserving.join(timeout=30)
    assert not reserving.is_alive()


def test_closing_ends_a_reservation_and_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "SLICE_BYTES", 1 << 12)
    before = set(os.listdir("/proc/self/fd"))
    stash = Stash(tmp_path)
    path = stash.write({}, [torch.ones(3)])
    reserving = threading.Thread(target=stash.reserve, args=(1 << 30,))
    reserving.start()
    stash.close()
    reserving.join(timeout=30)
    assert not reserving.is_alive()
    assert path.stat().st_size < 1 << 30
    assert same(load(path)[1], [torch.ones(3)])
    assert set(os.listdir("/proc/self/fd")) <= before
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


# --- on a GPU ----------------------------------------------------------------------------------


@on_gpu
@pytest.mark.parametrize("make", SHAPES.values(), ids=SHAPES.keys())
def test_tensors_of_a_gpu_come_back_to_it(stash: Stash, make: Callable[[], Tensor]) -> None:
    gpu = torch.device("cuda", torch.cuda.current_device())
    tree = {"gpu": make().to(gpu), "cpu": make()}
    path = stash.write({}, tree)
    assert same(tree, load(path, gpu)[1])
    with opened(path) as (_, seen, _):
        assert same({"gpu": tree["gpu"].cpu(), "cpu": tree["cpu"]}, seen)


@on_gpu
def test_a_tensor_may_cross_from_one_pinned_slice_to_the_next(
    stash: Stash, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (image, pinned):
        monkeypatch.setattr(module, "SLICE_BYTES", 1 << 20)
    gpu = torch.device("cuda", torch.cuda.current_device())
    big = torch.randn(3, 5, 500, 300, device=gpu)
    tree = [big[0, 0, 0, :7], big, big.to(memory_format=torch.channels_last), big[..., ::2]]
    stash.reserve(image.nbytes(tree), gpu)
    for step in range(3):
        assert same(tree, load(stash.write({"step": step}, tree), gpu)[1])
    tree.append(big.double())  # and the slots must grow
    assert same(tree, load(stash.write({}, tree), gpu)[1])


@on_gpu
def test_memory_that_can_not_be_pinned_does_not_disturb_anyone() -> None:
    gpu = torch.device("cuda", torch.cuda.current_device())
    memory = torch.zeros(1 << 20, dtype=torch.uint8)
    assert pinned.pin(memory, gpu)
    try:
        assert not pinned.pin(memory, gpu)
        assert torch.ones(3, device=gpu).add(1).sum().item() == 6
    finally:
        pinned.unpin(memory, gpu)

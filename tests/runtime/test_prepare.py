"""One worker, alone, in this process: a prepared script does exactly what the plain one does."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import coddl  # noqa: E402
from coddl.runtime.errors import TrainingError  # noqa: E402
from coddl.runtime.worker import prepare as module  # noqa: E402
from coddl.runtime.worker.checks import min_slice_of  # noqa: E402


@pytest.fixture(autouse=True)
def one_session(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process trains one job; a test is as good as a process."""
    original = torch.autograd.backward
    monkeypatch.setattr(module, "_session", None)
    yield
    torch.autograd.backward = original


def numbers(count: int = 70) -> "TensorDataset":
    dice = torch.Generator().manual_seed(3)
    return TensorDataset(
        torch.randn(count, 4, generator=dice), torch.randn(count, 1, generator=dice)
    )


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))


class Augmented:
    """Samples with dice of every kind."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.randn(4) + index, torch.tensor([random.random()])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for number in range(40):
            yield torch.full((4,), float(number)), torch.ones(1)


class Unkept(Stream):
    """A stream whose state can't be written down."""

    def state_dict(self) -> dict[str, Any]:
        return {"seen": {1, 2}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError(state)


LOADERS: dict[str, Callable[[], Any]] = {
    "shuffled, with a short last batch": lambda: DataLoader(numbers(), 16, shuffle=True),
    "in order, last batch dropped": lambda: DataLoader(numbers(), 16, drop_last=True),
    "with a generator": lambda: DataLoader(
        numbers(), 16, shuffle=True, generator=torch.Generator().manual_seed(5)
    ),
    "with a sampler": lambda: DataLoader(
        numbers(), 16, sampler=WeightedRandomSampler([1.0] * 70, 48)
    ),
    "with a batch sampler": lambda: DataLoader(
        numbers(), batch_sampler=BatchSampler(RandomSampler(range(70)), 16, drop_last=False)
    ),
    "with augmentation": lambda: DataLoader(Augmented(), 8, shuffle=True),  # type: ignore[arg-type]
    "with loader processes": lambda: DataLoader(numbers(), 16, shuffle=True, num_workers=1),
    "with a stream": lambda: DataLoader(Stream(), 8),
    "with batches of the dataset's own": lambda: DataLoader(
        [(torch.ones(5, 4), torch.ones(5, 1))] * 8,  # type: ignore[arg-type]
        batch_size=None,
    ),
}


def trained(loader: Any, epochs: Any, model: nn.Module, optimizer: Any) -> list[float]:
    seen = []
    for _ in epochs:
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(loss.item())
    return [*seen, *(w for p in model.parameters() for w in p.flatten().tolist())]


@pytest.mark.parametrize("made", LOADERS.values(), ids=LOADERS.keys())
def test_a_prepared_script_has_the_bits_of_the_plain_one(made: Callable[[], Any]) -> None:
    outcomes = []
    for prepared in (False, True):
        model, loader = network(), made()
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        epochs: Any = range(3)
        if prepared:
            model, optimizer, loader = coddl.prepare(model, optimizer, loader)
            epochs = coddl.epochs(3)
        random.seed(1)
        torch.manual_seed(2)
        outcomes.append(trained(loader, epochs, model, optimizer))
    assert outcomes[0] == outcomes[1]


def test_the_loader_looks_like_the_users_own() -> None:
    model, data = network(), numbers()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(data, 16, shuffle=True)
    *_, elastic = coddl.prepare(model, optimizer, loader)
    assert len(elastic) == len(loader) == 5
    assert elastic.dataset is data
    assert (elastic.batch_size, elastic.num_workers) == (16, 0)
    for _ in coddl.epochs(2):
        assert [number for number, _ in coddl.enumerate(elastic)] == list(range(5))


def test_alone_nothing_is_touched() -> None:
    backward = torch.autograd.backward
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer, loader = coddl.prepare(model, optimizer, DataLoader(numbers(), 16))
    for _ in coddl.epochs(1):
        for x, y in loader:
            assert torch.autograd.backward is backward
            F.mse_loss(model(x), y).backward()
            optimizer.step()
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def test_what_is_given_comes_back_in_the_same_order() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    average = torch.optim.swa_utils.AveragedModel(model)
    held_out = DataLoader(numbers(), 8)
    given = (schedule, model, optimizer, DataLoader(numbers(), 16), average)
    *back, split = coddl.prepare(*given, eval=held_out)
    assert [a is b for a, b in zip(given, back, strict=True)] == [True, True, True, False, True]
    assert len(list(split)) == len(split) == len(held_out)


@pytest.mark.parametrize("micro_batch", [3, 16, 100])
def test_micro_batches_give_the_update_of_the_whole_slice(micro_batch: int) -> None:
    outcomes = []
    for chunk in (None, micro_batch):
        module._session = None
        torch.manual_seed(0)
        model: Any = nn.Linear(4, 1)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=4)
        loader = DataLoader(numbers(), 16, shuffle=True)
        torch.manual_seed(1)
        model, optimizer, loader, scaler = coddl.prepare(
            model, optimizer, loader, scaler, micro_batch=chunk
        )
        for _ in coddl.epochs(2):
            for x, y in loader:
                optimizer.zero_grad()
                scaler.scale(F.mse_loss(model(x), y)).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
                schedule.step()
                assert all(p.grad is not None for p in model.parameters())
        outcomes.append((model.weight.clone(), schedule.last_epoch, scaler.get_scale()))
    torch.testing.assert_close(outcomes[0], outcomes[1])


def test_steps_and_slice_serve_scripts_without_a_dataset() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer = coddl.prepare(model, optimizer)
    seen = []
    for step in coddl.steps(5):
        x, y = coddl.slice(torch.randn(8, 4), torch.randn(8, 1))
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append((step, len(x)))
    assert seen == [(step, 8) for step in range(5)]


def test_stop_ends_all_loops_after_the_pass() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer, loader = coddl.prepare(model, optimizer, DataLoader(numbers(), 16))
    passes = 0
    for _ in coddl.epochs(10):
        for x, y in loader:
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            passes += 1
            if passes == 7:
                coddl.stop()
    assert passes == 7


def test_loops_without_a_number_end_when_the_script_says_so() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer, loader = coddl.prepare(model, optimizer, DataLoader(numbers(), 16))
    seen = []
    for epoch in coddl.epochs():
        seen.append(epoch)
        for x, y in loader:
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        if epoch == 3:
            break
    assert seen == [0, 1, 2, 3]


def test_steps_without_a_number_end_by_stop() -> None:
    model = network()
    model, _ = coddl.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    seen = []
    for step in coddl.steps():
        seen.append(step)
        if step == 4:
            coddl.stop()
    assert seen == [0, 1, 2, 3, 4]


def test_state_holds_plain_values_and_refuses_others() -> None:
    model = network()
    coddl.prepare(model, torch.optim.SGD(model.parameters(), 0.1), DataLoader(numbers(), 16))
    state = coddl.state(best=1e9, history=[])
    state.best = 0.5
    state.history = [1, 2]
    assert (state.best, state.history) == (0.5, [1, 2])
    assert repr(state) == "state(best=0.5, history=[1, 2])"
    with pytest.raises(AttributeError, match="has no 'worst'"):
        _ = state.worst
    with pytest.raises(TrainingError, match="best holds a set"):
        state.best = {1}


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 2, sparse=True)


def _prepared(*objects: Any, **settings: Any) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    given = objects or (model, optimizer, DataLoader(numbers(), 16))
    coddl.prepare(*given, **settings)


def _with(model: nn.Module, **changes: Any) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1)
    loader = changes.pop("loader", DataLoader(numbers(), 16))
    _prepared(model, optimizer, loader, **changes)


def _updated_in_backward() -> None:
    model = network()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: None)
    _prepared(model, torch.optim.SGD(model.parameters(), 0.1), DataLoader(numbers(), 16))


def _two_owners() -> None:
    model = network()
    _prepared(model, *(torch.optim.SGD(model.parameters(), 0.1) for _ in range(2)))


def _twice() -> None:
    for _ in range(2):
        _prepared()


def _distributed() -> None:
    sampler = DistributedSampler(numbers(), num_replicas=2, rank=0)  # type: ignore[var-annotated]
    _with(network(), loader=DataLoader(numbers(), 16, sampler=sampler))


MISTAKES: dict[str, tuple[Callable[[], None], str]] = {
    "no model": (lambda: _prepared(DataLoader(numbers(), 16)), "was given no model"),
    "no optimizer": (lambda: _prepared(network()), "was given no optimizer"),
    "a dataset without a batch size": (
        lambda: _prepared(network(), numbers()),
        "needs a batch size",
    ),
    "something else": (lambda: _prepared(network(), 3), "can't take a int"),
    "fuse": (lambda: _prepared(fuse=True), "leave it out"),
    "epochs": (lambda: _prepared(epochs=3), "coddl.epochs"),
    "clip_norm": (lambda: _prepared(clip_norm=1.0), "clip_grad_norm_"),
    "an unknown argument": (lambda: _prepared(bach=3), "no argument 'bach'"),
    "an odd reduction": (lambda: _prepared(reduction="max"), "reduction='max'"),
    "an empty slice": (lambda: _prepared(min_slice=0), "min_slice=0"),
    "an empty micro-batch": (lambda: _prepared(micro_batch=0), "micro_batch=0"),
    "a wrapped model": (lambda: _with(nn.DataParallel(network())), "wrapped in DataParallel"),
    "a group of one's own": (
        lambda: _with(nn.SyncBatchNorm(4, process_group=object())),
        "process group of its own",
    ),
    "statistics of a batch in parts": (
        lambda: _with(nn.SyncBatchNorm(4), micro_batch=4),
        "without micro_batch=4",
    ),
    "statistics of virtual nodes": (
        lambda: coddl.prepare(
            nn.SyncBatchNorm(4),
            torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1),
            numbers(),
            global_batch=16,
            strict=True,
        ),
        "without strict=True",
    ),
    "sparse gradients": (lambda: _with(Sparse()), "sparse gradients"),
    "an update in backward": (_updated_in_backward, "inside backward()"),
    "a parameter with two owners": (_two_owners, "belongs to two optimizers"),
    "a distributed sampler": (_distributed, "DistributedSampler"),
    "a stream with a state that can't be kept": (
        lambda: _with(network(), loader=DataLoader(Unkept(), 16)),
        "Unkept.seen holds a set",
    ),
    "twice": (_twice, "called twice"),
    "epochs before prepare": (lambda: (coddl.epochs(3), None)[1], "too early"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("mistake", "says"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_told_with_its_reason_and_a_way_out(
    mistake: Callable[[], None], says: str
) -> None:
    with pytest.raises(TrainingError) as refused:
        mistake()
    told = str(refused.value)
    assert says in told
    assert "\n  because " in told
    assert "\n  try     " in told


LEAST = {
    "no batch norm": ([nn.Linear(4, 4)], 1),
    "of a slice": ([nn.BatchNorm1d(4)], 16),
    "of the global batch": ([nn.SyncBatchNorm(4)], 1),
    "of both": ([nn.SyncBatchNorm(4), nn.BatchNorm2d(4)], 16),
}


@pytest.mark.parametrize(("layers", "least"), LEAST.values(), ids=LEAST.keys())
def test_slices_are_large_enough_for_the_models_batch_norm(
    layers: list[nn.Module], least: int
) -> None:
    assert min_slice_of([nn.Sequential(*layers)], None) == least
    assert min_slice_of([nn.Sequential(*layers)], 3) == 3


def test_schedulers_are_found_whatever_they_are_made_of() -> None:
    from coddl.runtime.worker.schedulers import schedulers_of

    kinds = torch.optim.lr_scheduler
    model = network()
    optimizer, other = (torch.optim.SGD(model.parameters(), 0.1) for _ in range(2))
    parts = [kinds.LinearLR(optimizer), kinds.CosineAnnealingLR(optimizer, 10)]
    composite = kinds.SequentialLR(optimizer, parts, [5])
    plateau = kinds.ReduceLROnPlateau(optimizer)
    kept = kinds.StepLR(other, 1)
    assert set(map(id, schedulers_of(optimizer))) == {id(composite), id(plateau)}
    assert schedulers_of(other) == [kept]

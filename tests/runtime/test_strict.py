"""strict=True, one worker, alone, in this process: what the loop sees and what it computes."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.data import IterableDataset, TensorDataset  # noqa: E402

import coddl  # noqa: E402
from coddl.runtime.errors import TrainingError  # noqa: E402
from coddl.runtime.worker import prepare as module  # noqa: E402
from coddl.runtime.worker.strict.session import StrictSession  # noqa: E402


@pytest.fixture(autouse=True)
def one_session(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process trains one job; a test is as good as a process."""
    monkeypatch.setattr(module, "_session", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # twins stay on the CPU
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def numbers(count: int = 64) -> Any:
    dice = torch.Generator().manual_seed(3)
    return TensorDataset(
        torch.randn(count, 4, generator=dice), torch.randn(count, 1, generator=dice)
    )


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 1)


def test_only_what_is_trained_counts_as_exchanged() -> None:
    frozen, trained = nn.Linear(100, 4), linear()
    frozen.requires_grad_(False)
    model = nn.Sequential(frozen, trained)
    coddl.prepare(
        model, torch.optim.SGD(model.parameters(), 0.1), numbers(), global_batch=16, strict=True
    )
    assert isinstance(module._session, StrictSession)
    assert module._session._exchange.gradient_bytes() == [4 * 4, 4]  # weights and bias, in bytes


def test_the_update_is_that_of_the_whole_batch_at_once() -> None:
    model, twin = linear(), linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model, optimizer, batches = coddl.prepare(
        model, optimizer, numbers(), global_batch=16, strict=True, micro_batch=2, epochs=2
    )
    plain = torch.optim.SGD(twin.parameters(), 0.1, momentum=0.9)
    seen: list[tuple[Tensor, Tensor]] = []
    for x, y in batches:
        seen.append((x, y))
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if batches.completes:
            plain.zero_grad()
            whole = [torch.cat(part) for part in zip(*seen, strict=True)]
            F.mse_loss(twin(whole[0]), whole[1]).backward()
            plain.step()
            seen.clear()
            torch.testing.assert_close(model.weight, twin.weight)
    assert batches.step == batches.steps == 8


def test_a_pass_that_does_not_complete_the_batch_changes_nothing() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer, batches = coddl.prepare(
        model, optimizer, numbers(), global_batch=8, strict=True, micro_batch=2
    )
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    coddl.track(schedule=schedule)
    rates, changed = [], []
    for x, y in batches:
        before = model.weight.clone()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        schedule.step()
        changed.append(not torch.equal(before, model.weight))
        rates.append(schedule.get_last_lr()[0])
    assert changed == [False, False, False, True] * 8
    assert rates[3::4] == [0.1 * 0.5 ** (i + 1) for i in range(8)]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("when", ["before prepare", "after prepare", "passed to prepare"])
def test_torch_takes_our_step_for_the_one_that_a_scheduler_counts(when: str) -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def made() -> Any:
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    schedule = None if when == "after prepare" else made()
    passed = (schedule,) if when == "passed to prepare" else ()
    batches = coddl.prepare(
        model, optimizer, numbers(), *passed, global_batch=16, micro_batch=8, strict=True
    )[2]
    schedule = schedule or made()
    if not passed:
        coddl.track(schedule=schedule)
    for x, y in batches:
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    assert schedule.last_epoch == 4


def test_every_sample_comes_once_an_epoch_and_in_another_order_the_next() -> None:
    model = linear()
    seen: list[list[int]] = [[], []]
    _, optimizer, batches = coddl.prepare(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        list(range(32)),
        global_batch=8,
        strict=True,
        epochs=2,
    )
    for x in batches:
        seen[batches.epoch] += x.tolist()
        optimizer.step()
    assert sorted(seen[0]) == sorted(seen[1]) == list(range(32))
    assert seen[0] != seen[1]


class Augmented:
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index, "dice": (torch.rand(()), random.random())}


def drawn_by(loader_workers: int) -> dict[int, tuple[float, float]]:
    module._session = None
    model = linear()
    _, optimizer, batches = coddl.prepare(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        Augmented(),
        global_batch=8,
        strict=True,
        micro_batch=4,
        loader_workers=loader_workers,
    )
    drawn = {}
    for batch in batches:
        for i, torchs, pythons in zip(batch["index"].tolist(), *batch["dice"], strict=True):
            drawn[i] = (float(torchs), float(pythons))
        optimizer.step()
    return drawn


def test_batches_keep_their_shape_and_their_dice_with_loader_processes() -> None:
    drawn = drawn_by(loader_workers=0)
    assert len(drawn) == len(set(drawn.values())) == 16
    assert drawn_by(loader_workers=2) == drawn


def test_batchnorm_moves_once_per_iteration_by_the_mean_of_its_parts() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    model, optimizer, batches = coddl.prepare(
        model, optimizer, numbers(), global_batch=16, strict=True, micro_batch=4
    )
    means = []
    expected = torch.zeros(4)
    for x, y in batches:
        means.append(x.mean(0))
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        if batches.completes:
            expected = 0.9 * expected + 0.1 * torch.stack(means).mean(0)
            torch.testing.assert_close(model[0].running_mean, expected)
            assert model[0].num_batches_tracked == batches.step + 1
            means.clear()


def test_several_optimizers_are_applied_together_when_the_iteration_ends() -> None:
    first, second = linear(), linear()
    optimizers = tuple(torch.optim.SGD(m.parameters(), 0.1) for m in (first, second))
    (first, second), (a, b), batches = coddl.prepare(
        (first, second), optimizers, numbers(), global_batch=8, strict=True, micro_batch=4
    )
    for x, y in batches:
        start = first.weight.clone()
        a.zero_grad()
        F.mse_loss(first(x), y).backward()
        a.step()
        assert torch.equal(first.weight, start), "the other loss must see the old weights"
        b.zero_grad()
        (first(x) * second(x)).mean().backward()  # also leaves gradients in the first
        b.step()
    assert not torch.equal(first.weight, linear().weight)
    assert not torch.equal(second.weight, linear().weight)


def test_a_gradient_that_a_later_loss_leaves_behind_is_not_counted() -> None:
    def trained(pollute: bool) -> Tensor:
        module._session = None
        model, other = linear(), linear()
        optimizers = tuple(torch.optim.SGD(m.parameters(), 0.1) for m in (model, other))
        (model, other), (a, b), batches = coddl.prepare(
            (model, other), optimizers, numbers(), global_batch=8, strict=True, micro_batch=2
        )
        for x, y in batches:
            a.zero_grad()
            F.mse_loss(model(x), y).backward()
            a.step()
            if pollute:
                model(x).sum().backward()
            b.zero_grad()
            F.mse_loss(other(x), y).backward()
            b.step()
        weight: Tensor = model.weight
        return weight

    assert torch.equal(trained(pollute=True), trained(pollute=False))


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler_scales_skips_and_updates_once_per_iteration(fused: bool) -> None:
    model, twin = linear(), linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, fused=fused)
    model, optimizer, batches = coddl.prepare(
        model, optimizer, numbers(), global_batch=16, strict=True, micro_batch=4, clip_norm=1.0
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    coddl.track(scaler=scaler)
    plain = torch.optim.SGD(twin.parameters(), 0.1)
    whole: list[tuple[Tensor, Tensor]] = []
    for x, y in batches:
        poison = float("inf") if batches.step == 2 else 1.0
        scaler.scale(F.mse_loss(model(x), y) * poison).backward()
        scaler.step(optimizer)
        scaler.update()
        whole.append((x, y))
        if batches.completes and batches.step != 2:
            plain.zero_grad()
            joined = [torch.cat(part) for part in zip(*whole, strict=True)]
            F.mse_loss(twin(joined[0]), joined[1]).backward()
            nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
            plain.step()
        if batches.completes:
            torch.testing.assert_close(model.weight, twin.weight)
            whole.clear()
    assert scaler.get_scale() == 1024.0  # grown at 2 good steps, halved by the bad one


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_model_is_compiled_once() -> None:
    model = torch.compile(linear(), backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer, batches = coddl.prepare(
        model, optimizer, numbers(), global_batch=16, strict=True, micro_batch=4
    )
    torch._dynamo.utils.counters.clear()
    for x, y in batches:
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_the_mean_is_over_all_passes_of_the_iteration() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer, batches = coddl.prepare(
        model, optimizer, numbers(), global_batch=16, strict=True, micro_batch=4
    )
    values = []
    for x, y in batches:
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        values.append(float(x.sum()))
        mean = coddl.mean(x.sum())
        if batches.completes:
            assert mean == pytest.approx(sum(values) / 4)
            values.clear()


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield 1


def _prepared(**changes: Any) -> None:
    model = linear()
    given: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), 0.1),
        "dataset": numbers(),
        "global_batch": 16,
        "strict": True,
    } | changes
    objects = [given.pop(name) for name in ("model", "optimizer", "dataset")]
    coddl.prepare(*objects, **given)


def _empty() -> Any:
    optimizer = torch.optim.SGD(linear().parameters(), 0.1)
    optimizer.param_groups[0]["params"] = []
    return optimizer


def _started(**changes: Any) -> Any:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return coddl.prepare(
        model, optimizer, numbers(), global_batch=16, strict=True, micro_batch=4, **changes
    )


def _over_epochs() -> None:
    model, optimizer, batches = _started()
    for _ in range(2):
        for x, y in batches:
            F.mse_loss(model(x), y).backward()
            optimizer.step()


def _mean_now_and_then() -> None:
    model, optimizer, batches = _started()
    for x, y in batches:
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        if batches.completes:
            coddl.mean(1.0)


def _grown() -> None:
    _, optimizer, _ = _started()
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


def _two_owners() -> None:
    model = linear()
    both = tuple(torch.optim.SGD(model.parameters(), 0.1) for _ in range(2))
    coddl.prepare(model, both, numbers(), global_batch=16, strict=True)


class Running(nn.Module):
    """Keeps something of what it has seen, in one way or another."""

    def __init__(self, start: float, *, replace: bool) -> None:
        super().__init__()
        self.linear = linear()
        self.replace = replace
        self.seen: Tensor
        self.register_buffer("seen", torch.tensor(start))

    def forward(self, x: Tensor) -> Tensor:
        if self.replace:
            self.seen = self.seen + 1
        else:
            self.seen.copy_(x.max())
        out: Tensor = self.linear(x)
        return out


def _trained(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer, batches = coddl.prepare(
        model, optimizer, numbers(), global_batch=16, strict=True
    )
    for x, y in batches:
        F.mse_loss(model(x), y).backward()
        optimizer.step()


class Odd:
    """Its state is no tree of tensors and plain values."""

    def state_dict(self) -> dict[str, Any]:
        return {"seen": {1, 2}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError(state)


def _after(then: Callable[[], None]) -> None:
    _prepared()
    then()


MISTAKES: dict[str, tuple[Callable[[], None], str]] = {
    "too few samples": (lambda: _prepared(dataset=numbers(8)), "the dataset has 8 samples"),
    "an odd micro-batch": (lambda: _prepared(micro_batch=5), "micro-batches of 5"),
    "an iterable dataset": (lambda: _prepared(dataset=Endless()), "can only be iterated"),
    "no parameters": (lambda: _prepared(optimizer=_empty()), "has no parameters"),
    "arguments swapped": (lambda: _prepared(model=_empty()), "is no Module"),
    "no epochs": (lambda: _prepared(epochs=0), "epochs=0"),
    "twice": (lambda: _after(_prepared), "called twice"),
    "track before prepare": (lambda: coddl.track(a=linear()), "too early"),
    "a loop over epochs": (_over_epochs, "the training is over"),
    "a mean of some passes": (_mean_now_and_then, "not called in every pass"),
    "parameters added later": (_grown, "can't be added"),
    "a parameter with two owners": (_two_owners, "belongs to two optimizers"),
    "a buffer replaced": (lambda: _trained(Running(0.0, replace=True)), "another tensor"),
    "an endless buffer": (lambda: _trained(Running(float("-inf"), replace=False)), "not finite"),
    "a state of sets": (lambda: _after(lambda: coddl.track(odd=Odd())), "odd.seen holds a set"),
    "nothing to track": (lambda: _after(lambda: coddl.track(a=3)), "has no state_dict()"),
}


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


def test_a_tracked_object_is_still_what_it_was_to_torch_save(tmp_path: Path) -> None:
    model, *_ = _started()
    average = torch.optim.swa_utils.AveragedModel(model)
    coddl.track(average=average)
    torch.save(average, tmp_path / "average.pt")
    again = torch.load(tmp_path / "average.pt", weights_only=False)
    assert type(again) is torch.optim.swa_utils.AveragedModel
    assert torch.equal(again.module.weight, average.module.weight)


def test_a_counter_counts_as_it_would_alone_and_not_as_a_mean() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear()
            self.last: Tensor
            self.register_buffer("last", torch.zeros((), dtype=torch.int64))

        def forward(self, x: Tensor) -> Tensor:
            self.last.fill_(int(x.sum() * 1000))
            out: Tensor = self.linear(x)
            return out

    model = Counting()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer, batches = coddl.prepare(
        model, optimizer, numbers(), global_batch=16, strict=True, micro_batch=4
    )
    for x, y in batches:
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        if batches.completes:
            assert int(model.last) == int(x.sum() * 1000)


def test_step_must_be_called_in_every_pass() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer, batches = coddl.prepare(
        model, optimizer, numbers(), global_batch=16, strict=True, micro_batch=4
    )

    def train() -> None:
        for x, y in batches:
            F.mse_loss(model(x), y).backward()
            if batches.completes:
                optimizer.step()

    with pytest.raises(TrainingError, match=r"1 of 4 passes"):
        train()


def test_a_closure_is_refused() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer, _ = coddl.prepare(model, optimizer, numbers(), global_batch=16, strict=True)
    with pytest.raises(TrainingError, match="closure"):
        optimizer.step(lambda: torch.tensor(0.0))

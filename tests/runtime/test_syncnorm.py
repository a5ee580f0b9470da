"""SyncBatchNorm: several workers compute what one does with the whole batch, whoever dies."""

from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.runtime.elastic import Elastic, alone, line_of

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from coddl.runtime.worker.syncnorm import SyncNorm  # noqa: E402

slow = pytest.mark.slow
ODD = 25  # the step in which something happens
CLOSE = 1e-8


def state_of(printed: str) -> list[float]:
    return [float(word) for word in line_of(printed, "state").split()[1:]]


def lost(job: Elastic) -> list[tuple[int, int]]:
    return [(event["step"], event["samples"]) for event in job.events if event["is"] == "lost"]


def faulty(fault: str) -> dict[str, str]:
    return {"FAULT": fault, "FIRST_JOINER": "9"}


@cache
def printed_alone(*args: str) -> str:
    return alone("synced.py", *args)


@slow
@pytest.mark.parametrize(
    "how",
    [
        *("checkpointed", "compiled"),
        *(pytest.param(how, marks=pytest.mark.matrix) for how in ("sum", "weighted")),
    ],
)
def test_three_workers_train_as_one_with_the_whole_batch(tmp_path: Path, how: str) -> None:
    with Elastic(tmp_path, "synced.py", how, workers=3) as job:
        assert state_of(job.finish()) == pytest.approx(state_of(printed_alone(how)), abs=CLOSE)
    assert job.wait_kind("started")["to"] == 3  # slices of eight: no min_slice is kept


@slow
def test_resizes_change_nothing(tmp_path: Path) -> None:
    with Elastic(tmp_path, "synced.py", "--pace-s", "0.05", workers=1) as job:
        job.wait_step(2)
        for workers in (3, 2):
            job.ask("resize", workers=workers)
        assert state_of(job.finish()) == pytest.approx(state_of(printed_alone()), abs=CLOSE)
    assert job.sizes() == [1, 3, 2]


@slow
@pytest.mark.parametrize(("workers", "slice_"), [(3, (8, 16)), (2, (12, 24))])
def test_a_worker_that_dies_in_forward_counts_nothing(
    tmp_path: Path, workers: int, slice_: tuple[int, int]
) -> None:
    with Elastic(tmp_path, "synced.py", workers=workers, env=faulty("1:before-norm")) as job:
        state = state_of(job.finish())
    want = printed_alone("--without", *map(str, slice_))
    assert state == pytest.approx(state_of(want), abs=CLOSE), job.story()
    assert lost(job) == [(ODD, slice_[1] - slice_[0])]


@slow
@pytest.mark.parametrize(("workers", "how"), [(3, "mean"), (2, "sum"), (2, "checkpointed")])
def test_a_worker_that_dies_in_backward_is_left_out_of_one_update(
    tmp_path: Path, workers: int, how: str
) -> None:
    fault = faulty("1:before-norm-backward")
    with Elastic(tmp_path, "synced.py", how, workers=workers, env=fault) as job:
        loss = float(line_of(job.finish(), "loss").split()[1])
    want = float(line_of(printed_alone(how), "loss").split()[1])
    assert loss == pytest.approx(want, rel=0.1)
    assert lost(job) == [(ODD, 24 // workers)]


@slow
@pytest.mark.parametrize("fault", ["1:misses-norm-1", "0:misses-norm-5"])  # the last in backward
def test_a_worker_that_missed_a_sum_takes_it_from_one_that_has_it(
    tmp_path: Path, fault: str
) -> None:
    with Elastic(tmp_path, "synced.py", workers=2, env=faulty(fault)) as job:
        state = state_of(job.finish())
    assert state == pytest.approx(state_of(printed_alone()), abs=CLOSE), job.story()
    assert job.sizes() == [2, 2]


@slow
@pytest.mark.parametrize(
    "fault", ["", "0:misses-norm-5", "1:misses-norm-2", "0:misses-share", "1:misses-share"]
)
def test_a_worker_that_skips_a_batch_adds_nothing_to_its_statistics(
    tmp_path: Path, fault: str
) -> None:
    with Elastic(tmp_path, "synced.py", "skips-before", workers=2, env=faulty(fault)) as job:
        state = state_of(job.finish())
    want = printed_alone("--without", "12", "24")
    assert state == pytest.approx(state_of(want), abs=CLOSE), job.story()


@slow
@pytest.mark.parametrize("how", ["skips-after", "breaks"])
def test_a_worker_may_leave_between_forward_and_backward_and_after_both(
    tmp_path: Path, how: str
) -> None:
    with Elastic(tmp_path, "synced.py", how, workers=3) as job:
        assert state_of(job.finish())
    assert lost(job) == []


@slow
def test_workers_in_different_layers_are_told_apart(tmp_path: Path) -> None:
    with Elastic(tmp_path, "synced.py", "differs", workers=2) as job:
        assert job.end() == 2
        because = job.wait_kind("error")["because"]
    assert because == (
        "worker 0 was in a SyncBatchNorm in epoch 1, step 25, with 3 channels; "
        "worker 1 was in a SyncBatchNorm in epoch 1, step 25, with 16 channels"
    )


def check_layer(device: str, dtype: Any, *, affine: bool, layout: Any) -> None:
    """Compare a layer's results with those of a plain BatchNorm: a worker's own sums are all."""
    exchange = SimpleNamespace(slice=SimpleNamespace(own=6), scale=0.25)
    peers = SimpleNamespace(total=lambda vector: vector)
    norm = SyncNorm(peers, exchange, nullcontext)  # type: ignore[arg-type]
    x = (3.0 + torch.randn(6, 5, 4, 4)).to(device, dtype).to(memory_format=layout)
    slope, close = torch.randn_like(x), 1e-2 if dtype == torch.bfloat16 else 1e-5
    results = []
    layers: list[Any] = [nn.BatchNorm2d(5, affine=affine), nn.SyncBatchNorm(5, affine=affine)]
    for layer in layers:
        layer.to(device)
        if affine:
            layer.weight.data.fill_(1.5)
        given = x.clone().requires_grad_()
        is_synced = isinstance(layer, nn.SyncBatchNorm)
        y = norm._normalised(layer, given) if is_synced else layer(given)
        y.backward(slope)
        found = [y, given.grad, layer.running_mean, layer.running_var]
        results.append([*found, *(parameter.grad for parameter in layer.parameters())])
    for plain, mine in zip(*results, strict=True):
        assert mine.dtype == plain.dtype
        assert mine.is_contiguous(memory_format=layout) or mine.dim() == 1
        torch.testing.assert_close(mine, plain, rtol=close, atol=close)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_layer_computes_what_batchnorm_does(dtype: Any, affine: bool, layout: Any) -> None:
    torch.manual_seed(0)
    check_layer("cpu", dtype, affine=affine, layout=layout)


def test_a_layer_wants_more_than_one_value_as_batchnorm_does() -> None:
    exchange = SimpleNamespace(slice=SimpleNamespace(own=1), scale=1.0)
    peers = SimpleNamespace(total=lambda vector: vector)
    norm = SyncNorm(peers, exchange, nullcontext)  # type: ignore[arg-type]
    for run in (nn.BatchNorm1d(3), lambda x: norm._normalised(nn.SyncBatchNorm(3), x)):
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            run(torch.ones(1, 3))

"""`nn.SyncBatchNorm` over the workers of the job: it normalises by statistics of the global batch.

torch's own forward looks for torch's default group, which does not exist here: it would run as a
plain BatchNorm. Here each forward and each backward of a layer adds a short vector up over the
workers. When one of them dies, the others add up what is left, within the user's forward or
backward. Gradients are sent in another group meanwhile, so the order of neither matters.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from coddl.runtime.worker.checks import has_syncnorm
from coddl.runtime.worker.exchange import Exchange
from coddl.runtime.worker.peers import Peers


class SyncNorm:
    """Stands in the place of `nn.SyncBatchNorm.forward`; alone and in evaluation that is run."""

    def __init__(
        self,
        peers: Peers,
        exchange: Exchange,
        waiting: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._peers = peers
        self._exchange = exchange
        self._waiting = waiting  # around what is waiting for others

    def install(self, models: Sequence[nn.Module]) -> None:
        """Take the place, for good, if a model has use for it."""
        if not has_syncnorm(models):
            return
        original = nn.SyncBatchNorm.forward

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def forward(module: nn.SyncBatchNorm, x: Tensor) -> Tensor:
            exchange = self._exchange
            if module.training and exchange.in_pass and exchange.is_shared:
                return self._normalised(module, x)
            return original(module, x)

        nn.SyncBatchNorm.forward = forward  # type: ignore[method-assign]
        self._exchange.has_norms = True
        torch.compiler.reset()  # a model that was compiled before would not notice

    def _normalised(self, module: nn.SyncBatchNorm, x: Tensor) -> Tensor:
        module._check_input_dim(x)
        module._check_non_zero_input_channels(x)
        mean, variance, count = self._statistics(x.detach())
        if module.track_running_stats:
            _follow(module, mean, variance * (count / (count - 1)))
        wide = torch.promote_types(x.dtype, torch.float32)
        dtype = module.weight.dtype if module.affine else wide
        given = [each.to(x.device, dtype) for each in (mean, variance)]
        result: Tensor = _Normalise.apply(  # type: ignore[no-untyped-call]
            x, module.weight, module.bias, *given, module.eps, count, self
        )
        return result

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor, int]:
        """Return mean and variance per channel over the global batch, and the number of values."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        moments = torch.var_mean(wide, [0, *range(2, x.dim())], correction=0)
        variance, mean = torch.stack(moments).cpu().double()
        count = x.numel() // x.shape[1]
        # A duplicate, which stands in where a worker has no sample, does not count.
        own = float(count if self._exchange.slice.own else 0)
        squares = variance + mean.square()
        with self._waiting():
            sums = self._peers.total(torch.cat([own * mean, own * squares, mean.new_tensor([own])]))
        if sums[-1]:  # else the workers that had the samples have died
            count = int(sums[-1])
            mean, squares = (sums[:-1] / count).chunk(2)
            variance = (squares - mean.square()).clamp_(min=0)
        if count == 1:
            raise ValueError(f"Expected more than 1 value per channel when training, got {x.shape}")
        return mean, variance, count

    def scaled_total(self, vector: Tensor) -> Tensor:
        """Add sums of gradients up over the workers; gives them as gradients of the own part."""
        scale = self._exchange.scale
        vector = vector.cpu().double() * scale
        with self._waiting():
            total = self._peers.total(vector)
        return total / scale if scale else torch.zeros_like(total)  # it counts nothing


class _Normalise(torch.autograd.Function):
    """Normalises by given statistics; its gradient knows that they depend on all workers' input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, *more: Any) -> Any:
        mean, variance, ctx.eps, ctx.count, ctx.norm = more
        ctx.save_for_backward(x, weight, mean, variance)
        return functional.batch_norm(x, mean, variance, weight, bias, eps=ctx.eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Return dx = w/σ · (dy - Σdy/N - x̂·Σ(dy·x̂)/N), with sums over all N values of a channel.

        (Ioffe and Szegedy, ICML '15.) The first term is that of fixed statistics.
        """
        x, given, mean, variance = ctx.saved_tensors
        weight = torch.ones_like(mean) if given is None else given  # CUDA's kernel wants one
        by = (variance + ctx.eps).rsqrt()
        dx, dw, db = torch.ops.aten.native_batch_norm_backward(
            *(dy, x, weight, mean, variance, *_saved(x, mean, by)),
            *(False, ctx.eps, [True, True, True]),
        )
        if ctx.needs_input_grad[0]:
            means = ctx.norm.scaled_total(torch.cat([dw, db])) / ctx.count
            slope, shift = (means.to(dw.device, dw.dtype) * (by * weight).repeat(2)).chunk(2)
            dx -= functional.batch_norm(x, mean, variance, slope, shift, eps=ctx.eps)
        wanted = zip((dx, dw, db), ctx.needs_input_grad, strict=False)
        return *(each if needed else None for each, needed in wanted), *[None] * 5


def _saved(x: Tensor, mean: Tensor, by: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return the statistics as a forward saves them: some kernels on a GPU read these alone."""
    if not x.is_cuda:
        return None, None
    wide = torch.promote_types(x.dtype, torch.float32)
    return mean.to(wide), by.to(wide)


@torch.no_grad()
def _follow(module: nn.SyncBatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Move a layer's running statistics towards those of a batch."""
    assert module.num_batches_tracked is not None
    assert module.running_mean is not None
    assert module.running_var is not None
    module.num_batches_tracked.add_(1)
    momentum = module.momentum
    if momentum is None:  # then they are the mean of all batches
        momentum = 1.0 / int(module.num_batches_tracked)
    for running, new in ((module.running_mean, mean), (module.running_var, variance)):
        running.lerp_(new.to(running.device, running.dtype), momentum)

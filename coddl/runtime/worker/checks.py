"""What a training can't have, found out before it begins; and what is likely to be a mistake."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from coddl.runtime.errors import TrainingError
from coddl.runtime.worker.state import parameters_of

WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel", "FSDPModule")
MIN_SLICE_BATCHNORM = 16
NO_EPOCHS = TrainingError(
    "the job can't be resized or suspended any more",
    "its script iterates over the loader a second time, in a loop over epochs that coddl does not "
    "know, so a worker that joins could not tell which epoch it is in",
    "for epoch in coddl.epochs(N): in the place of for epoch in range(N):",
)


def check_models(models: Sequence[nn.Module]) -> None:
    """Raise if a model can't be trained by several workers as it is."""
    for model in models:
        for module in model.modules():
            kinds = {kind.__name__ for kind in type(module).__mro__}
            if wrapper := next((name for name in WRAPPERS if name in kinds), None):
                raise TrainingError(
                    f"the model is wrapped in {wrapper}",
                    "it would exchange gradients by itself, in a group that can't be resized",
                    "the plain model: coddl.prepare(model, ...) exchanges its gradients",
                )
            if isinstance(module, nn.SyncBatchNorm) and module.process_group is not None:
                raise TrainingError(
                    "a SyncBatchNorm has a process group of its own",
                    "it is given the job's workers, which change",
                    "nn.SyncBatchNorm.convert_sync_batchnorm(model), without a process_group",
                )
            if getattr(module, "sparse", False) is True and isinstance(
                module, nn.Embedding | nn.EmbeddingBag
            ):
                raise TrainingError(
                    "an embedding has sparse gradients",
                    "they have another shape in every worker",
                    f"nn.{type(module).__name__}(..., sparse=False)",
                )


def has_syncnorm(models: Sequence[nn.Module]) -> bool:
    """Return whether a model normalises by the global batch."""
    return any(isinstance(m, nn.SyncBatchNorm) for model in models for m in model.modules())


def refuse_syncnorm(models: Sequence[nn.Module], *, with_: str) -> None:
    """Raise if a model normalises by the global batch, where workers run it in parts."""
    if has_syncnorm(models):
        raise TrainingError(
            f"the model has a SyncBatchNorm, and {with_}",
            "a batch is then run in parts, one after the other, and it needs all of it at once",
            f"nn.BatchNorm2d, which sees one part, or coddl.prepare without {with_}",
        )


def check_optimizers(optimizers: Sequence[Optimizer]) -> None:
    """Raise if optimizers can't be shared by several workers."""
    owned: set[int] = set()
    for optimizer in optimizers:
        parameters = list(parameters_of(optimizer))
        if not parameters:
            raise TrainingError(
                f"the {type(optimizer).__name__} has no parameters",
                "there is nothing to train",
                "model.parameters() given to the optimizer before coddl.prepare",
            )
        if shared := owned & {id(p) for p in parameters}:
            raise TrainingError(
                "a parameter belongs to two optimizers",
                f"{len(shared)} parameters would be updated twice in an iteration",
                "each parameter in one optimizer",
            )
        owned |= {id(p) for p in parameters}
        if any(getattr(p, "_post_accumulate_grad_hooks", None) for p in parameters):
            raise TrainingError(
                "an update is made inside backward()",
                "a parameter has a hook that runs when its gradient is complete, which is before "
                "gradients are exchanged",
                "optimizer.step() after backward()",
            )
    if len({p.device for optimizer in optimizers for p in parameters_of(optimizer)}) > 1:
        raise TrainingError(
            "parameters live on several devices",
            "gradients are exchanged as one",
            "all of the model on one device",
        )


def min_slice_of(models: Sequence[nn.Module], asked: int | None) -> int:
    """Return how many samples a worker must have: batch norm needs some, if it sees only those."""
    if asked is not None:
        if asked < 1:
            raise TrainingError(
                f"min_slice={asked} is no number of samples", "it must be at least 1", "min_slice=1"
            )
        return asked
    modules = [module for model in models for module in model.modules()]
    by_slice = [isinstance(m, _BatchNorm) and not isinstance(m, nn.SyncBatchNorm) for m in modules]
    return MIN_SLICE_BATCHNORM if any(by_slice) else 1


def warn_of(models: Sequence[nn.Module], loaders: Sequence[Any]) -> None:
    """Warn of what works, and is hardly what is meant."""
    first = next((p for model in models for p in model.parameters()), None)
    if first is not None and first.device.type == "cpu" and torch.cuda.is_available():
        warnings.warn(
            "coddl: the model is on the CPU and a GPU is there; model.to('cuda') before "
            "coddl.prepare uses it",
            stacklevel=4,
        )
    if any(loader.batch_size == 1 for loader in loaders[:1]):
        warnings.warn(
            "coddl: the batch size is 1, so only one worker can train; the batch is what workers "
            "share",
            stacklevel=4,
        )

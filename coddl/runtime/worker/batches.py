"""What may be done to a batch whatever it is made of: measured, cut, moved."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Batch = Any  # whatever the user's DataLoader or script gives


def samples_in(batch: Batch) -> int | None:
    """Count the samples of a batch: the length of its first tensor or list; None if there is none.

    In tuples, lists and dicts of tensors the first tensor tells.
    """
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else None
    parts = batch.values() if isinstance(batch, dict) else batch
    if isinstance(batch, dict | tuple | list):
        for part in parts:
            if isinstance(part, Tensor | dict | tuple | list) and (count := samples_in(part)):
                return count
        if isinstance(batch, list) and batch:
            return len(batch)
    return None


def cut(batch: Batch, part: range, of: int) -> Batch:
    """Return some samples of a batch; what does not have one entry per sample stays whole."""

    def cut_tensor(tensor: Tensor) -> Tensor:
        is_per_sample = tensor.ndim and len(tensor) == of
        return tensor[part.start : part.stop] if is_per_sample else tensor

    return mapped(batch, cut_tensor, lambda held: held[part.start : part.stop], of)


def moved(batch: Batch, device: torch.device) -> Batch:
    """Move a batch's tensors to a device; tuples, lists and dicts keep their shape."""
    return mapped(batch, lambda tensor: tensor.to(device, non_blocking=True))


def mapped(
    batch: Batch,
    on_tensor: Callable[[Tensor], Tensor],
    on_list: Callable[[list[Any]], list[Any]] | None = None,
    of: int | None = None,
) -> Batch:
    """Do something to every tensor, and to every list of `of` things that are no tensors."""
    if isinstance(batch, Tensor):
        return on_tensor(batch)

    def again(part: Batch) -> Batch:
        return mapped(part, on_tensor, on_list, of)

    if isinstance(batch, dict):
        return type(batch)((key, again(part)) for key, part in batch.items())
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(again, batch))
    if isinstance(batch, list) and on_list and len(batch) == of and not _has_tensors(batch):
        return on_list(batch)
    if isinstance(batch, list | tuple):
        return type(batch)(map(again, batch))
    return batch


def _has_tensors(held: list[Any]) -> bool:
    return any(isinstance(each, Tensor | dict | list | tuple) for each in held)

"""What a pass leaves behind: one tensor, or nothing, per parameter and per changed buffer."""

import torch
from torch import Tensor

Leaves = list[Tensor | None]


def added(sums: Leaves, leaves: Leaves) -> Leaves:
    """Add up leaf by leaf, in place; nothing plus nothing is nothing."""
    if not sums:
        return leaves
    both = [(s, x) for s, x in zip(sums, leaves, strict=True) if s is not None and x is not None]
    if both:
        torch._foreach_add_([s for s, _ in both], [x for _, x in both])
    return [x if s is None else s for s, x in zip(sums, leaves, strict=True)]


def number_of(value: float | Tensor) -> float:
    """Give a number, or a tensor of one element, as a float; waits for the GPU."""
    return float(value.detach()) if isinstance(value, Tensor) else float(value)

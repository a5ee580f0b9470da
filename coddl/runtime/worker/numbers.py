"""Numbers out of what a training script hands us."""

from torch import Tensor


def number_of(value: float | Tensor) -> float:
    """Return a number, or a tensor of one element, as a float; waits for the GPU."""
    return float(value.detach()) if isinstance(value, Tensor) else float(value)

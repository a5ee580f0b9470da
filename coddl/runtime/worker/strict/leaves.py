"""What a pass leaves behind: one tensor, or nothing, per parameter and per changed buffer."""

from torch import Tensor

Leaves = list[Tensor | None]

"""What a script asks `coddl.prepare` for."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from coddl.runtime.worker.exchange import Reduction
from coddl.runtime.worker.loader import Item


@dataclass(frozen=True, slots=True)
class Settings:
    """How a batch is cut, and what its parts weigh."""

    global_batch: int
    workers_max: int
    micro_batch: int | None = None
    reduction: Reduction = "mean"
    weight: Callable[[Item], float | Tensor] | None = None

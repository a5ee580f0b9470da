"""`micro_batch=N`: a slice that does not fit into memory, run in several passes of the loop.

Only the last pass of a slice makes the update. In the others `optimizer.step()` does nothing, nor
do schedulers, scalers and EMAs; what their `backward()` computes is kept aside and added up.
"""

from collections import deque
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from coddl.runtime.errors import TrainingError
from coddl.runtime.slices import slices
from coddl.runtime.worker import batches
from coddl.runtime.worker.gated_calls import gate_object, gate_scaler

Gradient = Tensor | None


class MicroBatches:
    """The parts of a slice, one pass each, and the gradients of those that are done."""

    def __init__(
        self, size: int, parameters: Callable[[], list[Tensor]], optimizers: Sequence[Optimizer]
    ) -> None:
        if size < 1:
            raise TrainingError(
                f"micro_batch={size} is no number of samples",
                "it must be at least 1",
                "micro_batch=16",
            )
        self._size = size
        self._parameters = parameters
        self._waiting: deque[tuple[Any, float]] = deque()  # batches, and their part of the slice
        self._part = 1.0
        self._is_first = True
        self._backwards = 0  # of this pass
        self._sums: dict[tuple[int, int], Tensor] = {}  # by backward and parameter
        self._bases: dict[int, Gradient] = {}  # what was in `.grad` before the slice
        self._before: dict[int, Gradient] = {}  # and before this backward
        for optimizer in optimizers:
            _gate_optimizer(optimizer, self.gate)

    @property
    def is_partial(self) -> bool:
        """Return whether more passes of this slice follow."""
        return bool(self._waiting)

    def gate(self, call: Callable[[], Any]) -> Any:
        """Run a call unless more passes of this slice follow."""
        return None if self.is_partial else call()

    def watch(self, thing: Any) -> None:
        """Have an object act once per update."""
        if isinstance(thing, GradScaler):
            gate_scaler(thing, self.gate)
        else:
            gate_object(thing, self.gate)

    def split(self, batch: Any) -> Any:
        """Cut a slice; gives its first part."""
        count = batches.samples_in(batch) or 1
        parts = slices(count, [1] * -(-count // self._size))
        cut = [(batches.cut(batch, part, count), len(part) / count) for part in parts]
        self._waiting = deque(cut if len(parts) > 1 else [(batch, 1.0)])
        self._sums, self._bases, self._is_first = {}, {}, True
        return self._begin()

    def take(self) -> Any:
        """Return the next part of the slice."""
        self._is_first = False
        return self._begin()

    def _begin(self) -> Any:
        batch, self._part = self._waiting.popleft()
        self._backwards = 0
        return batch

    def begin_backward(self) -> None:
        """Keep what `.grad` holds out of what is computed now."""
        if self._part == 1.0:
            return
        self._before = {id(p): p.grad for p in self._parameters()}
        for parameter in self._parameters():
            parameter.grad = None

    @torch.no_grad()
    def end_backward(self) -> None:
        """Add this part's gradient up; in the last part, `.grad` is that of the slice."""
        if self._part == 1.0:
            return
        number, self._backwards = self._backwards, self._backwards + 1
        if self._is_first and number == 0:
            self._bases = self._before
        for parameter in self._parameters():
            key = (number, id(parameter))
            if parameter.grad is not None:
                mine = parameter.grad * self._part
                self._sums[key] = self._sums[key].add_(mine) if key in self._sums else mine
            if self.is_partial:
                continue
            base = (self._bases if number == 0 else self._before).get(id(parameter))
            total = self._sums.get(key)
            parameter.grad = base if total is None else total if base is None else total + base

    @property
    def got(self) -> set[int]:
        """Name the parameters that have a gradient from any part."""
        return {parameter for _, parameter in self._sums}


def _gate_optimizer(optimizer: Optimizer, gate: Callable[[Callable[[], Any]], Any]) -> None:
    original = optimizer.step

    def step(_self: Optimizer, *args: Any, **named: Any) -> Any:
        return gate(lambda: original(*args, **named))

    # What schedulers leave on the method they find, so that they find it here, too.
    step.__dict__.update(getattr(original, "__func__", original).__dict__)
    # A bound method: schedulers look for its __func__.
    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]

"""How much of its GPU's memory a worker needs, measured once for every size of its slices.

Measuring begins after the first update with new slices and ends when every optimizer has made two
more, so that their state was there for the whole of a pass. Until then torch's count of the peak is
read and begun anew before and after each update, because an update may need more than the passes
before it, and does not need less with fewer samples. What runs between two epochs, such as an
evaluation, is left out: it does not depend on the slice.
"""

import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from coddl.runtime.wire import Message
from coddl.runtime.worker.guard import shapes_of
from coddl.runtime.worker.state import parameters_of

UPDATES_MIN: Final = 2  # of every optimizer


class DeviceMemory(Protocol):
    """The memory of a worker's device."""

    def restart(self) -> None:
        """Count the peak from now on."""

    @property
    def peak_bytes(self) -> int:
        """The most that tensors have had since."""

    @property
    def usable_bytes(self) -> int:
        """What this process may have of it, if no other has any."""


class CudaMemory:
    """A GPU's memory, as torch's allocator counts it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def restart(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    @property
    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self._device)

    @property
    def usable_bytes(self) -> int:
        # Other workers on this GPU are not counted: after a shrink they may be gone.
        total_bytes = torch.cuda.get_device_properties(self._device).total_memory
        return int(total_bytes * torch.cuda.get_per_process_memory_fraction(self._device))


def memory_of(device: torch.device) -> DeviceMemory | None:
    """Return a device's memory if it can be measured: the script's own allocators may not be."""
    counts = device.type == "cuda" and torch.cuda.get_allocator_backend() != "pluggable"
    return CudaMemory(device) if counts else None


class Footprint:
    """Measures the peak of a slice; costs nothing once it is known."""

    def __init__(self, memory: DeviceMemory | None, optimizers: Sequence[Optimizer]) -> None:
        self._memory = memory
        self._optimizers = optimizers
        self._hooks: list[Any] = []  # while it measures
        self._updates: Counter[int] | None = None  # since the count has begun
        self._peak_bytes = 0  # of passes since then
        self._update_bytes = 0  # of updates since then
        self._is_updating = False  # the count is that of an update alone
        self._depth = 0  # in updates: a subclass's `step` and the one that it calls both have hooks
        self._samples = 1
        self._is_alone = True

    def begin(self, samples: int, *, is_alone: bool) -> None:
        """Measure passes of that many samples."""
        self._samples, self._is_alone = samples, is_alone
        self._end()
        if self._memory is not None:
            for optimizer in self._optimizers:
                self._hooks.append(optimizer.register_step_pre_hook(self._before_update))
                self._hooks.append(optimizer.register_step_post_hook(self._after_update))

    def rest(self) -> None:
        """Leave out what runs from now to the next update."""
        if not self._is_complete:
            self._updates = None

    def take(self) -> Message | None:
        """Return what was measured, once, when it is. Not to be called within an update."""
        self._depth = 0  # an update may have been broken off by an error
        if self._memory is None or not self._hooks or not self._is_complete:
            return None
        self._end()
        trained = [p for o in self._optimizers for p in parameters_of(o) if p.requires_grad]
        return {
            "samples": self._samples,
            "peak_bytes": self._peak_bytes,
            "update_bytes": self._update_bytes,
            # What is sent to others is a copy of the gradients. In an update, it is the only one.
            "exchange_bytes": 0 if self._is_alone else sum(p.nbytes for p in trained),
            "device_bytes": self._memory.usable_bytes,
        }

    @property
    def _is_complete(self) -> bool:
        updates = self._updates
        return updates is not None and all(updates[id(o)] >= UPDATES_MIN for o in self._optimizers)

    def _before_update(self, _optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._depth += 1
        if self._depth > 1 or self._memory is None or self._updates is None or self._is_complete:
            return
        if kwargs.get("closure") or (len(args) > 1 and args[1]):
            return  # A closure runs passes within the update.
        self._peak_bytes = max(self._peak_bytes, self._memory.peak_bytes)
        self._memory.restart()
        self._is_updating = True

    def _after_update(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._depth -= 1
        if self._depth > 0 or self._memory is None or self._is_complete:
            return
        if self._updates is None:
            self._updates = Counter()
            self._peak_bytes = self._update_bytes = 0
        else:
            self._updates[id(optimizer)] += 1
            if self._is_updating:
                self._update_bytes = max(self._update_bytes, self._memory.peak_bytes)
            else:
                self._peak_bytes = max(self._peak_bytes, self._memory.peak_bytes)
        self._is_updating = False
        if not self._is_complete:
            self._memory.restart()

    def _end(self) -> None:
        self._updates, self._depth = None, 0
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def model_of(parameters: Sequence[Tensor], datasets: Sequence[Any], *, in_parts: bool) -> int:
    """Return a signature of models that need the same memory per sample: parameters and samples.

    `in_parts`: slices are run in several passes, which keeps a gradient more.
    """
    shapes = [(tuple(p.shape), str(p.dtype)) for p in parameters]
    samples = [shapes_of(dataset) for dataset in datasets]
    return zlib.crc32(repr((shapes, samples, in_parts)).encode())

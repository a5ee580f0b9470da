"""Host memory that CUDA copies to and from at full speed: pinned, in slices of a fixed size.

A copy must not cross from one slice to the next: CUDA refuses that.
"""

import mmap
import weakref
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor

SLICE_BYTES: Final = 256 << 20  # how much is allocated, touched or pinned at a time: about 0.1 s


def _cudart() -> Any:  # Any: torch does not say
    return torch.cuda.cudart()


def pin(memory: Tensor, device: torch.device) -> bool:
    """Register memory with CUDA, if it can be: copies out of a GPU run many times as fast."""
    with torch.cuda.device(device):
        if int(_cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), 0)) == 0:
            return True
        # CUDA would report the refusal at the next kernel, in the user's code: have it out here.
        with suppress(RuntimeError):
            torch.ones(1, device=device)
        return False


def unpin(memory: Tensor, device: torch.device) -> None:
    """Take memory back from CUDA."""
    with torch.cuda.device(device):
        _cudart().cudaHostUnregister(memory.data_ptr())


def slices(memory: Tensor, start: int, end: int) -> list[Tensor]:
    """Cut a range of memory, given in bytes, where one slice ends and the next begins."""
    first = (start // SLICE_BYTES + 1) * SLICE_BYTES
    cuts = [start, *range(first, end, SLICE_BYTES), end]
    return [memory[a:b] for a, b in pairwise(cuts)]


class HostBuffer:
    """Memory of this process for what leaves its device, kept for the next time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._pins: list[Tensor] = []
        # Memory that is freed while it is pinned makes CUDA copy to the wrong pages, silently,
        # when its addresses are used again.
        weakref.finalize(self, _unpin_all, self._pins, device).atexit = False

    @property
    def bytes_(self) -> int:
        return self._memory.numel()

    def grown(self, bytes_: int) -> Tensor:
        """Return a buffer of at least this size; if it has to grow, its contents are lost."""
        if self.bytes_ < bytes_:
            self.close()
            self._memory = torch.frombuffer(mmap.mmap(-1, bytes_), dtype=torch.uint8)
            for part in slices(self._memory, 0, bytes_) if self._device.type == "cuda" else ():
                if not pin(part, self._device):
                    break  # then copies take longer
                self._pins.append(part)
        return self._memory

    def close(self) -> None:
        """Give the memory back."""
        _unpin_all(self._pins, self._device)
        self._memory = torch.empty(0, dtype=torch.uint8)


def _unpin_all(parts: list[Tensor], device: torch.device) -> None:
    while parts:
        unpin(parts.pop(), device)

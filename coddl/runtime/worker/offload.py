"""Moves a worker's tensors off its device and back; they stay the tensors they are.

What is emptied and filled again is the storage under a tensor. So views, tied weights, parameter
groups, and what torch.compile has noted of parameters stay valid. On a GPU all tensors that Python
knows are moved, the job's own and all others of the script; on a CPU those of the job.
"""

import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from coddl.runtime.errors import TrainingError
from coddl.runtime.worker.pinned import HostBuffer, slices

ALIGN_BYTES: Final = 512
# What may stay allocated on a GPU: a moved storage leaves nothing, small leftovers are no reason
# to give up. Beyond it there is something that we can't see: CUDA graphs, say.
RESIDENT_BYTES_MAX: Final = 128 << 20


class HostCopy(NamedTuple):
    """A tensor, and its bytes in host memory in the order of its storage."""

    tensor: Tensor
    parts: Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class _Moved:
    storage: torch.UntypedStorage
    bytes_: int
    parts: Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class Offloaded:
    """What was moved, and what could not be."""

    bytes_: int  # of all storages that were moved
    resident_bytes: int  # that are still allocated on the device


class Offload:
    """What of a worker is in host memory instead of on its device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffer = HostBuffer(device)
        self._moved: list[_Moved] = []
        self._peak_bytes = 0

    @property
    def is_out(self) -> bool:
        return bool(self._moved)

    @property
    def buffer_bytes(self) -> int:
        """How much host memory it holds of its own."""
        return self._buffer.bytes_

    def move_out(self, copied: Sequence[HostCopy], others: Iterable[Tensor]) -> Offloaded:
        """Empty the storages of these tensors; `copied` are in host memory already."""
        assert not self._moved, "it is out"
        self._synchronize()
        parts = {_address(copy.tensor): copy.parts for copy in copied if _covers(copy)}
        known = [copy.tensor for copy in copied]
        storages = _storages([*known, *others], self._device)
        if self._device.type == "cuda":
            storages |= _storages(_all_tensors(), self._device)
        uncopied = {at: storage for at, storage in storages.items() if at not in parts}
        parts |= self._copied(uncopied)
        self._synchronize()
        for at, storage in storages.items():
            self._moved.append(_Moved(storage, storage.nbytes(), parts[at]))
            storage.resize_(0)
        return Offloaded(sum(each.bytes_ for each in self._moved), self._emptied())

    def move_back(self) -> None:
        """Fill the storages again; copies are complete on return.

        If the device has no room for them, all are empty as before, and it may be tried again.
        """
        try:
            for each in self._moved:
                _fill(each)
        except torch.OutOfMemoryError:
            self._synchronize()
            for each in self._moved:
                each.storage.resize_(0)
            self._emptied()
            raise
        self._synchronize()
        self._moved = []

    def device_bytes(self) -> int:
        """Wait for the device; return how much of its memory this process has allocated."""
        self._synchronize()
        return torch.cuda.memory_reserved(self._device) if self._device.type == "cuda" else 0

    def peak_bytes(self) -> int:
        """Return the most that was allocated, as far as this was asked before torch counts anew."""
        if self._device.type == "cuda":
            self._peak_bytes = max(self._peak_bytes, torch.cuda.max_memory_reserved(self._device))
        return self._peak_bytes

    def _copied(self, storages: dict[int, torch.UntypedStorage]) -> dict[int, Sequence[Tensor]]:
        """Copy storages into our own buffer."""
        starts, end = {}, 0
        for at, storage in storages.items():
            starts[at] = end
            end += -(-storage.nbytes() // ALIGN_BYTES) * ALIGN_BYTES
        memory = self._buffer.grown(end) if end else torch.empty(0)
        found: dict[int, Sequence[Tensor]] = {}
        for at, storage in storages.items():
            found[at] = slices(memory, starts[at], starts[at] + storage.nbytes())
            first, flat = 0, _flat(storage)
            for part in found[at]:
                part.copy_(flat[first : first + part.numel()], non_blocking=True)
                first += part.numel()
        return found

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _emptied(self) -> int:
        """Give freed memory back to the device; return how much is still allocated there."""
        if self._device.type != "cuda":
            return 0
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(self._device)


def kept_on_device(what: str, bytes_: int) -> TrainingError:
    """Return what follows from memory that stays allocated when all tensors have moved out."""
    return TrainingError(
        what,
        f"{bytes_ >> 20} MiB stay allocated on the GPU that belong to no tensor: CUDA graphs, or "
        "memory of a library",
        "a script without CUDA graphs (torch.compile without mode='reduce-overhead')",
    )


def _fill(moved: _Moved) -> None:
    """Give a storage its memory and its bytes again."""
    moved.storage.resize_(moved.bytes_)
    at, flat = 0, _flat(moved.storage)
    for part in moved.parts:
        flat[at : at + part.numel()].copy_(part, non_blocking=True)
        at += part.numel()


def _flat(storage: torch.UntypedStorage) -> Tensor:
    """See a storage as its bytes."""
    empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return empty.set_(storage, 0, (storage.nbytes(),), (1,))


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _covers(copy: HostCopy) -> bool:
    """Return whether a tensor is all of its storage, so that its copy is one of the storage."""
    tensor = copy.tensor
    if tensor.is_conj() or tensor.is_neg():
        return False
    bytes_ = sum(part.numel() for part in copy.parts)
    return tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() == bytes_


def _storages(tensors: Iterable[Tensor], device: torch.device) -> dict[int, torch.UntypedStorage]:
    """Return the storages of tensors on a device that can be emptied, each once, by address."""
    found: dict[int, torch.UntypedStorage] = {}
    for tensor in tensors:
        if tensor.device.type != device.type or tensor.layout is not torch.strided:
            continue
        storage = tensor.untyped_storage()
        try:
            address = storage.data_ptr()
        except RuntimeError:  # of a subclass that wraps other tensors, which are moved themselves
            continue
        if storage.nbytes() and storage.resizable():
            found[address] = storage
    return found


def _all_tensors() -> Iterator[Tensor]:
    """Yield every tensor that Python knows."""
    for each in gc.get_objects():
        if issubclass(type(each), Tensor):  # isinstance would ask objects that pretend
            yield each

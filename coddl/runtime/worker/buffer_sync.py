"""Keeps buffers equal to the main worker's: what forward reads must be the same on all workers.

BatchNorm's statistics are not read while the model trains: they follow at the end of an epoch.
"""

from collections.abc import Sequence
from typing import Final

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from coddl.runtime.worker.group import Group

BITS: Final = 62  # of a word: of further buffers, all follow when one does


class BufferSync:
    """The buffers of the models but those of BatchNorm, and which of them have changed."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        statistics = {
            id(buffer)
            for model in models
            for module in model.modules()
            if isinstance(module, _NormBase)
            for buffer in module.buffers(recurse=False)
        }
        found = {id(b): b for model in models for b in model.buffers() if id(b) not in statistics}
        self._buffers = list(found.values())
        self._versions = [buffer._version for buffer in self._buffers]

    def changed(self) -> int:
        """Return which have changed since they were last followed, a bit each."""
        mask = 0
        for number, (buffer, version) in enumerate(zip(self._buffers, self._versions, strict=True)):
            if buffer._version != version:
                mask |= 1 << min(number, BITS - 1)
        return mask

    def follow(self, group: Group, mask: int) -> None:
        """Take the main worker's values of those; raises `Broken`."""
        some = [b for n, b in enumerate(self._buffers) if mask >> min(n, BITS - 1) & 1]
        for buffer in some:
            held = buffer.detach().contiguous()
            group.finish(group.broadcast(held, 0))
            if group.rank and held.data_ptr() != buffer.data_ptr():
                buffer.detach().copy_(held)
        self._versions = [buffer._version for buffer in self._buffers]

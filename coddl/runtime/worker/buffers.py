"""Stages what forward does to a model's buffers, such as BatchNorm's running statistics.

Every pass starts from the published values, so a virtual node's effect doesn't depend on which
others its worker ran before. The effects are averaged in virtual-node order like gradients, and
published with the step: an iteration moves the statistics once, at any number of workers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from coddl.runtime.errors import TrainingError


class Buffers:
    """All buffers of the models; `live` are those that forward changes."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        named = {id(b): (name, b) for model in models for name, b in model.named_buffers()}
        self._names = [name for name, _ in named.values()]
        self.all = [buffer for _, buffer in named.values()]
        self.live: list[int] = []
        self._published: list[Tensor | None] = []
        self._versions: list[int] = []
        self._settled = False  # after the first pass no further buffer may become live
        self.rebase()

    def rebase(self) -> None:
        """Take the present values as published; after a restore."""
        keep = set(self.live) if self._settled else set(range(len(self.all)))
        self._published = [b.clone() if i in keep else None for i, b in enumerate(self.all)]
        self._versions = [b._version for b in self.all]

    def agreed(self) -> list[int] | None:
        """Tell which buffers forward changes, once that is known."""
        return list(self.live) if self._settled else None

    def agree(self, live: Sequence[int] | None) -> None:
        """Learn from another worker which buffers forward changes; takes the present values."""
        self.live = list(live or ())
        self._settled = live is not None
        self.rebase()

    def averaged(self) -> list[Tensor]:
        """Give the buffers whose changes are averaged: the live ones with fractions."""
        return [self.all[i] for i in self.live if self.all[i].is_floating_point()]

    @torch.no_grad()
    def undo(self) -> None:
        """Put back what a rehearsal changed, and forget what it showed."""
        for buffer, published in zip(self.all, self._published, strict=True):
            if published is not None:
                buffer.copy_(published)
        self.agree(None)

    @torch.no_grad()
    def begin_pass(self) -> None:
        """Put the published values back."""
        for i in self.live:
            published = self._published[i]
            assert published is not None
            self.all[i].copy_(published)
            self._versions[i] = self.all[i]._version

    def notice(self) -> bool:
        """After the first pass, find the buffers it changed; tells whether there are any."""
        if self._settled:
            self._check_others()
            return False
        self._settled = True
        # By value: batch norm's kernels change their statistics behind autograd's version counters.
        self.live = [
            i
            for i, (buffer, published) in enumerate(zip(self.all, self._published, strict=True))
            if published is not None and not torch.equal(buffer, published)
        ]
        self._published = [p if i in self.live else None for i, p in enumerate(self._published)]
        return bool(self.live)

    def _check_others(self) -> None:
        for i, buffer in enumerate(self.all):
            if buffer._version != self._versions[i] and i not in self.live:
                raise TrainingError(
                    f"buffer {self._names[i]} changed for the first time after the first pass",
                    "all workers must exchange the same buffers, and the first pass tells which",
                    "update it in every pass, or keep it in an object given to coddl.track",
                )

    @torch.no_grad()
    def deltas(self) -> list[Tensor | None]:
        """Give what the pass did to each averaged buffer."""
        found: list[Tensor | None] = []
        for i in self.live:
            published = self._published[i]
            assert published is not None
            if self.all[i].is_floating_point():
                found.append((self.all[i] - published).float())
        return found

    @torch.no_grad()
    def publish(self, means: Sequence[Tensor | None]) -> None:
        """Make the step's values those that count; counters keep the last pass's value."""
        rest = iter(means)
        for i in self.live:
            published = self._published[i]
            assert published is not None
            if self.all[i].is_floating_point():
                mean = next(rest)
                assert mean is not None
                published.add_(mean.to(published.dtype))
                self.all[i].copy_(published)
            else:
                published.copy_(self.all[i])
            self._versions[i] = self.all[i]._version

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
    """All buffers of the models; *live* are those that forward changes."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._models = models
        named = {id(b): (name, b) for model in models for name, b in model.named_buffers()}
        self._names = [name for name, _ in named.values()]
        self.all = [buffer for _, buffer in named.values()]
        self._live: list[int] | None = None  # not known before the first pass
        self._confirmed = False  # by an update; before it, the first iteration may begin again
        self._published: dict[int, Tensor] = {}
        self._versions: list[int] = []
        # The live ones and their published values: what has fractions is averaged, the rest counts.
        self._averaged: tuple[list[Tensor], list[Tensor]] = ([], [])
        self._counted: tuple[list[Tensor], list[Tensor]] = ([], [])
        self.agree(None)

    def agreed(self) -> list[int] | None:
        """Return which buffers forward changes, once that is known."""
        return self._live

    def agree(self, live: Sequence[int] | None) -> None:
        """Learn from another worker which buffers forward changes; takes the present values."""
        self._live = None if live is None else list(live)
        self._confirmed = live is not None
        kept = range(len(self.all)) if self._live is None else self._live
        self._published = {i: self.all[i].clone() for i in kept}
        self._versions = [buffer._version for buffer in self.all]
        self._sort()

    def exchanged(self) -> list[Tensor]:
        """Return the live buffers, in the order of their deltas."""
        return [*self._averaged[0], *self._counted[0]]

    @torch.no_grad()
    def undo(self) -> None:
        """Put back what passes changed, and forget what they showed."""
        for i, published in self._published.items():
            self.all[i].copy_(published)
        self.agree(None)

    def retreat(self) -> None:
        """Undo a first iteration that never came to its update: others may not have begun it."""
        if not self._confirmed:
            self.undo()

    @torch.no_grad()
    def begin_pass(self) -> None:
        """Put the published values back."""
        for live, published in (self._averaged, self._counted):
            if live:
                torch._foreach_copy_(live, published)

    def changed(self) -> list[bool]:
        """Return for each buffer whether the first pass has changed it.

        By value: batch norm's kernels change their statistics behind autograd's version counters.
        """
        now = {id(b): b for model in self._models for _, b in model.named_buffers()}
        for name, buffer in zip(self._names, self.all, strict=True):
            if id(buffer) not in now:
                raise TrainingError(
                    f"forward has put another tensor in the place of buffer {name}",
                    "a buffer is kept and exchanged as the tensor it was at coddl.prepare",
                    f"self.{name.rpartition('.')[2]}.copy_(...) instead of an assignment",
                )
        return [not torch.equal(self.all[i], p) for i, p in self._published.items()]

    def settle(self, live: Sequence[int]) -> None:
        """Take these for the live ones from now on; values before the first pass are published."""
        for i in live:
            if not self._published[i].isfinite().all():
                raise TrainingError(
                    f"buffer {self._names[i]} is not finite and is changed by forward",
                    "its changes are averaged over micro-batches, and infinity has no mean",
                    "a finite value to begin with, or an object given to coddl.track",
                )
        self._live = list(live)
        self._published = {i: self._published[i] for i in live}
        self._sort()

    def check_others(self) -> None:
        """Raise if a buffer has changed for the first time after the first pass."""
        for i, buffer in enumerate(self.all):
            if i not in self._published and buffer._version != self._versions[i]:
                raise TrainingError(
                    f"buffer {self._names[i]} changed for the first time after the first pass",
                    "all workers must exchange the same buffers, and the first pass decides which",
                    "update it in every pass, or keep it in an object given to coddl.track",
                )

    @torch.no_grad()
    def deltas(self, count_factor: float) -> list[Tensor]:
        """Return what the pass did to each live buffer; counters' part is multiplied."""
        live, published = self._averaged
        found = [d.float() for d in torch._foreach_sub(live, published)] if live else []
        for buffer, before in zip(*self._counted, strict=True):
            found.append((buffer.long() - before.long()).float() * count_factor)
        return found

    @torch.no_grad()
    def publish(self, means: Sequence[Tensor]) -> None:
        """Make the step's values those that count."""
        live, published = self._averaged
        if live:
            same = [mean.to(p.dtype) for mean, p in zip(means[: len(live)], published, strict=True)]
            torch._foreach_add_(published, same)
        for before, mean in zip(self._counted[1], means[len(live) :], strict=True):
            before.copy_(before.long() + mean.round().long())
        self.begin_pass()
        self._confirmed = True

    def _sort(self) -> None:
        self._averaged, self._counted = ([], []), ([], [])
        for i in self._live or ():
            kind = self._averaged if self.all[i].is_floating_point() else self._counted
            kind[0].append(self.all[i])
            kind[1].append(self._published[i])

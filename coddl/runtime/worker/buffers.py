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
        named = {id(b): (name, b) for model in models for name, b in model.named_buffers()}
        self._names = [name for name, _ in named.values()]
        self.all = [buffer for _, buffer in named.values()]
        self._live: list[int] | None = None  # not known before the first pass
        self._published: dict[int, Tensor] = {}
        self._versions: list[int] = []
        # The live ones and their published values: what has fractions is averaged, the rest counts.
        self._averaged: tuple[list[Tensor], list[Tensor]] = ([], [])
        self._counted: tuple[list[Tensor], list[Tensor]] = ([], [])
        self.agree(None)

    def agreed(self) -> list[int] | None:
        """Tell which buffers forward changes, once that is known."""
        return self._live

    def agree(self, live: Sequence[int] | None) -> None:
        """Learn from another worker which buffers forward changes; takes the present values."""
        self._live = None if live is None else list(live)
        kept = range(len(self.all)) if self._live is None else self._live
        self._published = {i: self.all[i].clone() for i in kept}
        self._versions = [buffer._version for buffer in self.all]
        self._sort()

    def averaged(self) -> list[Tensor]:
        """Give the live buffers whose changes are averaged."""
        return self._averaged[0]

    @torch.no_grad()
    def undo(self) -> None:
        """Put back what a rehearsal changed, and forget what it showed."""
        for i, published in self._published.items():
            self.all[i].copy_(published)
        self.agree(None)

    @torch.no_grad()
    def begin_pass(self) -> None:
        """Put the published values back."""
        for live, published in (self._averaged, self._counted):
            if live:
                torch._foreach_copy_(live, published)

    def notice(self) -> bool:
        """After the first pass, find the buffers it changed; tells whether there are any."""
        if self._live is not None:
            self._check_others()
            return False
        # By value: batch norm's kernels change their statistics behind autograd's version counters.
        self._live = [i for i, p in self._published.items() if not torch.equal(self.all[i], p)]
        self._published = {i: self._published[i] for i in self._live}
        self._sort()
        return bool(self._live)

    @torch.no_grad()
    def deltas(self) -> list[Tensor]:
        """Give what the pass did to each averaged buffer."""
        live, published = self._averaged
        return [d.float() for d in torch._foreach_sub(live, published)] if live else []

    @torch.no_grad()
    def publish(self, means: Sequence[Tensor]) -> None:
        """Make the step's values those that count; counters keep the last pass's value."""
        live, published = self._averaged
        if live:
            same = [mean.to(p.dtype) for mean, p in zip(means, published, strict=True)]
            torch._foreach_add_(published, same)
            torch._foreach_copy_(live, published)
        live, published = self._counted
        if live:
            torch._foreach_copy_(published, live)

    def _sort(self) -> None:
        self._averaged, self._counted = ([], []), ([], [])
        for i in self._live or ():
            kind = self._averaged if self.all[i].is_floating_point() else self._counted
            kind[0].append(self.all[i])
            kind[1].append(self._published[i])

    def _check_others(self) -> None:
        assert self._live is not None
        for i, buffer in enumerate(self.all):
            if i not in self._published and buffer._version != self._versions[i]:
                raise TrainingError(
                    f"buffer {self._names[i]} changed for the first time after the first pass",
                    "all workers must exchange the same buffers, and the first pass tells which",
                    "update it in every pass, or keep it in an object given to coddl.track",
                )

"""Means of an iteration's gradients over all virtual nodes, wherever they ran.

Every pass of the loop leaves its gradient here; the one that completes the iteration ends in
`finish`. What forward did to buffers travels along as differences, and so do a few *notes*: numbers
whose sum gives every worker the same information about all of them.
"""

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from coddl.runtime.errors import TrainingError
from coddl.runtime.worker.group import Group
from coddl.runtime.worker.strict.buffers import Buffers
from coddl.runtime.worker.strict.canonical import Canonical
from coddl.runtime.worker.strict.leaves import Leaves


class StrictExchange:
    """One job's exchange: the same calls at any number of workers."""

    def __init__(
        self,
        parameters: Sequence[Sequence[Tensor]],
        buffers: Buffers,
        *,
        virtual_nodes: int,
    ) -> None:
        self._optimizers = [list(of_one) for of_one in parameters]
        self.parameters = list({id(p): p for of_one in parameters for p in of_one}.values())
        self._place = {id(p): i for i, p in enumerate(self.parameters)}
        self._buffers = buffers
        self._virtual_nodes = virtual_nodes
        self._group: Group | None = None
        self._counts: Sequence[int] = (virtual_nodes,)
        self._reduction: Canonical | None = None
        self._node = 0
        self._leaves: Leaves = []
        self._stepped = [0] * len(parameters)
        self._present = [False] * len(self.parameters)

    def signature(self) -> int:
        """Return the layout's signature: workers whose signatures differ can't exchange."""
        shapes = [(tuple(p.shape), str(p.dtype)) for p in self.parameters]
        return zlib.crc32(repr(shapes).encode())

    def gradient_bytes(self) -> list[int]:
        """Return the size of each tensor that is exchanged."""
        return [p.numel() * p.element_size() for p in self.parameters if p.requires_grad]

    def sent_together(self) -> list[list[Tensor]]:
        """Return the parameters by type: the gradients of one type are one vector."""
        kinds = sorted({p.dtype for p in self.parameters}, key=str)
        trained = [p for p in self.parameters if p.requires_grad]
        return [[p for p in trained if p.dtype == kind] for kind in kinds]

    def join(self, group: Group | None, counts: Sequence[int]) -> None:
        """Exchange with these workers from now on; `counts` are the virtual nodes of each."""
        self._group, self._counts = group, counts
        self.restart()
        self._drop_layout()

    def restart(self) -> None:
        """Begin an iteration, or begin it again."""
        self._buffers.retreat()
        self._buffers.begin_pass()  # what a pass begun meanwhile did must not be taken for state
        self._stepped = [0] * len(self._optimizers)
        self._present = [False] * len(self.parameters)
        if self._reduction is not None:
            self._reduction.restart()

    def begin_pass(self, node: int) -> None:
        """Start a pass without gradients, from the published buffers."""
        self._node = node
        self._leaves = [None] * len(self.parameters)
        for parameter in self.parameters:
            parameter.grad = None
        self._buffers.begin_pass()

    def collect(self, optimizer: int) -> None:
        """Take the gradients one optimizer would step with now."""
        if self._collected(optimizer):
            raise TrainingError(
                "optimizer.step() was called twice in one pass of the loop",
                "one pass is one micro-batch, and gives each optimizer one gradient",
                "add the losses and call backward() and step() once",
            )
        self._stepped[optimizer] += 1
        for parameter in self._optimizers[optimizer]:
            place = self._place[id(parameter)]
            self._leaves[place] = _dense(parameter)
            self._present[place] |= parameter.grad is not None
            parameter.grad = None  # a later backward in this pass must not add to what we hold

    def end_pass(self) -> None:
        """Keep what the pass left; more passes follow in this iteration."""
        leaves = [*self._leaves, *self._deltas()]
        self._reduced().take(self._node, leaves)

    def finish(self, vote: bool) -> int:
        """End the iteration's last pass: means are in `.grad`, merged buffers are published.

        Gives the number of votes. Raises `Broken`.
        """
        leaves = [*self._leaves, *self._deltas()]
        notes = [float(vote), *map(float, self._stepped), *map(float, self._present)]
        means, heard = self._reduced().means(self._node, leaves, notes)
        self._check_stepped([round(count) for count in heard[1 : 1 + len(self._stepped)]])
        present = heard[1 + len(self._stepped) :]
        for parameter, mean, there in zip(self.parameters, means, present, strict=False):
            # A gradient that no worker had stays None, as it would alone: optimizers skip those.
            parameter.grad = mean if there > 0 else None
        self._buffers.publish([m for m in means[len(self.parameters) :] if m is not None])
        return round(heard[0])

    def _deltas(self) -> list[Tensor]:
        if self._buffers.agreed() is None:
            self._agree_on_buffers()
        self._buffers.check_others()
        # Counters follow the last virtual node, as they would alone; a mean must not divide them.
        is_final = self._node + 1 == self._virtual_nodes
        return self._buffers.deltas(float(self._virtual_nodes) if is_final else 0.0)

    def _agree_on_buffers(self) -> None:
        """Find, with all workers, the buffers that first passes have changed on any of them."""
        changed = self._buffers.changed()
        if self._group is not None and changed:
            flags = torch.tensor(changed, device=self.parameters[0].device).float()
            self._group.finish(self._group.all_reduce(flags))
            changed = [flag > 0 for flag in flags.tolist()]
        self._buffers.settle([i for i, has in enumerate(changed) if has])
        self._drop_layout()

    def _collected(self, optimizer: int) -> bool:
        return any(
            self._leaves[self._place[id(p)]] is not None for p in self._optimizers[optimizer]
        )

    def _check_stepped(self, counts: list[int]) -> None:
        """Raise unless each optimizer was stepped in all passes or none, and one at least was."""
        odd = [count for count in counts if count not in (0, self._virtual_nodes)]
        if odd or not any(counts):
            raise TrainingError(
                f"optimizer.step() was called in {max(odd, default=0)} of {self._virtual_nodes} "
                "passes of an iteration",
                "every pass of the loop gives one micro-batch of the global batch",
                "call step() in each pass; only the last one of an iteration has an effect",
            )

    def _drop_layout(self) -> None:
        self._reduction = None

    def _reduced(self) -> Canonical:
        if self._reduction is None:
            like = [*self.parameters, *(b.float() for b in self._buffers.exchanged())]
            self._reduction = Canonical(self._group, like, self._counts)
        return self._reduction


def _dense(parameter: Tensor) -> Tensor | None:
    if parameter.grad is not None and parameter.grad.is_sparse:
        raise TrainingError(
            "a gradient is sparse",
            f"a parameter of shape {tuple(parameter.shape)} has a sparse gradient",
            "nn.Embedding(..., sparse=False)",
        )
    return parameter.grad

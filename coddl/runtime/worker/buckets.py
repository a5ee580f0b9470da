"""Sums by all-reduce, in buckets that leave while backward still runs.

Buckets leave in the same order on every worker. The last one carries the notes and leaves in
`means`. If gradients change after buckets have left (backward runs a second time, the script edits
`.grad`), a note tells everybody, all buckets are sent again, and from then on none leaves early.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work
from torch.utils.hooks import RemovableHandle

from coddl.runtime.worker.group import Broken, Group
from coddl.runtime.worker.leaves import Leaves, added

BUCKET_BYTES: Final = 25 << 20
FIRST_BUCKET_BYTES: Final = 1 << 20  # small, so that sending starts early


@dataclass(slots=True)
class Bucket:
    """Neighbouring leaves in one flat vector, exchanged as one."""

    leaves: list[int]
    flat: Tensor
    views: list[Tensor]
    waiting: int = 0  # parameters whose gradient this backward has not produced yet
    work: Work | None = None
    sent: list[tuple[Tensor | None, int]] = field(default_factory=list)  # gradients that left early

    def has_changed(self, last: Leaves) -> bool:
        """Tell whether gradients were changed, or others put in their place, after they left."""
        return bool(self.sent) and any(
            grad is not last[leaf] or (grad is not None and grad._version != version)
            for leaf, (grad, version) in zip(self.leaves, self.sent, strict=True)
        )

    def fill(self, sums: Leaves, last: Leaves, scale: float) -> None:
        """Write (sum + last) * scale of each leaf into the flat vector."""
        copied: tuple[list[Tensor], list[Tensor]] = ([], [])
        more: tuple[list[Tensor], list[Tensor]] = ([], [])
        for view, leaf in zip(self.views, self.leaves, strict=True):
            parts = [
                part for part in (sums[leaf] if sums else None, last[leaf]) if part is not None
            ]
            if not parts:
                view.zero_()
                continue
            copied[0].append(view)
            copied[1].append(parts[0])
            if len(parts) == 2:
                more[0].append(view)
                more[1].append(parts[1])
        if copied[0]:
            torch._foreach_copy_(*copied)
        if more[0]:
            torch._foreach_add_(*more)
        if scale != 1.0:
            self.flat.mul_(scale)


class Buckets:
    """The default reduction. Equal up to the order of additions for any number of workers."""

    def __init__(
        self,
        group: Group,
        parameters: Sequence[Tensor],
        buffers: Sequence[Tensor],
        *,
        notes: int,
        scale: float,
        overlap: bool,
    ) -> None:
        self.overlap = overlap
        self._group = group
        self._parameters = list(parameters)
        self._scale = scale
        self._sums: Leaves = []
        self._armed = False
        self._dirty = False
        self._failure: Broken | None = None
        self._buckets = _laid_out(self._parameters, buffers, notes + 1)
        tail = self._buckets[-1].flat
        self._notes = tail[tail.numel() - notes - 1 :]
        self._bucket_of = {
            id(self._parameters[leaf]): bucket
            for bucket in self._buckets
            for leaf in bucket.leaves
            if leaf < len(self._parameters)
        }
        self._hooks: list[RemovableHandle] = []
        if overlap:
            self._hooks = [
                parameter.register_post_accumulate_grad_hook(self._on_gradient)
                for parameter in self._parameters
                if parameter.requires_grad
            ]

    def close(self) -> None:
        """Let go of the parameters."""
        for hook in self._hooks:
            hook.remove()

    def restart(self) -> None:
        self._sums = []
        self._armed = self._dirty = False
        self._failure = None
        for bucket in self._buckets:
            bucket.work = None
            bucket.sent = []

    def arm(self) -> None:
        self._armed = self.overlap
        for bucket in self._buckets:
            bucket.waiting = sum(
                self._parameters[leaf].requires_grad
                for leaf in bucket.leaves
                if leaf < len(self._parameters)
            )

    def take(self, node: int, leaves: Leaves) -> None:  # noqa: ARG002
        self._sums = added(self._sums, leaves)

    def means(
        self,
        node: int,  # noqa: ARG002
        leaves: Leaves,
        notes: Sequence[float],
    ) -> tuple[Leaves, list[float]]:
        self._armed = False
        self._dirty |= any(bucket.has_changed(leaves) for bucket in self._buckets)
        heard = self._summed(leaves, notes)
        if heard[-1] > 0:
            self.overlap = self._dirty = False
            heard = self._summed(leaves, notes)
        means: Leaves = [None] * len(leaves)
        for bucket in self._buckets:
            for leaf, view in zip(bucket.leaves, bucket.views, strict=True):
                means[leaf] = view
        return means, heard[:-1]

    def _summed(self, leaves: Leaves, notes: Sequence[float]) -> list[float]:
        for bucket in self._buckets[:-1]:
            if bucket.work is None:
                self._send(bucket, leaves)
        self._send(self._buckets[-1], leaves, [*notes, float(self._dirty)])
        if self._failure is not None:
            raise self._failure
        for bucket in self._buckets:
            assert bucket.work is not None
            self._group.finish(bucket.work)
            bucket.work = None
            bucket.sent = []
        return self._notes.tolist()

    def _send(self, bucket: Bucket, last: Leaves, notes: Sequence[float] = ()) -> None:
        if self._failure is not None:
            return
        bucket.fill(self._sums, last, self._scale)
        if notes:
            self._notes.copy_(torch.tensor(notes))
        try:
            bucket.work = self._group.all_reduce(bucket.flat)
        except Broken as failure:  # kept for `means`: backward is the user's code
            self._failure = failure

    def _on_gradient(self, parameter: Tensor) -> None:
        """Count a gradient that autograd has finished; send the buckets that are full now."""
        if not self._armed:
            return
        bucket = self._bucket_of[id(parameter)]
        if bucket.work is not None:
            self._dirty = True
        bucket.waiting -= 1
        for bucket in self._buckets[:-1]:
            if bucket.work is None:
                if bucket.waiting > 0 or self._failure is not None:
                    return
                last: Leaves = [None] * len(self._parameters)
                for leaf in bucket.leaves:
                    last[leaf] = self._parameters[leaf].grad
                self._send(bucket, last)
                grads = (last[leaf] for leaf in bucket.leaves)
                bucket.sent = [(grad, 0 if grad is None else grad._version) for grad in grads]


def _laid_out(parameters: list[Tensor], buffers: Sequence[Tensor], notes: int) -> list[Bucket]:
    """Cut the leaves into buckets, last parameters first: backward makes them in that order."""
    groups: list[list[int]] = []
    size = 0
    for leaf in reversed(range(len(parameters))):
        tensor = parameters[leaf]
        limit = FIRST_BUCKET_BYTES if len(groups) == 1 else BUCKET_BYTES
        if not groups or size >= limit or tensor.dtype != parameters[groups[-1][-1]].dtype:
            groups.append([])
            size = 0
        groups[-1].append(leaf)
        size += tensor.nbytes
    if not groups or parameters[groups[-1][-1]].dtype != torch.float32:
        groups.append([])  # notes and buffers need 32 bits
    made = [_bucket(group, parameters, (), 0) for group in groups[:-1]]
    return [*made, _bucket(groups[-1], parameters, buffers, notes)]


def _bucket(
    leaves: list[int], parameters: list[Tensor], buffers: Sequence[Tensor], notes: int
) -> Bucket:
    like = [parameters[leaf] for leaf in leaves] + list(buffers)
    device = (parameters + list(buffers))[0].device
    dtype = parameters[leaves[0]].dtype if leaves else torch.float32
    flat = torch.zeros(sum(t.numel() for t in like) + notes, dtype=dtype, device=device)
    views = []
    offset = 0
    for tensor in like:
        piece = flat[offset : offset + tensor.numel()]
        # Gradients have their parameter's memory layout; their place here has it too, for speed.
        strides = torch.empty_like(tensor, device="meta").stride()
        views.append(piece.as_strided(tensor.size(), strides, piece.storage_offset()))
        offset += tensor.numel()
    numbers = [*leaves, *range(len(parameters), len(parameters) + len(buffers))]
    return Bucket(numbers, flat, views)

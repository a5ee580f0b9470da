"""The canonical sum over virtual nodes: the same bits for any number of workers.

The sum is a fixed binary tree over virtual nodes. A worker sums the largest subtrees it owns whole.
The rest of the tree is summed on equal slices of the vector, one slice per worker, and the slices
are put together. Addition is element by element, so slicing changes no bit, and when ownership is
even it costs no more traffic than a ring.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coddl.runtime.vnodes import owned_by
from coddl.runtime.worker.group import Group
from coddl.runtime.worker.strict.leaves import Leaves


@dataclass(frozen=True, slots=True)
class SumNode:
    """A subtree: virtual nodes first .. first + size - 1, where size is a power of two."""

    first: int
    size: int


class Canonical:
    """The reduction behind `strict=True`."""

    def __init__(self, group: Group | None, like: Sequence[Tensor], counts: Sequence[int]) -> None:
        self._group = group if group is not None and group.world > 1 else None
        self._counts = counts
        self._like = like
        self._kinds = sorted({tensor.dtype for tensor in like}, key=str)
        self._parts: dict[torch.dtype, list[tuple[SumNode, Tensor]]] = {}
        self.restart()

    def restart(self) -> None:
        """Forget this iteration."""
        self._parts = {kind: [] for kind in self._kinds}

    def take(self, node: int, leaves: Leaves) -> None:
        """Keep the leaves of a pass; they may be changed."""
        for kind, parts in self._parts.items():
            parts.append((SumNode(node, 1), self._flat(kind, leaves)))
            while len(parts) > 1 and _siblings(parts[-2][0], parts[-1][0]):
                right, added = parts.pop()
                left, total = parts.pop()
                parts.append((SumNode(left.first, left.size + right.size), total.add_(added)))

    def means(
        self, node: int, leaves: Leaves, notes: Sequence[float]
    ) -> tuple[Leaves, list[float]]:
        """Take the last pass; give means over virtual nodes and sums of the notes.

        Raises `Broken` when the group failed.
        """
        self.take(node, leaves)
        means: Leaves = [None] * len(self._like)
        for kind, parts in self._parts.items():
            flat = self._total(parts).mul_(1.0 / sum(self._counts))
            offset = 0
            for leaf, tensor in enumerate(self._like):
                if tensor.dtype == kind:
                    means[leaf] = flat[offset : offset + tensor.numel()].view(tensor.shape)
                    offset += tensor.numel()
        if self._group is None:
            return means, list(notes)
        heard = torch.tensor(notes, device=self._like[0].device)
        self._group.finish(self._group.all_reduce(heard))
        return means, heard.tolist()

    def _flat(self, kind: torch.dtype, leaves: Leaves) -> Tensor:
        return torch.cat(
            [
                (tensor.new_zeros(tensor.numel()) if leaf is None else leaf.reshape(-1))
                for tensor, leaf in zip(self._like, leaves, strict=True)
                if tensor.dtype == kind
            ]
        )

    def _total(self, parts: Sequence[tuple[SumNode, Tensor]]) -> Tensor:
        if self._group is None:
            return _root(dict(parts), sum(self._counts))
        group, length = self._group, parts[0][1].numel()
        slice_ = -(-length // group.world)
        nodes_of = [subtrees(owned_by(rank, self._counts)) for rank in range(group.world)]
        mine = parts[0][1].new_zeros(len(parts), group.world * slice_)
        for row, (_, value) in zip(mine, parts, strict=True):
            row[:length] = value
        # Rank r sums slice r: every part's slice r goes there.
        sent = mine.view(len(parts), group.world, slice_).transpose(0, 1).contiguous()
        received = mine.new_empty(sum(map(len, nodes_of)), slice_)
        sizes = [len(nodes) * slice_ for nodes in nodes_of]
        to_each = [len(parts) * slice_] * group.world
        group.finish(group.all_to_all(received.view(-1), sent.view(-1), sizes, to_each))
        everybodys = [node for nodes in nodes_of for node in nodes]
        summed = _root(dict(zip(everybodys, received, strict=True)), sum(self._counts))
        whole = mine.new_empty(group.world * slice_)
        group.finish(group.all_gather(whole, summed.contiguous()))
        return whole[:length]


def subtrees(owned: range) -> list[SumNode]:
    """Return the largest whole subtrees of a range, in order."""
    nodes: list[SumNode] = []
    for leaf in owned:
        nodes.append(SumNode(leaf, 1))
        while len(nodes) > 1 and _siblings(nodes[-2], nodes[-1]):
            right, left = nodes.pop(), nodes.pop()
            nodes.append(SumNode(left.first, left.size + right.size))
    return nodes


def _siblings(left: SumNode, right: SumNode) -> bool:
    return left.size == right.size and left.first % (2 * left.size) == 0


def _root(values: dict[SumNode, Tensor], virtual_nodes: int) -> Tensor:
    size = 1
    while size < virtual_nodes:
        size *= 2
    root = _sum(values, SumNode(0, size), virtual_nodes)
    assert root is not None
    return root


def _sum(values: dict[SumNode, Tensor], node: SumNode, virtual_nodes: int) -> Tensor | None:
    if node.first >= virtual_nodes:
        return None  # beyond the last virtual node: that branch is not there
    if (found := values.get(node)) is not None:
        return found
    assert node.size > 1, f"virtual node {node.first} is missing from the sum"
    half = node.size // 2
    left = _sum(values, SumNode(node.first, half), virtual_nodes)
    right = _sum(values, SumNode(node.first + half, half), virtual_nodes)
    assert left is not None
    return left if right is None else torch.add(left, right)

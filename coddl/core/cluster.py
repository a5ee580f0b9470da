"""The machines: nodes, the kinds of GPU they hold, and which of them may be used now."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from coddl.core.columns import IntColumn


@dataclass(frozen=True, slots=True)
class Node:
    """One machine with GPUs of one kind."""

    name: str
    gpus: int
    kind: int = 0  # index into Cluster.kinds
    rack: int = 0
    healthy: bool = True


@dataclass(frozen=True)
class Cluster:
    """The nodes of a pool. GPU g of the cluster counts through the nodes in order."""

    nodes: tuple[Node, ...]
    kinds: tuple[str, ...] = ("gpu",)

    @classmethod
    def of(cls, gpus: int, gpus_per_node: int | None = None) -> Self:
        """A cluster of one kind: a single pool of `gpus`, or nodes of `gpus_per_node` each."""
        per_node = gpus_per_node or max(gpus, 1)
        whole, rest = divmod(gpus, per_node)
        sizes = [per_node] * whole + ([rest] if rest else [])
        return cls(tuple(Node(f"node-{i}", size) for i, size in enumerate(sizes)))

    @cached_property
    def gpus(self) -> IntColumn:
        """Usable GPUs of each kind."""
        total = np.zeros(len(self.kinds), np.int64)
        for node in self.nodes:
            if node.healthy:
                total[node.kind] += node.gpus
        return total

    @cached_property
    def gpus_total(self) -> int:
        """Usable GPUs of all kinds together."""
        return int(self.gpus.sum())

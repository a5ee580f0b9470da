"""The machines: nodes, the kinds of GPU they hold, and how they are wired."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from coddl.core.columns import IntColumn


@dataclass(frozen=True, slots=True)
class Node:
    """One machine with GPUs of one kind."""

    name: str
    gpus: int
    kind: int = 0  # index into Cluster.kinds
    rack: int = 0
    island_gpus: int = 0  # GPUs that one fast link joins; 0: all of the node's
    cpus: int = 0  # cores; 0: they are not counted


@dataclass(frozen=True, slots=True)
class Link:
    """How fast two GPUs talk."""

    gb_s: float  # gigabytes a second
    latency_us: float


@dataclass(frozen=True, slots=True)
class Links:
    """The classes of links, by what two GPUs have in common; the defaults are of 2019's servers."""

    island: Link = Link(20.0, 5.0)  # an island of a node: NVLink, or one PCIe switch
    node: Link = Link(10.0, 10.0)  # a node: across sockets
    rack: Link = Link(5.0, 15.0)  # a rack: its InfiniBand domain
    cluster: Link = Link(1.25, 50.0)  # nothing but the cluster: Ethernet


class ClusterColumns(NamedTuple):
    """A cluster in the form kernels take.

    GPUs are counted by island; a node without islands is one. The islands of a node come one after
    the other, so those of node n are first[n] .. first[n+1]-1.
    """

    island_gpus: IntColumn
    island_node: IntColumn
    first: IntColumn
    node_gpus: IntColumn
    node_kind: IntColumn
    node_rack: IntColumn
    node_cpus: IntColumn


@dataclass(frozen=True)
class Cluster:
    """The nodes of a pool."""

    nodes: tuple[Node, ...]
    kinds: tuple[str, ...] = ("gpu",)
    links: Links = field(default_factory=Links)

    @classmethod
    def of(cls, gpus: int, gpus_per_node: int | None = None) -> Self:
        """A cluster of one kind: a single pool of `gpus`, or nodes of `gpus_per_node` each."""
        per_node = gpus_per_node or max(gpus, 1)
        whole, rest = divmod(gpus, per_node)
        sizes = [per_node] * whole + ([rest] if rest else [])
        return cls(tuple(Node(f"node-{i}", size) for i, size in enumerate(sizes)))

    @cached_property
    def gpus(self) -> IntColumn:
        """GPUs of each kind."""
        total = np.zeros(len(self.kinds), np.int64)
        for node in self.nodes:
            total[node.kind] += node.gpus
        return total

    @cached_property
    def gpus_total(self) -> int:
        """GPUs of all kinds together."""
        return int(self.gpus.sum())

    @cached_property
    def columns(self) -> ClusterColumns:
        """The same, for kernels."""
        sizes, homes, first = [], [], [0]
        for at, node in enumerate(self.nodes):
            left = node.gpus
            while left > 0:
                sizes.append(min(left, node.island_gpus or left))
                homes.append(at)
                left -= sizes[-1]
            first.append(len(sizes))
        nodes = self.nodes
        columns = (
            sizes,
            homes,
            first,
            [node.gpus for node in nodes],
            [node.kind for node in nodes],
            [node.rack for node in nodes],
            [node.cpus for node in nodes],
        )
        return ClusterColumns(*(np.array(column, np.int64) for column in columns))

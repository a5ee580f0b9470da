"""How long GPUs take to exchange gradients: the formulas, for a link and for an arrangement.

For n members, x bytes, a link of B bytes a second, l seconds a message and c seconds a call:

    ring            c + 2(n-1) l + 2(n-1)/n x/B       each sends 2(n-1)/n of the bytes
    tree            c + 2 ceil(log2 n) l + 2 x/B      fewer messages, more bytes: up, then down
    hierarchical    a ring within each node, then one of nodes: one copy goes over the network
    sharded         c + (n-1) l + (n-1)/n x/B         half a ring: each ends with 1/n of the sum
    servers         c + 2 l + 2 max(n/p, 1) x/B       to p parameter servers, and back

A ring or tree over several nodes is as slow as its slowest link. A link that was measured knows by
what factor an all-reduce of some size is off from these: rings and trees take it into account.
"""

from math import ceil, log2
from typing import Literal, Protocol, TypeVar

from coddl.core.columns import FloatColumn

AllReduce = Literal["ring", "tree", "hierarchical"]
Quantity = TypeVar("Quantity", float, FloatColumn)


class Wire(Protocol):
    """What the formulas ask of a link."""

    @property
    def gb_s(self) -> float:
        """Gigabytes a second."""

    @property
    def latency_us(self) -> float:
        """Microseconds of a message."""


class CalledWire(Wire, Protocol):
    """A link that was measured with all that an exchange takes."""

    @property
    def call_us(self) -> float:
        """Microseconds of a call by itself."""

    def factor(self, workers: int, bytes_: float) -> float:
        """How many times as long an all-reduce takes as the formulas say."""


def ring_all_reduce_s(
    members: Quantity, bytes_: Quantity, link: Wire, call_us: float = 0.0
) -> Quantity:
    """Seconds in which a ring averages; for numbers, or columns of them. One member takes none."""
    messages = 2.0 * (members - 1.0)
    fixed_s = call_us * 1e-6 * (members > 1) + messages * (link.latency_us * 1e-6)
    return fixed_s + messages / members * bytes_ / (link.gb_s * 1e9)


def ring_s(members: int, bytes_: float, link: CalledWire) -> float:
    """Seconds in which a ring averages, the call included."""
    by_formula_s = ring_all_reduce_s(float(members), bytes_, link, link.call_us)
    return by_formula_s * link.factor(members, bytes_)


def tree_s(members: int, bytes_: float, link: CalledWire) -> float:
    """Seconds in which a tree averages, in pieces that follow each other up and down."""
    if members < 2:
        return 0.0
    messages = 2 * ceil(log2(members))
    fixed_s = (link.call_us + messages * link.latency_us) * 1e-6
    return (fixed_s + 2.0 * bytes_ / (link.gb_s * 1e9)) * link.factor(members, bytes_)


def half_ring_s(members: int, bytes_: float, link: CalledWire) -> float:
    """Seconds in which a ring adds up shares, one for each member, or gathers them."""
    if members < 2:
        return 0.0
    fixed_s = (link.call_us + (members - 1) * link.latency_us) * 1e-6
    return fixed_s + (members - 1) / members * bytes_ / (link.gb_s * 1e9)


def served_s(workers: int, servers: int, bytes_: float, link: CalledWire) -> float:
    """Seconds in which workers send gradients to parameter servers and fetch the results.

    A server receives and sends 1/p of the bytes of all workers, a worker all of its own bytes.
    """
    if workers < 2:
        return 0.0
    fixed_s = (link.call_us + 2.0 * link.latency_us) * 1e-6
    return fixed_s + 2.0 * max(workers / servers, 1.0) * bytes_ / (link.gb_s * 1e9)


def all_reduce_s(
    algorithm: AllReduce, on_nodes: tuple[int, ...], bytes_: float, within: CalledWire | None,
    between: CalledWire | None,
) -> float:  # fmt: skip
    """Seconds in which workers, `on_nodes` per node, average; a link without use may be None."""
    workers, widest, nodes = sum(on_nodes), max(on_nodes), len(on_nodes)
    if algorithm == "hierarchical":
        inner_s = ring_s(widest, bytes_, within) if within and widest > 1 else 0.0
        return inner_s + (ring_s(nodes, bytes_, between) if between and nodes > 1 else 0.0)
    one = ring_s if algorithm == "ring" else tree_s
    used = [link for link, is_used in ((within, widest > 1), (between, nodes > 1)) if is_used]
    return max((one(workers, bytes_, link) for link in used if link), default=0.0)

"""Step time on any GPUs of a cluster, estimated from what a single GPU tells.

One GPU shows how long a step computes and how large the gradients are, bucket by bucket with the
moment from which each can be sent. The links are measured once per cluster. A step then replays
the buckets: each is sent when it is ready and the one before is through,

    end_i = max(ready_i, end_(i-1)) + sync_i,    step = max(compute, end_last)

which is the same as step = max(compute, max over i of ready_i + sync_i + … + sync_last): what comes
out late is the longest chain of buckets that wait for each other. Gradients are averaged in rings,
of n members that each send 2(n-1)/n of the bytes in 2(n-1) messages.
"""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from coddl.core.cluster import Cluster, Link, Links, Node
from coddl.core.columns import FloatColumn, FloatCube, FloatMatrix, IntColumn
from coddl.core.speed.collectives import ring_all_reduce_s
from coddl.core.speed.places import Places, plain

BUCKET_BYTES: Final = 25e6  # as PyTorch's data parallelism cuts gradients
BUCKETS_MOST: Final = 64  # of any model: to cut finer changes an estimate by little
BACKWARD: Final = 2 / 3  # of the computation: two of the three multiplications of every layer
NODE_GPUS_MEASURED: Final = 4  # of the nodes that the packaged step times were measured on
GPUS_MOST, NODES_MOST = 256, 64  # of what is tabulated; beyond, tables go on as they end
MESSAGES: Final = 10.0  # cost of a unit of parameters, as a multiple of a message's own cost

Number: TypeAlias = int | IntColumn
Algorithm = Literal["hierarchical", "flat"]


class Model(NamedTuple):
    """What a model exchanges in a step."""

    gradient_bytes: float
    skew: float  # the largest tensor's part of them


class Buckets(NamedTuple):
    """Gradients in the order in which they are sent."""

    ready: FloatColumn  # the part of the computation after which each can be sent
    size_bytes: FloatColumn


class Spread(NamedTuple):
    """How GPUs lie: on how many islands, nodes and racks; numbers, or columns of them."""

    gpus: Number
    islands: Number = 1
    nodes: Number = 1
    racks: Number = 1


def even_buckets(model: Model, bucket_bytes: float = BUCKET_BYTES) -> Buckets:
    """Gradients in equal buckets that become ready evenly over the backward pass.

    A tensor is sent whole, so the largest one is the least that a bucket can be: a model with most
    of its parameters in one tensor has nothing to overlap.
    """
    largest = max(bucket_bytes, model.skew * model.gradient_bytes)
    count = min(max(1, round(model.gradient_bytes / largest)), BUCKETS_MOST)
    ready = 1.0 - BACKWARD + BACKWARD * np.arange(1, count + 1) / count
    return Buckets(ready, np.full(count, model.gradient_bytes / count))


def ring_s(members: Number, size_bytes: FloatColumn, link: Link) -> FloatCube:
    """Seconds in which a ring averages each bucket, in a further last axis."""
    ring: FloatCube = ring_all_reduce_s(
        np.asarray(members, np.float64)[..., None], size_bytes, link
    )
    return ring


def sync_s(
    spread: Spread, size_bytes: FloatColumn, links: Links, algorithm: Algorithm = "hierarchical"
) -> FloatCube:
    """Seconds in which the GPUs average each bucket, in a further last axis.

    hierarchical  in a ring within each island, then one of islands within each node, of nodes
                  within each rack, and of racks: one copy goes over each slower link
    flat          in one ring of all GPUs, as fast as the slowest link in it
    """
    gpus, islands, nodes, racks = (np.asarray(each, np.int64) for each in spread)
    if algorithm == "hierarchical":
        members = (gpus, islands), (islands, nodes), (nodes, racks), (racks, np.int64(1))
        rings = [-(-inner // outer) for inner, outer in members]
        classes = (links.island, links.node, links.rack, links.cluster)
        parts = [ring_s(n, size_bytes, link) for n, link in zip(rings, classes, strict=True)]
        return parts[0] + parts[1] + parts[2] + parts[3]
    out = ring_s(gpus, size_bytes, links.island)
    for several, link in ((islands, links.node), (nodes, links.rack), (racks, links.cluster)):
        slower = np.maximum(out, ring_s(gpus, size_bytes, link))
        out = np.where((several > 1)[..., None], slower, out)
    return out


def step_s(compute_s: FloatColumn, ready: FloatColumn, sync: FloatCube) -> FloatMatrix:
    """Seconds of a step whose buckets take so long to average: the replay above."""
    chains = _chains(sync)
    ends = ready * np.asarray(compute_s)[..., None] + chains
    longest: FloatMatrix = np.maximum(compute_s, ends.max(axis=-1))
    return longest


def compute_s(step: FloatColumn, ready: FloatColumn, sync: FloatCube) -> FloatColumn:
    """The computation with which a step takes so long; below 0 where averaging alone is longer.

    The inverse of `step_s`.
    """
    latest = (np.asarray(step)[..., None] - _chains(sync)) / ready
    computes: FloatColumn = np.minimum(step, latest.min(axis=-1))
    return computes


def _chains(sync: FloatCube) -> FloatCube:
    """Seconds from the start of each bucket to the end of the last, if none waits to be ready."""
    return np.cumsum(sync[..., ::-1], axis=-1)[..., ::-1]


def estimated_places(step: FloatMatrix, models: Sequence[Model], cluster: Cluster) -> Places:
    """What places cost on a cluster, for curves of a step-time table.

    The table was measured on 4-GPU nodes with the default links; that tells how much of a step is
    computation. On other nodes the table stays the best case: the fewest nodes have factor 1.
    """
    width = min(step.shape[1], GPUS_MOST + 1)
    depth = 1 + min(width - 1, len(cluster.nodes), NODES_MOST)
    curves, kinds = len(models), len(cluster.kinds)
    places = plain(curves, kinds)._replace(
        nodes=np.ones((curves, width, depth)),
        islands=np.ones((curves, width)),
        racks=np.ones((curves, width)),
        network=np.zeros((curves, width)),
        skew=np.array([model.skew for model in models]),
    )
    for curve, model in enumerate(models):
        _fill(places, curve, step[curve, :width], model, cluster)
    return places


def _fill(places: Places, curve: int, step: FloatColumn, model: Model, cluster: Cluster) -> None:
    """Fill in the factors of one curve."""
    gpus = np.flatnonzero(np.isfinite(step))
    if gpus.size == 0:
        return
    buckets, links = even_buckets(model), cluster.links
    measured = _spread(gpus, -(-gpus // NODE_GPUS_MEASURED), NODE_GPUS_MEASURED)
    computes = compute_s(step[gpus], buckets.ready, sync_s(measured, buckets.size_bytes, Links()))
    # Averaging may be estimated as longer than it is; no GPU computes faster than the first did.
    computes = np.maximum(computes, step[gpus[0]] * gpus[0] / gpus)

    def estimated(spread: Spread, on: Links = links) -> FloatMatrix:
        parts = computes if np.ndim(spread.gpus) == 1 else computes[:, None]
        return step_s(parts, buckets.ready, sync_s(spread, buckets.size_bytes, on))

    widest = max(cluster.nodes, key=lambda node: node.gpus, default=Node("", 1))
    island = widest.island_gpus or widest.gpus
    fewest = -(-gpus // widest.gpus)
    best = estimated(_spread(gpus, fewest, island))
    nodes = np.arange(places.nodes.shape[2])
    on = np.minimum(np.maximum(nodes, fewest[:, None]), gpus[:, None])
    spread_out = estimated(_spread(gpus[:, None], on, island))
    places.nodes[curve, gpus] = np.maximum(spread_out / best[:, None], 1.0)
    apart = estimated(Spread(gpus, np.minimum(gpus, 2)))
    places.islands[curve, gpus] = np.where(gpus <= island, np.maximum(apart / best, 1.0), 1.0)
    crossing = np.minimum(np.maximum(fewest, 2), gpus)
    alone = _spread(gpus, crossing, island)
    two_racks = alone._replace(racks=np.minimum(crossing, 2))
    places.racks[curve, gpus] = np.maximum(estimated(two_racks) / estimated(alone), 1.0)
    halved = Link(links.rack.gb_s / 2, links.rack.latency_us)
    crowded = Links(links.island, links.node, halved, links.cluster)
    places.network[curve, gpus] = estimated(alone, crowded) / estimated(alone) - 1.0


def _spread(gpus: IntColumn, nodes: IntColumn, island_gpus: int) -> Spread:
    """GPUs spread evenly over nodes, and there over as few islands as hold them."""
    on_node = -(-gpus // nodes)
    return Spread(gpus, np.minimum(nodes * -(-on_node // island_gpus), gpus), nodes)


def split_batch(total: int, fixed_s: FloatColumn, sample_s: FloatColumn) -> IntColumn:
    """Samples for each of several unlike devices, such that all end a step together.

    With b samples a device takes fixed_s + sample_s b. All end at the T at which the samples add up
    to the batch; a device that could not even begin by then gets none. Whole samples go by the
    largest remainder.
    """
    order = np.lexsort((np.arange(len(fixed_s)), fixed_s))
    with_first = np.cumsum(1.0 / sample_s[order]), np.cumsum((fixed_s / sample_s)[order])
    ends_s = (total + with_first[1]) / with_first[0]  # T if the devices that begin soonest share it
    begins_s = np.append(fixed_s[order][1:], np.inf)
    end_s = ends_s[np.argmax(ends_s <= begins_s)]
    exact = np.maximum(0.0, (end_s - fixed_s) / sample_s)
    samples: IntColumn = np.floor(exact + 1e-9).astype(np.int64)
    by_rest = np.lexsort((np.arange(len(exact)), samples - exact))
    samples[by_rest[: total - int(samples.sum())]] += 1
    return samples


def unit_bytes(link: Link) -> float:
    """The smallest piece of the parameters that is worth a message of its own.

    Parameters are dealt to updaters in such units, so that a change of their number moves whole
    units only. A unit is on the wire for ten times what a message costs by itself.
    """
    return MESSAGES * link.latency_us * 1e-6 * link.gb_s * 1e9

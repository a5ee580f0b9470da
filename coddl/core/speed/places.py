"""What a place costs: how much longer a step takes there than the speed table says.

The table has the best case: the fewest nodes that hold the share, GPUs of the kind it was
measured on, a network to oneself, GPUs not shared with any other job. Each way of falling short of
it is a factor on the step time, and the factors multiply.
"""

from typing import NamedTuple

import numpy as np

from coddl.core.cluster import ClusterColumns
from coddl.core.columns import FloatColumn, FloatCube, FloatMatrix, IntColumn
from coddl.core.compiling import kernel, part
from coddl.core.slots import Slots


class Places(NamedTuple):
    """Factors on the step time, by curve. Beyond its last entry an axis goes on as it ends."""

    nodes: FloatCube  # [curve, gpus, nodes it lies on]
    islands: FloatMatrix  # [curve, gpus]: on one node, but on several of its islands
    racks: FloatMatrix  # [curve, gpus]: in several racks
    network: FloatMatrix  # [curve, gpus]: what each further job on its busiest NIC adds to 1
    kinds: FloatMatrix  # [curve, kind]: step time there over that of the table
    packed: FloatMatrix  # [curve, curve of the other job on its GPUs]
    skew: FloatColumn  # [curve]: the largest tensor's part of all parameters, which hints at nodes
    busy: FloatColumn = np.ones(1)  # [curve]: the part of the time that it keeps a GPU busy
    # For groups of more than two on the same GPUs; a memory of 1 excludes them.
    throughput: FloatColumn = np.ones(1)  # [curve]: what it takes of all that a GPU can do
    memory: FloatColumn = np.ones(1)  # [curve]: what it takes of a GPU's memory


def plain(curves: int, kinds: int = 1) -> Places:
    """Places that make no difference, but for GPUs shared by two jobs, which each get half."""
    one = np.ones((curves, 1))
    return Places(
        np.ones((curves, 1, 1)),
        one,
        one,
        np.zeros((curves, 1)),
        np.ones((curves, kinds)),
        np.full((curves, curves), 2.0),
        np.zeros(curves),
    )


@part
def mix(places: Places, curve: int, gpus_of_kind: IntColumn) -> float:
    """The factor of unlike GPUs that share a batch in proportion to their speed.

    Slices are cut so that all devices end a step together: n GPUs of speeds v_d do what n do that
    are each as fast as the mean of v_d.
    """
    total, speed = 0, 0.0
    for kind in range(gpus_of_kind.shape[0]):
        total += gpus_of_kind[kind]
        speed += gpus_of_kind[kind] / places.kinds[curve, min(kind, places.kinds.shape[1] - 1)]
    return total / speed if speed > 0.0 else 1.0


@part
def factor_at(matrix: FloatMatrix, curve: int, gpus: int) -> float:
    """An entry, or the last one of its row."""
    return float(matrix[curve, min(gpus, matrix.shape[1] - 1)])


@part
def entry_of(column: FloatColumn, curve: int) -> float:
    """An entry of a column by curve, or the one that serves for all."""
    return float(column[min(curve, column.shape[0] - 1)])


def group_rate(places: Places, curves: IntColumn) -> float:
    """What jobs do together on the same GPUs, over what these do for one job at a time.

    The rate of each, against being alone, is one over the factor on its step time. Two jobs have
    the factors measured for the pair. In a group of k > 2, all are as slow as k jobs of the model
    that takes most of a GPU: max(1, k * throughput), which is ours (pairs alone are measured).
    """
    size = len(curves)
    if size <= 1:
        return float(size)
    if size == 2:
        a, b = curves.tolist()
        return float(1.0 / places.packed[a, b] + 1.0 / places.packed[b, a])
    at = np.minimum(curves, len(places.throughput) - 1)
    return float(size / max(1.0, size * places.throughput[at].max()))


class Occupancy(NamedTuple):
    """Where all jobs sit, and what that is on."""

    places: Places
    columns: ClusterColumns
    slots: Slots
    crossing: IntColumn  # by node: jobs that use its NIC, as they lie on several nodes
    of_kind: IntColumn  # scratch, by kind: GPUs of the row that is looked at


@kernel
def slowdowns(
    places: Places, columns: ClusterColumns, curves: IntColumn, slots: Slots, packed_with: IntColumn
) -> FloatColumn:
    """The factor on each row's step time, given where all of them sit.

    `packed_with` is that of an allocation. A row that sits nowhere has 1.
    """
    rows = curves.shape[0]
    sizes, most = np.zeros(rows, np.int64), np.zeros(rows)  # by the first row of a group
    for row in range(rows):
        if packed_with[row] >= 0:
            first = min(row, packed_with[row])
            sizes[first] += 1
            most[first] = max(most[first], entry_of(places.throughput, curves[row]))
    crossing = np.zeros(columns.node_gpus.shape[0], np.int64)
    of_kind = np.zeros(places.kinds.shape[1], np.int64)
    occupancy = Occupancy(places, columns, slots, crossing, of_kind)
    # The two loops run at every event of a simulation: to hand a scene from function to function
    # takes longer than what is done with it.
    for row in range(rows):
        begin, end = slots.first[row], slots.first[row + 1]
        if end - begin < 2:
            continue
        last, final = -1, columns.island_node[slots.island[end - 1]]
        if columns.island_node[slots.island[begin]] != final:
            for i in range(begin, end):
                node = columns.island_node[slots.island[i]]
                crossing[node] += node != last
                last = node
    out = np.ones(rows)
    for row in range(rows):
        if slots.first[row + 1] > slots.first[row]:
            out[row] = slowdown(occupancy, row, curves[row])
            if packed_with[row] >= 0:
                first = min(row, packed_with[row])
                if sizes[first] > 2:
                    out[row] *= max(1.0, sizes[first] * most[first])
                else:
                    out[row] *= places.packed[curves[row], curves[packed_with[row]]]
    return out


@part
def is_new_node(occupancy: Occupancy, row: int, i: int) -> bool:
    """Return whether entry i is the first of its row on its node."""
    island, node = occupancy.slots.island, occupancy.columns.island_node
    return bool(i == occupancy.slots.first[row] or node[island[i]] != node[island[i - 1]])


@part
def nodes_of(occupancy: Occupancy, row: int) -> int:
    """How many nodes a row lies on."""
    nodes = 0
    for i in range(occupancy.slots.first[row], occupancy.slots.first[row + 1]):
        nodes += is_new_node(occupancy, row, i)
    return nodes


@part
def slowdown(occupancy: Occupancy, row: int, curve: int) -> float:
    """The factor of one row that sits somewhere, except for jobs that share its GPUs."""
    places, columns, slots = occupancy.places, occupancy.columns, occupancy.slots
    gpus, rack, several_racks, busiest, nodes, last = 0, -1, False, 1, 0, -1
    of_kind = occupancy.of_kind
    of_kind[:] = 0
    for i in range(slots.first[row], slots.first[row + 1]):
        node = columns.island_node[slots.island[i]]
        nodes += node != last
        last = node
        gpus += slots.gpus[i]
        of_kind[min(columns.node_kind[node], of_kind.shape[0] - 1)] += slots.gpus[i]
        several_racks |= rack >= 0 and rack != columns.node_rack[node]
        rack = columns.node_rack[node]
        busiest = max(busiest, occupancy.crossing[node])
    table = places.nodes
    out = table[curve, min(gpus, table.shape[1] - 1), min(nodes, table.shape[2] - 1)]
    if nodes == 1 and slots.first[row + 1] - slots.first[row] > 1:
        out *= factor_at(places.islands, curve, gpus)
    if several_racks:
        out *= factor_at(places.racks, curve, gpus)
    if nodes > 1:
        out *= 1.0 + factor_at(places.network, curve, gpus) * (busiest - 1)
    return float(out * mix(places, curve, of_kind))

"""From servers to slots: which islands of its servers a job gets."""

import numpy as np

from coddl.core.cluster import ClusterColumns
from coddl.core.columns import IntColumn
from coddl.core.compiling import kernel
from coddl.core.placement.room import free_gpus_of, note, nothing_taken, slots_from, take
from coddl.core.policies.gandiva.assignment import NodeAssignment
from coddl.core.slots import Slots


@kernel
def by_node(columns: ClusterColumns, slots: Slots) -> Slots:
    """The slots of rows, counted by node instead of by island."""
    rows = slots.first.shape[0] - 1
    taken = nothing_taken(slots.island.shape[0])
    for row in range(rows):
        for i in range(slots.first[row], slots.first[row + 1]):
            note(taken, row, columns.island_node[slots.island[i]], slots.gpus[i])
    return slots_from(rows, taken)


@kernel
def slots_on_nodes(
    columns: ClusterColumns, before: Slots, assigned: NodeAssignment, shares: IntColumn
) -> Slots:
    """Give rows slots on their servers; one that was there keeps its islands.

    `shares` are 0 for rows that sit nowhere; where a row is on one server, it may be more than its
    assignment says.
    """
    rows = shares.shape[0]
    taken = nothing_taken(int(shares.sum()) + before.island.shape[0] + 1)
    used, lacks = np.zeros_like(columns.island_gpus), assigned.gpus.copy()
    for row in range(rows):
        e = assigned.head[row] if shares[row] > 0 else -1
        if e >= 0 and assigned.after[e] < 0:
            lacks[e] = shares[row]
        while e >= 0:
            for i in range(before.first[row], before.first[row + 1]):
                island = before.island[i]
                if columns.island_node[island] == assigned.node[e]:
                    # Two rows that were packed hold the same GPUs: the first keeps them.
                    free = columns.island_gpus[island] - used[island]
                    some = min(lacks[e], before.gpus[i], free)
                    if some > 0:
                        note(taken, row, island, some)
                        used[island] += some
                        lacks[e] -= some
            e = assigned.after[e]
    room = free_gpus_of(columns, used)
    for row in range(rows):
        e = assigned.head[row] if shares[row] > 0 else -1
        while e >= 0:
            if lacks[e] > 0:
                take(room, taken, row, assigned.node[e], lacks[e])
            e = assigned.after[e]
    return slots_from(rows, taken)

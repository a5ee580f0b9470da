"""The free GPUs of a cluster while rows are being placed: inner loops that strategies share.

Nodes are filed by zone (a kind of GPU in a rack) and by how many GPUs they have free, so that the
tightest node for a need is found without a look at the others: thousands of jobs are placed on
thousands of nodes in one decision.
"""

from typing import NamedTuple

import numpy as np

from coddl.core.cluster import ClusterColumns
from coddl.core.columns import IntColumn, IntMatrix
from coddl.core.compiling import kernel, kernel_int, part
from coddl.core.slots import Slots

NONE = kernel_int(-1)  # no node; as a kind or a rack: any


class FreeGpus(NamedTuple):
    """What is free."""

    columns: ClusterColumns
    island_free: IntColumn
    node_free: IntColumn
    zone: IntColumn  # of each node
    zone_kind: IntColumn
    zone_rack: IntColumn
    zone_free: IntColumn
    rack_free: IntColumn
    head: IntMatrix  # [zone, free GPUs]: the first such node
    after: IntColumn  # of each node: the following one with as many free in its zone
    before: IntColumn


class Taken(NamedTuple):
    """What rows have been given so far, in any order: `size[0]` entries."""

    row: IntColumn
    island: IntColumn
    gpus: IntColumn
    size: IntColumn


@part
def file(room: FreeGpus, node: int) -> None:
    """Enter a node where those with as many free GPUs are."""
    zone, free = room.zone[node], room.node_free[node]
    first = room.head[zone, free]
    room.after[node] = first
    room.before[node] = -1
    if first >= 0:
        room.before[first] = node
    room.head[zone, free] = node


@part
def unfile(room: FreeGpus, node: int) -> None:
    """Take a node out of its list."""
    before, after = room.before[node], room.after[node]
    if before >= 0:
        room.after[before] = after
    else:
        room.head[room.zone[node], room.node_free[node]] = after
    if after >= 0:
        room.before[after] = before


@part
def change_free(room: FreeGpus, node: int, gpus: int) -> None:
    """Count `gpus` more GPUs of a node as free; fewer if negative."""
    unfile(room, node)
    room.node_free[node] += gpus
    room.zone_free[room.zone[node]] += gpus
    room.rack_free[room.columns.node_rack[node]] += gpus
    file(room, node)


@kernel
def free_gpus_of(columns: ClusterColumns, used: IntColumn) -> FreeGpus:
    """The room that is left where `used` GPUs of each island are used."""
    nodes = columns.node_gpus.shape[0]
    zones, size = np.empty((2, nodes), np.int64), 0
    zone = np.empty(nodes, np.int64)
    for node in range(nodes):
        kind, rack, at = columns.node_kind[node], columns.node_rack[node], size
        # Nodes of a zone are mostly adjacent: look there first.
        if node > 0 and zones[0, zone[node - 1]] == kind and zones[1, zone[node - 1]] == rack:
            at = zone[node - 1]
        else:
            for known in range(size):
                if zones[0, known] == kind and zones[1, known] == rack:
                    at = known
        if at == size:
            zones[0, size], zones[1, size] = kind, rack
            size += 1
        zone[node] = at
    widest, racks = 0, 0
    for node in range(nodes):
        widest = max(widest, columns.node_gpus[node])
        racks = max(racks, columns.node_rack[node] + 1)
    room = FreeGpus(
        columns,
        columns.island_gpus - used,
        np.zeros(nodes, np.int64),
        zone,
        zones[0, :size].copy(),
        zones[1, :size].copy(),
        np.zeros(size, np.int64),
        np.zeros(racks, np.int64),
        np.full((size, widest + 1), -1),
        np.empty(nodes, np.int64),
        np.empty(nodes, np.int64),
    )
    for node in range(nodes - 1, -1, -1):  # so that the first of a list is the first of its nodes
        for island in range(columns.first[node], columns.first[node + 1]):
            room.node_free[node] += room.island_free[island]
        room.zone_free[zone[node]] += room.node_free[node]
        room.rack_free[columns.node_rack[node]] += room.node_free[node]
        file(room, node)
    return room


@kernel
def nothing_taken(most: int) -> Taken:
    """A list for up to `most` entries."""
    return Taken(
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.zeros(1, np.int64),
    )


@part
def note(taken: Taken, row: int, island: int, gpus: int) -> None:
    """Record that a row has `gpus` GPUs of an island."""
    at = taken.size[0]
    taken.row[at] = row
    taken.island[at] = island
    taken.gpus[at] = gpus
    taken.size[0] = at + 1


@part
def best_island(free: IntColumn, begin: int, end: int, gpus: int) -> int:
    """Of islands begin .. end-1 the one that `gpus` GPUs fill best, else the widest."""
    best = begin
    for island in range(begin + 1, end):
        here, most = free[island], free[best]
        if here >= gpus:
            if most < gpus or here < most:
                best = island
        elif here > most:
            best = island
    return int(best)


@part
def take_islands(
    first: IntColumn, free: IntColumn, taken: Taken, row: int, node: int, gpus: int
) -> None:
    """Give a row `gpus` GPUs of a node that has them, on the islands that suit them best.

    Node n has islands first[n] .. first[n+1]-1, with free[island] GPUs free each.
    """
    while gpus > 0:
        best = best_island(free, first[node], first[node + 1], gpus)
        some = min(gpus, free[best])
        free[best] -= some
        note(taken, row, best, some)
        gpus -= some


@part
def take(room: FreeGpus, taken: Taken, row: int, node: int, gpus: int) -> None:
    """Give a row `gpus` GPUs of a node that has them, on the islands that suit them best."""
    change_free(room, node, -gpus)
    take_islands(room.columns.first, room.island_free, taken, row, node, gpus)


@part
def take_island(room: FreeGpus, taken: Taken, row: int, island: int, gpus: int) -> None:
    """Give a row `gpus` GPUs of an island that has them."""
    change_free(room, room.columns.island_node[island], -gpus)
    room.island_free[island] -= gpus
    note(taken, row, island, gpus)


@part
def give_back(room: FreeGpus, taken: Taken, size: int) -> None:
    """Undo what was taken last, until `size` entries are left."""
    while taken.size[0] > size:
        last = taken.size[0] - 1
        room.island_free[taken.island[last]] += taken.gpus[last]
        change_free(room, room.columns.island_node[taken.island[last]], taken.gpus[last])
        taken.size[0] = last


@part
def suits(room: FreeGpus, zone: int, kind: int, rack: int) -> bool:
    """Return whether a zone is of this kind and rack, where they are given."""
    return bool(
        (kind < 0 or room.zone_kind[zone] == kind) and (rack < 0 or room.zone_rack[zone] == rack)
    )


@part
def tightest(room: FreeGpus, need: int, kind: int, rack: int) -> int:
    """The node that `need` GPUs fill best, of this kind and rack (-1: any); -1 if none has room."""
    for free in range(need, room.head.shape[1]):
        for zone in range(room.head.shape[0]):
            if room.head[zone, free] >= 0 and suits(room, zone, kind, rack):
                return int(room.head[zone, free])
    return -1


@part
def widest(room: FreeGpus, kind: int, rack: int) -> int:
    """The node with most room, of this kind and rack (-1: any); -1 if nothing is free."""
    for free in range(room.head.shape[1] - 1, 0, -1):
        for zone in range(room.head.shape[0]):
            if room.head[zone, free] >= 0 and suits(room, zone, kind, rack):
                return int(room.head[zone, free])
    return -1


@part
def nodes_to_hold(room: FreeGpus, sizes: IntColumn, need: int, kind: int) -> int:
    """The fewest nodes of a kind (-1: any), of these sizes, that hold `need` GPUs; or too many."""
    of_size, nodes = np.zeros(room.head.shape[1], np.int64), 0
    for node in range(sizes.shape[0]):
        if kind < 0 or room.columns.node_kind[node] == kind:
            of_size[sizes[node]] += 1
    for size in range(of_size.shape[0] - 1, 0, -1):
        some = min(of_size[size], (need + size - 1) // size)
        nodes += some
        need -= some * size
        if need <= 0:
            return int(nodes)
    return int(sizes.shape[0] + 1)


@part
def best_zone(room: FreeGpus, need: int, kind: int) -> int:
    """The zone of this kind (-1: any) that `need` GPUs fill best; -1 if none has room for all."""
    best = -1
    for zone in range(room.zone_free.shape[0]):
        fits = room.zone_free[zone] >= need and suits(room, zone, kind, NONE)
        if fits and (best < 0 or room.zone_free[zone] < room.zone_free[best]):
            best = zone
    return int(best)


@part
def best_rack(room: FreeGpus, need: int) -> int:
    """The rack that `need` GPUs of any kind fill best; -1 if none has room for all."""
    best = -1
    for rack in range(room.rack_free.shape[0]):
        fits = room.rack_free[rack] >= need
        if fits and (best < 0 or room.rack_free[rack] < room.rack_free[best]):
            best = rack
    return int(best)


@part
def take_within(room: FreeGpus, taken: Taken, row: int, need: int, kind: int, rack: int) -> int:
    """Give a row `need` GPUs on few nodes of this kind and rack (-1: any); return what is missing.

    The nodes with most room first; the last is one that the rest fills best.
    """
    while need > 0:
        node = tightest(room, need, kind, rack)
        if node < 0:
            node = widest(room, kind, rack)
        if node < 0:
            break
        some = min(need, room.node_free[node])
        take(room, taken, row, node, some)
        need -= some
    return int(need)


@part
def take_close(room: FreeGpus, taken: Taken, row: int, need: int, kind: int) -> int:
    """Give a row `need` GPUs close together; return what is missing.

    On a node if one has them, else of one kind in a rack, else in a rack, else anywhere.
    """
    rack = NONE
    if tightest(room, need, kind, NONE) < 0 and room.zone_free.shape[0] > 1:
        zone = best_zone(room, need, kind)
        if zone >= 0:
            kind, rack = room.zone_kind[zone], room.zone_rack[zone]
        elif kind < 0:
            rack = best_rack(room, need)
    return take_within(room, taken, row, need, kind, rack)


@kernel
def slots_from(rows: int, taken: Taken) -> Slots:
    """The seats that were given: sorted, each island of a row once."""
    size = taken.size[0]
    first = np.zeros(rows + 1, np.int64)
    for i in range(size):
        first[taken.row[i] + 1] += 1
    for row in range(rows):
        first[row + 1] += first[row]
    end = first[:-1].copy()
    island, gpus = np.empty(size, np.int64), np.empty(size, np.int64)
    for i in range(size):
        at, row = end[taken.row[i]], taken.row[i]
        while at > first[row] and island[at - 1] > taken.island[i]:  # rows have few entries
            island[at], gpus[at] = island[at - 1], gpus[at - 1]
            at -= 1
        island[at], gpus[at] = taken.island[i], taken.gpus[i]
        end[row] += 1
    out_first, out = np.zeros(rows + 1, np.int64), 0
    for row in range(rows):
        for i in range(first[row], first[row + 1]):
            if i > first[row] and island[i] == island[i - 1]:
                gpus[out - 1] += gpus[i]
                island[i] = island[out - 1]
                continue
            island[out], gpus[out] = island[i], gpus[i]
            out += 1
        out_first[row + 1] = out
    return Slots(out_first, island[:out].copy(), gpus[:out].copy())

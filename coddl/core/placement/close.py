"""Keep the jobs that stay where they are, and put the others close together."""

from typing import NamedTuple

import numpy as np

from coddl.core.allocation import Allocation, Reasons, because, group_firsts
from coddl.core.cluster import ClusterColumns
from coddl.core.columns import BoolColumn, IntColumn, IntMatrix
from coddl.core.compiling import kernel, part
from coddl.core.placement.placement import Placed
from coddl.core.placement.room import (
    NONE,
    FreeGpus,
    Taken,
    free_gpus_of,
    note,
    nothing_taken,
    slots_from,
    suits,
    take,
    take_close,
    take_within,
    tightest,
)
from coddl.core.slots import Slots
from coddl.core.snapshot import Snapshot
from coddl.core.waiting import counted


class PlacementRequest(NamedTuple):
    """What rows are to have, and in which order they are placed."""

    gpus: IntMatrix  # [rows, kinds], or [rows, 1] where kinds play no part
    order: IntColumn
    spans: IntColumn  # 0: on one node only
    preferred_node: IntColumn  # a node to be on, and not to leave, if possible; or -1


@part
def is_of(columns: ClusterColumns, island: int, kind: int, kinds: int) -> bool:
    """Return whether an island holds GPUs of this kind, if kinds play a part."""
    return bool(kinds == 1 or columns.node_kind[columns.island_node[island]] == kind)


@part
def worst_entry(
    columns: ClusterColumns, slots: Slots, row: int, kind: int, request: PlacementRequest
) -> int:
    """The entry to give up first: on the node with fewest of the row's GPUs, the preferred last.

    Entries of a node are adjacent; of those the smallest goes first.
    """
    kinds, worst, fewest = request.gpus.shape[1], NONE, 0
    i, end = slots.first[row], slots.first[row + 1]
    while i < end:
        node, least, gpus = columns.island_node[slots.island[i]], NONE, 0
        while i < end and columns.island_node[slots.island[i]] == node:
            gpus += slots.gpus[i]
            if slots.gpus[i] > 0 and (least < 0 or slots.gpus[i] <= slots.gpus[least]):
                least = i
            i += 1
        if node == request.preferred_node[row]:
            gpus += 2**31
        wanted = least >= 0 and is_of(columns, slots.island[least], kind, kinds)
        if wanted and (worst < 0 or gpus <= fewest):
            worst, fewest = least, gpus
    return int(worst)


@part
def give_up(
    columns: ClusterColumns,
    left: Slots,
    row: int,
    excess: int,
    kind: int,
    request: PlacementRequest,
) -> None:
    """Take `excess` GPUs of a kind from a row, first where it has fewest."""
    while excess > 0:
        worst = worst_entry(columns, left, row, kind, request)
        some = min(excess, left.gpus[worst])
        left.gpus[worst] -= some
        excess -= some


@kernel
def keep(
    columns: ClusterColumns, slots: Slots, request: PlacementRequest, free: IntColumn, taken: Taken
) -> None:
    """Let rows keep what they hold, up to what they want of each kind; note it in `taken`.

    `free` is what each island has, and is left with. Of two rows that hold the same GPUs, as
    packed jobs do until they part, the first keeps them.
    """
    left = Slots(slots.first, slots.island, slots.gpus.copy())
    rows, kinds = request.gpus.shape
    for row in range(rows):
        if slots.first[row + 1] == slots.first[row]:
            continue
        for i in range(slots.first[row], slots.first[row + 1]):
            left.gpus[i] = min(left.gpus[i], free[slots.island[i]])
        for kind in range(kinds):
            excess = -request.gpus[row, kind]
            for i in range(slots.first[row], slots.first[row + 1]):
                if is_of(columns, slots.island[i], kind, kinds):
                    excess += left.gpus[i]
            if excess < 0 and request.spans[row] == 0:
                left.gpus[slots.first[row] : slots.first[row + 1]] = 0  # anew, all at one place
            give_up(columns, left, row, excess, kind, request)
        for i in range(slots.first[row], slots.first[row + 1]):
            if left.gpus[i] > 0:
                free[slots.island[i]] -= left.gpus[i]
                note(taken, row, slots.island[i], left.gpus[i])


class PartialPlacement(NamedTuple):
    """The room that is left and what rows have of it, while they are placed."""

    room: FreeGpus
    taken: Taken
    kept: IntColumn  # entries kept[r] .. kept[r+1]-1 of `taken` are what row r has kept
    lack: IntMatrix  # what rows want in addition, by kind


@kernel
def after_keeping(
    columns: ClusterColumns, slots: Slots, request: PlacementRequest, reserved: IntColumn
) -> PartialPlacement:
    """Let rows keep what they can; what is free then is room for the others."""
    taken = nothing_taken(int(request.gpus.sum()) + slots.island.shape[0] + 1)
    free = columns.island_gpus - reserved
    keep(columns, slots, request, free, taken)
    rows, kinds = request.gpus.shape
    kept, lack = np.zeros(rows + 1, np.int64), request.gpus.copy()
    for i in range(taken.size[0]):
        kind = columns.node_kind[columns.island_node[taken.island[i]]] if kinds > 1 else 0
        lack[taken.row[i], kind] -= taken.gpus[i]
        kept[taken.row[i] + 1] += 1
    for row in range(rows):
        kept[row + 1] += kept[row]
    return PartialPlacement(free_gpus_of(columns, columns.island_gpus - free), taken, kept, lack)


@part
def grow(found: PartialPlacement, row: int, need: int, kind: int) -> int:
    """Give a row more GPUs, first on its nodes, then in its rack; return what is missing."""
    return grow_around(found, found.kept[row], found.kept[row + 1], row, need, kind)


@part
def grow_around(
    found: PartialPlacement, begin: int, end: int, row: int, need: int, kind: int
) -> int:
    """The same for a row that has entries begin .. end-1 of what is taken."""
    room, taken, columns = found.room, found.taken, found.room.columns
    zone = NONE
    for i in range(begin, end):
        node = columns.island_node[taken.island[i]]
        zone = room.zone[node]
        some = min(need, room.node_free[node])
        if some > 0 and (kind < 0 or columns.node_kind[node] == kind):
            take(room, taken, row, node, some)
            need -= some
    if zone >= 0:
        rack = room.zone_rack[zone]
        if need <= room.zone_free[zone] and suits(room, zone, kind, NONE):
            kind = room.zone_kind[zone]  # rather than to mix kinds
        if need <= room.rack_free[rack]:
            need = take_within(room, taken, row, need, kind, rack)
    return take_close(room, taken, row, need, kind) if need > 0 else 0


@part
def lone_node(room: FreeGpus, slots: Slots, row: int, need: int, kind: int) -> int:
    """The node for a row that can't span: where it is if there is room, else the tightest."""
    if slots.first[row + 1] > slots.first[row]:
        node = room.columns.island_node[slots.island[slots.first[row]]]
        if room.node_free[node] >= need and (kind < 0 or room.columns.node_kind[node] == kind):
            return int(node)
    return tightest(room, need, kind, NONE)


@part
def suits_preferred(found: PartialPlacement, row: int, node: int, need: int, kind: int) -> bool:
    """Return whether a row that has kept nothing can have all it needs on the node it prefers."""
    if node < 0 or found.kept[row + 1] > found.kept[row]:
        return False
    room = found.room
    return bool(room.node_free[node] >= need and (kind < 0 or room.columns.node_kind[node] == kind))


@part
def place_row(found: PartialPlacement, slots: Slots, request: PlacementRequest, row: int) -> None:
    """Give a row what it lacks, close to what it has, or all on one node if it can't span."""
    kinds, spans = found.lack.shape[1], request.spans[row] > 0
    for kind in range(kinds):
        need, of_kind = found.lack[row, kind], kind if kinds > 1 else NONE
        preferred = request.preferred_node[row]
        if need > 0 and spans and suits_preferred(found, row, preferred, need, of_kind):
            take(found.room, found.taken, row, preferred, need)
        elif need > 0 and spans:
            grow(found, row, need, of_kind)
        elif need > 0:
            node = lone_node(found.room, slots, row, need, of_kind)
            if node >= 0:
                take(found.room, found.taken, row, node, need)


@kernel
def place_close(
    columns: ClusterColumns, slots: Slots, request: PlacementRequest, reserved: IntColumn
) -> Slots:
    """Seat every row: seated ones first, then those that can't span nodes, then others by order.

    A row that finds no place gets less, or nothing if it can't span nodes.
    """
    found = after_keeping(columns, slots, request, reserved)
    for spans in range(2):
        for row in request.order:
            if (request.spans[row] > 0) == (spans > 0):
                place_row(found, slots, request, row)
    return slots_from(request.gpus.shape[0], found.taken)


def request_of(snapshot: Snapshot, allocation: Allocation, order: IntColumn) -> PlacementRequest:
    """What is to be placed: of rows that share GPUs, one stands for all."""
    slots, jobs = snapshot.slots, snapshot.jobs
    assert slots is not None, "rows that are placed sit somewhere, if only nowhere"
    leads = leaders_of(slots, allocation) == np.arange(slots.rows)
    wanted = np.where(leads[:, None], allocation.by_kind, 0)
    return PlacementRequest(wanted, order, jobs.spans, jobs.preferred_node)


def placed_at(found: Slots, snapshot: Snapshot, allocation: Allocation) -> Placed:
    """What was found, for all rows of a group; a row with too little to run on gets nothing."""
    assert snapshot.slots is not None
    slots, jobs = found.take(leaders_of(snapshot.slots, allocation)), snapshot.jobs
    totals, wanted = slots.totals, allocation.gpus
    short = (totals < np.minimum(jobs.gpus_min, wanted)) | ((totals == 0) & (wanted > 0))
    if allocation.packed_with is not None:
        firsts = group_firsts(allocation.packed_with)
        short = np.bincount(firsts, short, len(firsts))[firsts] > 0.0
    if not short.any():
        return Placed(slots)
    slots = slots.take(np.where(short, -1, np.arange(slots.rows)))
    reasons = reasons_of_one_node(short & (jobs.spans == 0), wanted, snapshot.cluster.columns)
    return Placed(slots, reasons | because(short, "Topology", "not enough GPUs are free"))


def placed_close(snapshot: Snapshot, allocation: Allocation, order: IntColumn) -> Placed:
    """Places for an allocation: jobs that stay keep them, the others are placed in `order`."""
    request, slots = request_of(snapshot, allocation, order), snapshot.slots
    assert slots is not None
    found = place_close(snapshot.cluster.columns, slots, request, kept_back(snapshot))
    return placed_at(found, snapshot, allocation)


def kept_back(snapshot: Snapshot) -> IntColumn:
    """By island, the GPUs that are kept for a job."""
    if snapshot.reserved is not None:
        return snapshot.reserved
    return np.zeros(len(snapshot.cluster.columns.island_gpus), np.int64)


def leaders_of(slots: Slots, allocation: Allocation) -> IntColumn:
    """Whose place each row has: its own, or that of the row it shares GPUs with.

    Of a group the first leads that has a place already, else the first.
    """
    rows, packed_with = np.arange(slots.rows), allocation.packed_with
    if packed_with is None:
        return rows
    sits, firsts = slots.first[1:] > slots.first[:-1], group_firsts(packed_with)
    order = np.lexsort((rows, ~sits, firsts))
    begins = np.flatnonzero(np.diff(firsts[order], prepend=-1))
    leaders: IntColumn = order[begins][np.searchsorted(firsts[order][begins], firsts)]
    return leaders


def reasons_of_one_node(rows: BoolColumn, gpus: IntColumn, columns: ClusterColumns) -> Reasons:
    """Why rows that need all their GPUs on one node get none."""
    reasons, largest = Reasons(), int(columns.node_gpus.max(initial=0))
    for need in np.unique(gpus[rows]):
        why = (
            f"it needs {counted(need, 'GPU')} on one node, and no node has that many free "
            f"(the largest has {largest} in all)"
        )
        reasons |= because(rows & (gpus == need), "Topology", why)
    return reasons

"""Keep who stays where it is, and put the others close together."""

from typing import NamedTuple

import numpy as np

from coddl.core.allocation import Allocation, Reasons, because
from coddl.core.cluster import Ground
from coddl.core.columns import BoolColumn, IntColumn, IntMatrix
from coddl.core.compiling import kernel, part
from coddl.core.placement.placement import Placed
from coddl.core.placement.room import (
    NONE,
    Room,
    Taken,
    note,
    nothing_taken,
    room_of,
    seats_from,
    suits,
    take,
    take_close,
    take_within,
    tightest,
)
from coddl.core.seats import Seats
from coddl.core.snapshot import Snapshot


class Wishes(NamedTuple):
    """What rows shall have, and in which order they are placed."""

    gpus: IntMatrix  # [rows, kinds], or [rows, 1] where kinds play no part
    order: IntColumn
    spans: IntColumn  # 0: on one node only
    home: IntColumn  # a node not to be left if possible, or -1


@part
def is_of(ground: Ground, island: int, kind: int, kinds: int) -> bool:
    """Tell whether an island holds GPUs of this kind, if kinds play a part."""
    return bool(kinds == 1 or ground.node_kind[ground.island_node[island]] == kind)


@part
def worst_entry(ground: Ground, seats: Seats, row: int, kind: int, wishes: Wishes) -> int:
    """The entry to give up first: on the node where the row has fewest GPUs, its home last.

    Entries of a node stand beside each other; of those the smallest goes first.
    """
    kinds, worst, fewest = wishes.gpus.shape[1], NONE, 0
    i, end = seats.first[row], seats.first[row + 1]
    while i < end:
        node, least, gpus = ground.island_node[seats.island[i]], NONE, 0
        while i < end and ground.island_node[seats.island[i]] == node:
            gpus += seats.gpus[i]
            if seats.gpus[i] > 0 and (least < 0 or seats.gpus[i] <= seats.gpus[least]):
                least = i
            i += 1
        if node == wishes.home[row]:
            gpus += 2**31
        wanted = least >= 0 and is_of(ground, seats.island[least], kind, kinds)
        if wanted and (worst < 0 or gpus <= fewest):
            worst, fewest = least, gpus
    return int(worst)


@kernel
def keep(ground: Ground, seats: Seats, wishes: Wishes, free: IntColumn, taken: Taken) -> None:
    """Let rows keep what they hold, up to what they want of each kind; note it in `taken`.

    `free` is what each island has, and is left with. Of two rows that hold the same GPUs, as
    packed jobs do until they part, the first keeps them.
    """
    left = Seats(seats.first, seats.island, seats.gpus.copy())
    rows, kinds = wishes.gpus.shape
    for row in range(rows):
        if seats.first[row + 1] == seats.first[row]:
            continue
        for i in range(seats.first[row], seats.first[row + 1]):
            left.gpus[i] = min(left.gpus[i], free[seats.island[i]])
        for kind in range(kinds):
            excess = -wishes.gpus[row, kind]
            for i in range(seats.first[row], seats.first[row + 1]):
                if is_of(ground, seats.island[i], kind, kinds):
                    excess += left.gpus[i]
            if excess < 0 and wishes.spans[row] == 0:
                left.gpus[seats.first[row] : seats.first[row + 1]] = 0  # anew, all at one place
            while excess > 0:
                worst = worst_entry(ground, left, row, kind, wishes)
                some = min(excess, left.gpus[worst])
                left.gpus[worst] -= some
                excess -= some
        for i in range(seats.first[row], seats.first[row + 1]):
            if left.gpus[i] > 0:
                free[seats.island[i]] -= left.gpus[i]
                note(taken, row, seats.island[i], left.gpus[i])


class Found(NamedTuple):
    """The room that is left and what rows have of it, while they are placed."""

    room: Room
    taken: Taken
    kept: IntColumn  # entries kept[r] .. kept[r+1]-1 of `taken` are what row r has kept
    lack: IntMatrix  # what rows want besides, by kind


@kernel
def after_keeping(ground: Ground, seats: Seats, wishes: Wishes, reserved: IntColumn) -> Found:
    """Let rows keep what they can; what is free then is room for the others."""
    taken = nothing_taken(int(wishes.gpus.sum()) + seats.island.shape[0] + 1)
    free = ground.island_gpus - reserved
    keep(ground, seats, wishes, free, taken)
    rows, kinds = wishes.gpus.shape
    kept, lack = np.zeros(rows + 1, np.int64), wishes.gpus.copy()
    for i in range(taken.size[0]):
        kind = ground.node_kind[ground.island_node[taken.island[i]]] if kinds > 1 else 0
        lack[taken.row[i], kind] -= taken.gpus[i]
        kept[taken.row[i] + 1] += 1
    for row in range(rows):
        kept[row + 1] += kept[row]
    return Found(room_of(ground, ground.island_gpus - free), taken, kept, lack)


@part
def grow(found: Found, row: int, need: int, kind: int) -> int:
    """Give a row more GPUs, first on its nodes, then in its rack; return what is missing."""
    room, taken, ground = found.room, found.taken, found.room.ground
    zone = NONE
    for i in range(found.kept[row], found.kept[row + 1]):
        node = ground.island_node[taken.island[i]]
        zone = room.zone[node]
        some = min(need, room.node_free[node])
        if some > 0 and (kind < 0 or ground.node_kind[node] == kind):
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
def lone_node(room: Room, seats: Seats, row: int, need: int, kind: int) -> int:
    """The node for a row that can't span: where it is if there is room, else the tightest."""
    if seats.first[row + 1] > seats.first[row]:
        node = room.ground.island_node[seats.island[seats.first[row]]]
        if room.node_free[node] >= need and (kind < 0 or room.ground.node_kind[node] == kind):
            return int(node)
    return tightest(room, need, kind, NONE)


@part
def place_row(found: Found, seats: Seats, row: int, spans: bool) -> None:
    """Give a row what it lacks, close to what it has, or all on one node if it can't span."""
    kinds = found.lack.shape[1]
    for kind in range(kinds):
        need, of_kind = found.lack[row, kind], kind if kinds > 1 else NONE
        if need > 0 and spans:
            grow(found, row, need, of_kind)
        elif need > 0:
            node = lone_node(found.room, seats, row, need, of_kind)
            if node >= 0:
                take(found.room, found.taken, row, node, need)


@kernel
def place_close(ground: Ground, seats: Seats, wishes: Wishes, reserved: IntColumn) -> Seats:
    """Seat every row: who is seated first, then who can't span nodes, then the others by order.

    Who finds no place gets less, or nothing if it can't span nodes.
    """
    found = after_keeping(ground, seats, wishes, reserved)
    for spans in range(2):
        for row in wishes.order:
            if (wishes.spans[row] > 0) == (spans > 0):
                place_row(found, seats, row, spans > 0)
    return seats_from(wishes.gpus.shape[0], found.taken)


def wishes_of(snapshot: Snapshot, allocation: Allocation, order: IntColumn) -> Wishes:
    """What is to be placed: of two rows that share GPUs, one stands for both."""
    seats, jobs = snapshot.seats, snapshot.jobs
    assert seats is not None, "rows that are placed sit somewhere, if only nowhere"
    leads = leaders_of(seats, allocation) == np.arange(seats.rows)
    wanted = np.where(leads[:, None], allocation.by_kind, 0)
    return Wishes(wanted, order, jobs.spans, jobs.home)


def placed_at(found: Seats, snapshot: Snapshot, allocation: Allocation) -> Placed:
    """What was found, for both rows of a pair; who has too little to run on gets nothing."""
    assert snapshot.seats is not None
    seats, jobs = found.take(leaders_of(snapshot.seats, allocation)), snapshot.jobs
    totals, wanted = seats.totals, allocation.gpus
    short = (totals < np.minimum(jobs.gpus_min, wanted)) | ((totals == 0) & (wanted > 0))
    if not short.any():
        return Placed(seats)
    seats = seats.take(np.where(short, -1, np.arange(seats.rows)))
    reasons = cramped(short & (jobs.spans == 0), wanted, snapshot.cluster.ground)
    return Placed(seats, reasons | because(short, "Topology", "too few GPUs are free for it"))


def placed_close(snapshot: Snapshot, allocation: Allocation, order: IntColumn) -> Placed:
    """Places for an allocation: who stays keeps them, the others are placed in `order`."""
    wishes, seats = wishes_of(snapshot, allocation, order), snapshot.seats
    assert seats is not None
    found = place_close(snapshot.cluster.ground, seats, wishes, kept_back(snapshot))
    return placed_at(found, snapshot, allocation)


def kept_back(snapshot: Snapshot) -> IntColumn:
    """By island, the GPUs that are kept for somebody."""
    if snapshot.reserved is not None:
        return snapshot.reserved
    return np.zeros(len(snapshot.cluster.ground.island_gpus), np.int64)


def leaders_of(seats: Seats, allocation: Allocation) -> IntColumn:
    """Whose place each row has: its own, or that of the row it shares GPUs with.

    Of a pair the one leads that has a place already, else the first.
    """
    rows, mates = np.arange(seats.rows), allocation.mates
    if mates is None:
        return rows
    sits = seats.first[1:] > seats.first[:-1]
    follows = (mates >= 0) & ((sits < sits[mates]) | ((sits == sits[mates]) & (mates < rows)))
    return np.where(follows, mates, rows)


def cramped(rows: BoolColumn, gpus: IntColumn, ground: Ground) -> Reasons:
    """Why rows that need all their GPUs on one node get none."""
    reasons, largest = Reasons(), int(ground.node_gpus.max(initial=0))
    for need in np.unique(gpus[rows]):
        why = (
            f"it needs {need} GPUs on one node, and no node has that many free "
            f"(the largest has {largest} in all)"
        )
        reasons |= because(rows & (gpus == need), "Topology", why)
    return reasons

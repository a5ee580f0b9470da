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
    take,
    take_close,
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
    """The entry to give up first: on the node where the row has fewest GPUs, its home last."""
    kinds, worst, fewest = wishes.gpus.shape[1], NONE, 0
    for i in range(seats.first[row], seats.first[row + 1]):
        if seats.gpus[i] == 0 or not is_of(ground, seats.island[i], kind, kinds):
            continue
        node, gpus = ground.island_node[seats.island[i]], 0
        for j in range(seats.first[row], seats.first[row + 1]):
            if ground.island_node[seats.island[j]] == node:
                gpus += seats.gpus[j]
        if node == wishes.home[row]:
            gpus += 2**31
        if worst < 0 or gpus <= fewest:
            worst, fewest = i, gpus
    return int(worst)


@kernel
def keep(ground: Ground, seats: Seats, wishes: Wishes, taken: Taken) -> None:
    """Let rows keep what they hold, up to what they want of each kind; note it in `taken`."""
    left = Seats(seats.first, seats.island, seats.gpus.copy())
    rows, kinds = wishes.gpus.shape
    for row in range(rows):
        for kind in range(kinds):
            excess = -wishes.gpus[row, kind]
            for i in range(seats.first[row], seats.first[row + 1]):
                if is_of(ground, seats.island[i], kind, kinds):
                    excess += left.gpus[i]
            if excess != 0 and wishes.spans[row] == 0:
                left.gpus[seats.first[row] : seats.first[row + 1]] = 0  # anew, all at one place
            while excess > 0:
                worst = worst_entry(ground, left, row, kind, wishes)
                if worst < 0:
                    break
                some = min(excess, left.gpus[worst])
                left.gpus[worst] -= some
                excess -= some
        for i in range(seats.first[row], seats.first[row + 1]):
            if left.gpus[i] > 0:
                note(taken, row, seats.island[i], left.gpus[i])


@part
def grow(room: Room, taken: Taken, row: int, need: int, kind: int) -> int:
    """Give a row more GPUs, first on nodes where it has some; return what is missing."""
    mine = taken.size[0]
    for i in range(mine):
        if taken.row[i] == row and need > 0:
            node = room.ground.island_node[taken.island[i]]
            some = min(need, room.node_free[node])
            if some > 0 and (kind < 0 or room.ground.node_kind[node] == kind):
                take(room, taken, row, node, some)
                need -= some
    return take_close(room, taken, row, need, kind) if need > 0 else 0


@kernel
def place_close(ground: Ground, seats: Seats, wishes: Wishes, reserved: IntColumn) -> Seats:
    """Seat every row: who is seated first, then who can't span nodes, then the others by order.

    Who finds no place gets less, or nothing if it can't span nodes.
    """
    wanted, kinds = wishes.gpus, wishes.gpus.shape[1]
    taken = nothing_taken(int(wanted.sum()) + seats.island.shape[0] + 1)
    keep(ground, seats, wishes, taken)
    used, held = reserved.copy(), np.zeros_like(wanted)
    for i in range(taken.size[0]):
        used[taken.island[i]] += taken.gpus[i]
        kind = ground.node_kind[ground.island_node[taken.island[i]]] if kinds > 1 else 0
        held[taken.row[i], kind] += taken.gpus[i]
    room = room_of(ground, used)
    for spans in range(2):
        for row in wishes.order:
            for kind in range(kinds):
                need, of_kind = wanted[row, kind] - held[row, kind], kind if kinds > 1 else NONE
                if need <= 0 or (wishes.spans[row] > 0) != (spans > 0):
                    continue
                if spans > 0:
                    grow(room, taken, row, need, of_kind)
                else:
                    node = tightest(room, need, of_kind, NONE)
                    if node >= 0:
                        take(room, taken, row, node, need)
    return seats_from(wanted.shape[0], taken)


def placed_close(snapshot: Snapshot, allocation: Allocation, order: IntColumn) -> Placed:
    """Places for an allocation: who stays keeps them, the others are placed in `order`."""
    ground, seats, jobs = snapshot.cluster.ground, snapshot.seats, snapshot.jobs
    assert seats is not None, "rows that are placed sit somewhere, if only nowhere"
    reserved = snapshot.reserved
    if reserved is None:
        reserved = np.zeros(len(ground.island_gpus), np.int64)
    wanted = np.ascontiguousarray(allocation.by_kind)
    found = place_close(ground, seats, Wishes(wanted, order, jobs.spans, jobs.home), reserved)
    missing = (found.totals == 0) & (allocation.gpus > 0)
    return Placed(found, cramped(missing, allocation.gpus, ground))


def cramped(rows: BoolColumn, gpus: IntColumn, ground: Ground) -> Reasons:
    """Why rows that need all their GPUs on one node get none."""
    reasons, largest = Reasons(), int(ground.node_gpus.max(initial=0))
    for need in np.unique(gpus[rows]):
        why = (
            f"it needs {need} GPUs on one node, and no node has that many free "
            f"(the largest has {largest})"
        )
        reasons |= because(rows & (gpus == need), "Topology", why)
    return reasons

"""Keep who stays where it is, and put the others close together."""

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.cluster import Ground
from coddl.core.columns import IntColumn, IntMatrix
from coddl.core.compiling import kernel, part
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
)
from coddl.core.seats import Seats
from coddl.core.snapshot import Snapshot


@part
def on_node(ground: Ground, seats: Seats, row: int, i: int) -> int:
    """How many GPUs a row holds on the node of its entry i."""
    gpus = 0
    for j in range(seats.first[row], seats.first[row + 1]):
        if ground.island_node[seats.island[j]] == ground.island_node[seats.island[i]]:
            gpus += seats.gpus[j]
    return int(gpus)


@kernel
def keep(ground: Ground, seats: Seats, wanted: IntMatrix, taken: Taken) -> None:
    """Let rows keep what they hold, up to what they want of each kind; note it in `taken`.

    Who has to give up GPUs gives up those on the nodes where it has the fewest. `wanted` is [rows,
    kinds], or [rows, 1] where kinds play no part.
    """
    left = seats.gpus.copy()
    kinds = wanted.shape[1]
    for row in range(wanted.shape[0]):
        for kind in range(kinds):
            excess = -wanted[row, kind]
            for i in range(seats.first[row], seats.first[row + 1]):
                if kinds == 1 or ground.node_kind[ground.island_node[seats.island[i]]] == kind:
                    excess += left[i]
            while excess > 0:
                worst, fewest = NONE, 0
                for i in range(seats.first[row], seats.first[row + 1]):
                    here = (
                        kinds == 1 or ground.node_kind[ground.island_node[seats.island[i]]] == kind
                    )
                    if here and left[i] > 0:
                        gpus = on_node(ground, Seats(seats.first, seats.island, left), row, i)
                        if worst < 0 or gpus < fewest:
                            worst, fewest = i, gpus
                some = min(excess, left[worst])
                left[worst] -= some
                excess -= some
        for i in range(seats.first[row], seats.first[row + 1]):
            if left[i] > 0:
                note(taken, row, seats.island[i], left[i])


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
def place_close(
    ground: Ground, seats: Seats, wanted: IntMatrix, order: IntColumn, reserved: IntColumn
) -> Seats:
    """Seat every row, those that are seated first, then by `order`; who finds nothing gets less."""
    total = int(wanted.sum())
    taken = nothing_taken(total + seats.island.shape[0] + 1)
    keep(ground, seats, wanted, taken)
    used, held = reserved.copy(), np.zeros_like(wanted)
    kinds = wanted.shape[1]
    for i in range(taken.size[0]):
        used[taken.island[i]] += taken.gpus[i]
        kind = ground.node_kind[ground.island_node[taken.island[i]]] if kinds > 1 else 0
        held[taken.row[i], kind] += taken.gpus[i]
    room = room_of(ground, used)
    for row in order:
        for kind in range(kinds):
            need = wanted[row, kind] - held[row, kind]
            if need > 0:
                grow(room, taken, row, need, kind if kinds > 1 else NONE)
    return seats_from(wanted.shape[0], taken)


def close_seats(snapshot: Snapshot, allocation: Allocation, order: IntColumn) -> Seats:
    """Seats for an allocation: who stays keeps them, the others are placed in `order`."""
    ground, seats = snapshot.cluster.ground, snapshot.seats
    assert seats is not None, "rows that are placed sit somewhere, if only nowhere"
    reserved = snapshot.reserved
    if reserved is None:
        reserved = np.zeros(len(ground.island_gpus), np.int64)
    wanted = np.ascontiguousarray(allocation.by_kind)
    return place_close(ground, seats, wanted, order, reserved)

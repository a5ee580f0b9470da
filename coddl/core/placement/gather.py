"""On fewer nodes whenever a job is resized: it pauses anyway, so it may as well move."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.cluster import ClusterColumns
from coddl.core.columns import IntColumn
from coddl.core.compiling import ONE, ZERO, kernel, part
from coddl.core.placement.close import (
    PartialPlacement,
    PlacementRequest,
    after_keeping,
    give_up,
    grow_around,
    kept_back,
    place_row,
    placed_at,
    request_of,
    suits_preferred,
)
from coddl.core.placement.defragment import DefragmentEvery, MovesMax, defragmenting
from coddl.core.placement.estimate import (
    PlaceSpeed,
    count_nics,
    explained,
    place_speed,
    scene_of,
    step_there,
)
from coddl.core.placement.placement import Placed
from coddl.core.placement.room import (
    NONE,
    give_back,
    slots_from,
    take,
    take_close,
    take_island,
    take_within,
)
from coddl.core.slots import Slots
from coddl.core.snapshot import Snapshot
from coddl.core.speed.places import nodes_of

# Ways to place a row; behind them one for each kind of GPU.
STAY, TOGETHER, WIDEST, WAYS = range(4)


@part
def without_changing(slots: Slots, request: PlacementRequest) -> Slots:
    """The seats of the rows whose share stays; the others are placed as if they were new.

    Where rows want GPUs of each kind, there is little to choose, and all keep what they can.
    """
    gpus, kinds = slots.gpus.copy(), request.gpus.shape[1]
    for row in range(request.gpus.shape[0]):
        begin, end = slots.first[row], slots.first[row + 1]
        if kinds == 1 and gpus[begin:end].sum() != request.gpus[row, 0]:
            gpus[begin:end] = 0
    return Slots(slots.first, slots.island, gpus)


@part
def stay(found: PartialPlacement, seats: Slots, request: PlacementRequest, row: int) -> None:
    """Give a row what it has held, as far as it is free, then more next to that.

    `seats` is cut down to what it holds on to.
    """
    room, taken, begin = found.room, found.taken, found.taken.size[0]
    lack = found.lack[row, 0]
    for i in range(seats.first[row], seats.first[row + 1]):
        seats.gpus[i] = min(seats.gpus[i], room.island_free[seats.island[i]])
        lack -= seats.gpus[i]
    give_up(room.columns, seats, row, -lack, ZERO, request)
    for i in range(seats.first[row], seats.first[row + 1]):
        if seats.gpus[i] > 0:
            take_island(room, taken, row, seats.island[i], seats.gpus[i])
    if lack > 0:
        grow_around(found, begin, taken.size[0], row, lack, NONE)


@part
def lay(
    found: PartialPlacement, seats: Slots, request: PlacementRequest, row: int, way: int
) -> None:
    """Give a row all it wants: where it is, close together, on the emptiest nodes, or of a kind."""
    need, preferred = found.lack[row, 0], request.preferred_node[row]
    if way == STAY:
        stay(found, seats, request, row)
    elif way == TOGETHER and suits_preferred(found, row, preferred, need, NONE):
        take(found.room, found.taken, row, preferred, need)
    elif way == TOGETHER:
        take_close(found.room, found.taken, row, need, NONE)
    elif way == WIDEST:
        take_within(found.room, found.taken, row, need, NONE, NONE)
    else:
        take_close(found.room, found.taken, row, need, way - WAYS)


class Best(NamedTuple):
    """The best that a row has been offered."""

    step_s: float
    way: int
    end: int  # entries of what is taken that it has then
    gpus: int
    nodes: int


@part
def better(
    found: PartialPlacement, speed: PlaceSpeed, row: int, way: int, begin: int, best: Best
) -> Best:
    """The best so far, or as much of what a row has been given as makes it faster; of equals, the
    most GPUs on the fewest nodes.
    """
    gpus, kinds, widest = ZERO, speed.places.kinds.shape[1], speed.step_s.shape[1] - 1
    for i in range(begin, found.taken.size[0]):
        gpus += found.taken.gpus[i]
    for i in range(found.kept[row], found.kept[row + 1]):
        gpus += found.taken.gpus[i]
    for end in range(found.taken.size[0], begin, -1):
        # The table has the least that a step can take, unless there are faster kinds.
        if kinds > 1 or speed.step_s[speed.curve[row], min(gpus, widest)] <= best.step_s:
            scene = scene_of(found, speed, row, begin, end)
            step_s, nodes = step_there(scene, speed, row), nodes_of(scene, ZERO)
            wins = step_s == best.step_s < np.inf and (
                gpus > best.gpus or (gpus == best.gpus and nodes < best.nodes)
            )
            if step_s < best.step_s or wins:
                best = Best(step_s, way, end, gpus, nodes)
        gpus -= found.taken.gpus[end - 1]
    return best


@part
def place_anew(
    found: PartialPlacement, seats: Slots, request: PlacementRequest, speed: PlaceSpeed, row: int
) -> None:
    """Give a row as much of the best way as makes it fastest."""
    room, taken, kinds = found.room, found.taken, found.room.zone_kind.max() + 1
    begin, zones = taken.size[0], room.zone_free.shape[0]
    wanted, largest = request.gpus[row, 0], room.head.shape[1] - 1  # node
    fewest = (wanted + largest - 1) // largest
    best = Best(np.inf, ZERO, begin, ZERO, ZERO)
    first = STAY if seats.first[row] < seats.first[row + 1] else TOGETHER
    for way in range(first, WAYS + kinds if kinds > 1 else WAYS):
        # In one zone all free nodes are alike: two ways are one, and fewest nodes are best.
        if zones == 1 and (way == WIDEST or (best.gpus == wanted and best.nodes == fewest)):
            break
        lay(found, seats, request, row, way)
        best = better(found, speed, row, way, begin, best)
        give_back(room, taken, begin)
    lay(found, seats, request, row, best.way)
    give_back(room, taken, best.end)
    count_nics(scene_of(found, speed, row, begin, best.end), ONE)


@kernel
def place_gathered(
    columns: ClusterColumns,
    slots: Slots,
    request: PlacementRequest,
    reserved: IntColumn,
    speed: PlaceSpeed,
) -> Slots:
    """Seat every row: those whose share stays where they are, then those that can't span nodes,
    then the others by order.
    """
    found = after_keeping(columns, without_changing(slots, request), request, reserved)
    rows, kinds = request.gpus.shape
    seats = Slots(slots.first, slots.island, slots.gpus.copy())
    for row in range(rows):
        if found.kept[row + 1] > found.kept[row] + 1:
            count_nics(scene_of(found, speed, row, ZERO, ZERO), ONE)
    for spans in range(2):
        for row in request.order:
            if found.lack[row].max() <= 0 or (request.spans[row] > 0) != (spans > 0):
                continue
            if spans > 0 and kinds == 1:
                place_anew(found, seats, request, speed, row)
            else:
                place_row(found, slots, request, row)
    return slots_from(rows, found.taken)


@dataclass(frozen=True)
class Gather:
    """Places a job anew whenever its share changes, where it is estimated to train fastest: where
    it is, or on fewer nodes. Jobs that keep their share stay.

    As `estimate`, it may give a job less than its share, if that is faster. The largest job goes
    first of those that fit on a node, then the largest of the others.
    """

    defragment_h: DefragmentEvery = 0.0
    moves: MovesMax = 8

    def __call__(self, snapshot: Snapshot, allocation: Allocation) -> Placed:
        place = defragmenting(_gathered, self.defragment_h, self.moves)
        return place(snapshot, allocation)


def _gathered(snapshot: Snapshot, allocation: Allocation) -> Placed:
    shares, columns, slots = allocation.gpus, snapshot.cluster.columns, snapshot.slots
    assert slots is not None
    # What fits on a node goes first: it loses most by lying on two, and finds whole gaps still.
    spills = shares > columns.node_gpus.max(initial=0)
    request = request_of(snapshot, allocation, np.lexsort((snapshot.jobs.id, -shares, spills)))
    speed = place_speed(snapshot)
    found = place_gathered(columns, slots, request, kept_back(snapshot), speed)
    return explained(placed_at(found, snapshot, allocation), allocation)

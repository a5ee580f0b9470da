"""By estimated speed: few GPUs close together against many far apart."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.cluster import ClusterColumns
from coddl.core.columns import FloatMatrix, IntColumn
from coddl.core.compiling import ONE, ZERO, kernel, part
from coddl.core.placement.close import (
    PartialPlacement,
    PlacementRequest,
    after_keeping,
    grow,
    kept_back,
    place_row,
    placed_at,
    request_of,
)
from coddl.core.placement.defragment import DefragmentEvery, MovesMax, defragmenting
from coddl.core.placement.placement import Placed
from coddl.core.placement.room import (
    NONE,
    give_back,
    note,
    nothing_taken,
    slots_from,
    take_close,
    take_within,
)
from coddl.core.slots import Slots
from coddl.core.snapshot import Snapshot
from coddl.core.speed.places import Occupancy, Places, is_new_node, nodes_of, slowdown
from coddl.core.waiting import counted


class PlaceSpeed(NamedTuple):
    """How fast rows are, by share and by place."""

    step_s: FloatMatrix
    places: Places
    curve: IntColumn
    least: IntColumn  # GPUs that a row needs to run at all
    crossing: IntColumn  # by node: jobs that use its NIC
    of_kind: IntColumn  # scratch


@part
def scene_of(
    found: PartialPlacement, speed: PlaceSpeed, row: int, begin: int, end: int
) -> Occupancy:
    """One row alone, on what it has kept and on entries begin .. end-1."""
    taken, kept = found.taken, found.kept
    mine = nothing_taken(kept[row + 1] - kept[row] + end - begin)
    for i in range(kept[row], kept[row + 1]):
        note(mine, ZERO, taken.island[i], taken.gpus[i])
    for i in range(begin, end):
        note(mine, ZERO, taken.island[i], taken.gpus[i])
    slots = slots_from(ONE, mine)
    return Occupancy(speed.places, found.room.columns, slots, speed.crossing, speed.of_kind)


@part
def count_nics(occupancy: Occupancy, jobs: int) -> None:
    """Count a row that lies on several nodes among those that use their NICs, or no longer."""
    if nodes_of(occupancy, ZERO) > 1:
        for i in range(occupancy.slots.island.shape[0]):
            if is_new_node(occupancy, ZERO, i):
                occupancy.crossing[occupancy.columns.island_node[occupancy.slots.island[i]]] += jobs


@part
def step_there(occupancy: Occupancy, speed: PlaceSpeed, row: int) -> float:
    """Seconds per step of a row where it would be; forever with too few GPUs."""
    gpus = occupancy.slots.gpus.sum()
    if gpus < speed.least[row]:
        return np.inf
    curve, widest = speed.curve[row], speed.step_s.shape[1] - 1
    count_nics(occupancy, ONE)
    factor = slowdown(occupancy, ZERO, curve)
    count_nics(occupancy, -ONE)
    return float(speed.step_s[curve, min(gpus, widest)] * factor)


@part
def lay(found: PartialPlacement, row: int, way: int) -> None:
    """Give a row what it lacks: close together, or on the emptiest nodes, or of one kind."""
    need = found.lack[row, 0]
    if way == 0:
        grow(found, row, need, NONE)
    elif way == 1:
        take_within(found.room, found.taken, row, need, NONE, NONE)
    else:
        take_close(found.room, found.taken, row, need, way - 2)


@part
def place_fastest(found: PartialPlacement, speed: PlaceSpeed, row: int) -> None:
    """Try ways to give a row what it lacks, and give it as much of the best as makes it fastest."""
    room, taken, kinds = found.room, found.taken, found.room.zone_kind.max() + 1
    begin = taken.size[0]
    occupancy = scene_of(found, speed, row, begin, begin)
    count_nics(occupancy, -ONE)
    best_s, best_way, best_end, best_gpus = step_there(occupancy, speed, row), ZERO, begin, 0
    for way in range(2 + kinds if kinds > 1 else 2):
        lay(found, row, way)
        gpus = 0
        for end in range(begin + 1, taken.size[0] + 1):
            gpus += taken.gpus[end - 1]
            step_s = step_there(scene_of(found, speed, row, begin, end), speed, row)
            if step_s < best_s or (step_s == best_s < np.inf and gpus > best_gpus):
                best_s, best_way, best_end, best_gpus = step_s, way, end, gpus
        give_back(room, taken, begin)
    lay(found, row, best_way)
    give_back(room, taken, best_end)
    count_nics(scene_of(found, speed, row, begin, best_end), ONE)


@kernel
def place_by_speed(
    columns: ClusterColumns,
    slots: Slots,
    request: PlacementRequest,
    reserved: IntColumn,
    speed: PlaceSpeed,
) -> Slots:
    """Seat every row: seated ones first, then those that can't span nodes, then others by order.

    A row that wants a number of each kind gets them close together: there is nothing to choose.
    """
    found = after_keeping(columns, slots, request, reserved)
    rows, kinds = request.gpus.shape
    for row in range(rows):
        if found.kept[row + 1] > found.kept[row] + 1:
            count_nics(scene_of(found, speed, row, ZERO, ZERO), ONE)
    for spans in range(2):
        for row in request.order:
            if found.lack[row].max() <= 0 or (request.spans[row] > 0) != (spans > 0):
                continue
            if spans > 0 and kinds == 1:
                place_fastest(found, speed, row)
            else:
                place_row(found, slots, request, row)
    return slots_from(rows, found.taken)


@dataclass(frozen=True)
class ByEstimate:
    """Puts each job where it is estimated to train fastest, the largest first; moves no job.

    Two GPUs in a node may be faster than three in two: then a job is given two of three.
    """

    defragment_h: DefragmentEvery = 0.0
    moves: MovesMax = 8

    def __call__(self, snapshot: Snapshot, allocation: Allocation) -> Placed:
        place = defragmenting(_placed_by_speed, self.defragment_h, self.moves)
        return place(snapshot, allocation)


def _placed_by_speed(snapshot: Snapshot, allocation: Allocation) -> Placed:
    order = np.lexsort((snapshot.jobs.id, -allocation.gpus))
    request, slots = request_of(snapshot, allocation, order), snapshot.slots
    assert slots is not None
    columns, speed = snapshot.cluster.columns, place_speed(snapshot)
    found = place_by_speed(columns, slots, request, kept_back(snapshot), speed)
    return explained(placed_at(found, snapshot, allocation), allocation)


def place_speed(snapshot: Snapshot) -> PlaceSpeed:
    """How fast the rows of a snapshot are, before any of them is placed."""
    jobs, speeds = snapshot.jobs, snapshot.speeds
    empty = np.zeros(len(snapshot.cluster.columns.node_gpus), np.int64)
    kinds = np.zeros(speeds.places.kinds.shape[1], np.int64)
    return PlaceSpeed(speeds.step_s, speeds.places, jobs.curve, jobs.gpus_min, empty, kinds)


def explained(placed: Placed, allocation: Allocation) -> Placed:
    """The same, with a sentence for each row that is faster on less than its share."""
    given, wanted = placed.shares, allocation.gpus
    cut = np.flatnonzero((given > 0) & (given < wanted)).tolist()
    faster = {
        row: f"placed this way, it is faster on {counted(given[row], 'GPU')} than on {wanted[row]}"
        for row in cut
    }
    return replace(placed, why=faster)

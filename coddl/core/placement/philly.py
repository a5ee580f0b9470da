"""Locality first, and less of it the longer a job waits for a place."""

from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np

from coddl.core.allocation import Allocation, because
from coddl.core.cluster import ClusterColumns
from coddl.core.columns import BoolColumn, IntColumn, IntMatrix
from coddl.core.compiling import kernel, part
from coddl.core.named import Meaning
from coddl.core.placement.close import (
    PartialPlacement,
    PlacementRequest,
    after_keeping,
    grow,
    kept_back,
    leaders_of,
    request_of,
)
from coddl.core.placement.placement import Placed
from coddl.core.placement.room import (
    NONE,
    FreeGpus,
    Taken,
    nodes_to_hold,
    nothing_taken,
    slots_from,
    take,
    widest,
)
from coddl.core.slots import Slots
from coddl.core.snapshot import Snapshot

SLACK_S: Final = 1e-6  # more than times differ by rounding


@part
def census(room: FreeGpus, kind: int) -> IntMatrix:
    """How many nodes of a kind (-1: any) each rack has, by number of free GPUs."""
    columns = room.columns
    counts = np.zeros((room.rack_free.shape[0], room.head.shape[1]), np.int64)
    for node in range(room.node_free.shape[0]):
        if kind < 0 or columns.node_kind[node] == kind:
            counts[columns.node_rack[node], room.node_free[node]] += 1
    return counts


@part
def free_on(counts: IntMatrix, rack: int, nodes: int) -> int:
    """GPUs that are free on the `nodes` emptiest nodes of a rack (-1: of all)."""
    gpus = 0
    for free in range(counts.shape[1] - 1, 0, -1):
        here = counts[:, free].sum() if rack < 0 else counts[rack, free]
        some = min(nodes, here)
        gpus += some * free
        nodes -= some
    return int(gpus)


@part
def rack_with_most(counts: IntMatrix, need: int, nodes: int) -> int:
    """The rack with most nodes that can give an equal part of the need; best one with all of it."""
    equal, best, best_rank = (need + nodes - 1) // nodes, -1, -1
    for rack in range(counts.shape[0]):
        suitable = 0
        for free in range(min(equal, counts.shape[1]), counts.shape[1]):
            suitable += counts[rack, free]
        fits = free_on(counts, rack, nodes) >= need
        rank = suitable + (counts.shape[1] * counts.sum() if fits else 0)
        if rank > best_rank:
            best, best_rank = rack, rank
    return int(best)


@part
def take_emptiest(
    found: PartialPlacement, taken: Taken, row: int, need: int, rack: int, kind: int, nodes: int
) -> None:
    """Take up to `need` GPUs on up to `nodes` nodes of a rack and kind (-1: any), the emptiest."""
    for _ in range(nodes):
        node = widest(found.room, kind, rack)
        if node < 0 or need == 0:
            break
        some = min(need, found.room.node_free[node])
        take(found.room, taken, row, node, some)
        need -= some


@part
def ask(found: PartialPlacement, held: Taken, row: int, need: int, kind: int, more: int) -> bool:
    """Try to seat a row on the fewest nodes, or on up to `more`; else hold what is free there."""
    room, counts = found.room, census(found.room, kind)
    fewest = nodes_to_hold(room, room.columns.node_gpus, need, kind)
    rack = NONE
    for nodes in range(fewest, fewest + more + 1):
        rack = rack_with_most(counts, need, nodes)
        if free_on(counts, rack, nodes) >= need:
            take_emptiest(found, found.taken, row, need, rack, kind, nodes)
            return True
        if nodes >= need:
            break
    most, in_rack = fewest + more, counts.sum(axis=1).max()
    # In one rack there is no locality left to give up: several racks will do.
    if most >= min(need, in_rack) and free_on(counts, NONE, most) >= need:
        take_emptiest(found, found.taken, row, need, NONE, kind, most)
        return True
    take_emptiest(found, held, row, need, rack, kind, most)
    return False


@kernel
def place_local(
    columns: ClusterColumns,
    slots: Slots,
    request: PlacementRequest,
    reserved: IntColumn,
    asks: BoolColumn,
    more: IntColumn,
) -> tuple[Slots, IntColumn]:
    """Seats, and by island what is held for rows that do not have all they need yet.

    A seated row stays and grows. The others ask in order of `wishes`, those of `asks`.
    """
    found = after_keeping(columns, slots, request, reserved)
    kinds, held = request.gpus.shape[1], nothing_taken(int(columns.island_gpus.sum()) + 1)
    for row in request.order:
        sits, kind = found.kept[row + 1] > found.kept[row], NONE
        for each in range(kinds):
            need = found.lack[row, each]
            if kinds > 1:
                kind = each
            if need > 0 and sits:
                grow(found, row, need, kind)
            elif need > 0 and asks[row]:
                limit = more[row]
                if request.spans[row] == 0:
                    # 0, or it can't be seated at all.
                    limit = 1 - nodes_to_hold(found.room, columns.node_gpus, need, kind)
                if limit >= 0:
                    ask(found, held, row, need, kind, limit)
    for_later = np.zeros_like(columns.island_gpus)
    for i in range(held.size[0]):
        for_later[held.island[i]] += held.gpus[i]
    return slots_from(request.gpus.shape[0], found.taken), for_later


@dataclass(frozen=True)
class PhillyPlacement:
    """Starts a job on the fewest nodes of one rack, and relaxes that while it has no place.

    A job that has a share asks for nodes of the rack that has most of them with room, the emptiest
    of these first, even if it fits next to others: few nodes are left without a job. It holds what
    is free there. If it does not get all its GPUs within `timeout_s` it releases what it
    holds, waits for `backoff_s`, and asks again, each time on up to one more node; in the end in
    several racks. What it waited for before it had a share does not count.
    (Philly, ATC '19.)
    """

    timeout_s: Annotated[
        float, "above 0", Meaning("seconds a job holds what it has got while it waits for the rest")
    ] = 150.0
    backoff_s: Annotated[float, Meaning("seconds it then waits before it asks again")] = 120.0

    def __call__(self, snapshot: Snapshot, allocation: Allocation) -> Placed:
        columns, slots, jobs = snapshot.cluster.columns, snapshot.slots, snapshot.jobs
        assert slots is not None, "rows that are placed sit somewhere, if only nowhere"
        cycle_s, unplaced_s = self.timeout_s + self.backoff_s, snapshot.unplaced_s + SLACK_S
        tries = np.floor(unplaced_s / cycle_s)
        since_s = unplaced_s - tries * cycle_s
        asks = since_s < self.timeout_s
        order = np.lexsort((jobs.id, jobs.submitted_s))
        request = request_of(snapshot, allocation, order)
        before, more = kept_back(snapshot), np.minimum(tries, 1e9).astype(np.int64)
        found, held = place_local(columns, slots, request, before, asks, more)
        found = found.take(leaders_of(slots, allocation))
        # All or none: a row that has found GPUs of one kind and not of another waits, too.
        starts = (slots.totals == 0) | (found.totals == 0)
        refused = starts & (found.totals < allocation.gpus)
        # A row that has lost some of its GPUs, as on a drained node, may have too few left to run
        # on.
        refused |= found.totals < np.minimum(jobs.gpus_min, allocation.gpus)
        found = found.take(np.where(refused, -1, np.arange(slots.rows)))
        next_s = snapshot.now_s + np.where(asks, self.timeout_s, cycle_s) - since_s + SLACK_S
        holding = "nearby nodes do not have enough free GPUs; the free ones are reserved for it"
        resting = "nearby nodes did not have enough free GPUs; more nodes are considered soon"
        return Placed(
            found,
            because(refused & asks, "Topology", holding) | because(refused, "Topology", resting),
            float(next_s[refused].min(initial=np.inf)),
            # What others hold until this decision takes effect may be theirs again in the next.
            reserved=np.clip(columns.island_gpus - slots.in_use(columns) - before, 0, held),
        )

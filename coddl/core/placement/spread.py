"""Wherever there is most room."""

from dataclasses import dataclass

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.cluster import ClusterColumns
from coddl.core.columns import IntColumn
from coddl.core.compiling import ONE, kernel
from coddl.core.placement.close import (
    PlacementRequest,
    after_keeping,
    kept_back,
    placed_at,
    request_of,
)
from coddl.core.placement.placement import Placed
from coddl.core.placement.room import NONE, slots_from, take, widest
from coddl.core.slots import Slots
from coddl.core.snapshot import Snapshot


@kernel
def place_spread(
    columns: ClusterColumns, slots: Slots, request: PlacementRequest, reserved: IntColumn
) -> Slots:
    """Seat every row, those that are seated first, then by order, one GPU after the other."""
    found = after_keeping(columns, slots, request, reserved)
    room, kinds = found.room, request.gpus.shape[1]
    for row in request.order:
        for kind in range(kinds):
            need, of_kind = found.lack[row, kind], kind if kinds > 1 else NONE
            at_once = ONE if request.spans[row] > 0 else need
            while need > 0:
                node = widest(room, of_kind, NONE)
                if node < 0 or room.node_free[node] < at_once:
                    break
                take(room, found.taken, row, node, at_once)
                need -= at_once
    return slots_from(request.gpus.shape[0], found.taken)


@dataclass(frozen=True)
class SpreadOut:
    """Puts each GPU of a job on the node with most room, as load balancers do; moves no job.

    It knows nothing of gangs and links: the default of schedulers made for services, and what other
    placements are compared with.
    """

    def __call__(self, snapshot: Snapshot, allocation: Allocation) -> Placed:
        order = np.argsort(snapshot.jobs.id, kind="stable")
        request, slots = request_of(snapshot, allocation, order), snapshot.slots
        assert slots is not None
        found = place_spread(snapshot.cluster.columns, slots, request, kept_back(snapshot))
        return placed_at(found, snapshot, allocation)

"""Wherever there is most room."""

from dataclasses import dataclass

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.cluster import Ground
from coddl.core.columns import IntColumn
from coddl.core.compiling import ONE, kernel
from coddl.core.placement.close import Wishes, after_keeping, kept_back, placed_at, wishes_of
from coddl.core.placement.placement import Placed
from coddl.core.placement.room import NONE, seats_from, take, widest
from coddl.core.seats import Seats
from coddl.core.snapshot import Snapshot


@kernel
def place_spread(ground: Ground, seats: Seats, wishes: Wishes, reserved: IntColumn) -> Seats:
    """Seat every row, those that are seated first, then by order, one GPU after the other."""
    found = after_keeping(ground, seats, wishes, reserved)
    room, kinds = found.room, wishes.gpus.shape[1]
    for row in wishes.order:
        for kind in range(kinds):
            need, of_kind = found.lack[row, kind], kind if kinds > 1 else NONE
            at_once = ONE if wishes.spans[row] > 0 else need
            while need > 0:
                node = widest(room, of_kind, NONE)
                if node < 0 or room.node_free[node] < at_once:
                    break
                take(room, found.taken, row, node, at_once)
                need -= at_once
    return seats_from(wishes.gpus.shape[0], found.taken)


@dataclass(frozen=True)
class SpreadOut:
    """Puts each GPU of a job on the node with most room, as load balancers do; moves nobody.

    It knows nothing of gangs and links: the default of schedulers made for services, and what other
    placements are compared with.
    """

    def __call__(self, snapshot: Snapshot, allocation: Allocation) -> Placed:
        order = np.argsort(snapshot.jobs.id, kind="stable")
        wishes, seats = wishes_of(snapshot, allocation, order), snapshot.seats
        assert seats is not None
        found = place_spread(snapshot.cluster.ground, seats, wishes, kept_back(snapshot))
        return placed_at(found, snapshot, allocation)

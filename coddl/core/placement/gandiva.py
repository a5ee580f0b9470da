"""On servers with jobs of the same size."""

from dataclasses import dataclass, replace

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.cluster import Ground
from coddl.core.columns import IntColumn
from coddl.core.compiling import kernel, part
from coddl.core.placement.affinity import RELAXED, Servers, get_nodes, move_in
from coddl.core.placement.close import (
    Wishes,
    after_keeping,
    kept_back,
    placed_close,
    wishes_of,
)
from coddl.core.placement.placement import Placed
from coddl.core.placement.room import Room, Taken, seats_from, take
from coddl.core.seats import Seats
from coddl.core.snapshot import Snapshot


@part
def servers_in_use(room: Room, taken: Taken, wishes: Wishes, reserved: IntColumn) -> Servers:
    """The servers as they are used now; the first row on one gives it its affinity.

    What is kept for somebody is no part of them.
    """
    gpus = room.ground.node_gpus.copy()
    for island in range(reserved.shape[0]):
        gpus[room.ground.island_node[island]] -= reserved[island]
    servers = Servers(gpus, gpus - room.node_free, np.zeros_like(gpus))
    for i in range(taken.size[0]):
        node = room.ground.island_node[taken.island[i]]
        if servers.affinity[node] == 0:
            servers.affinity[node] = wishes.gpus[taken.row[i]].sum()
    return servers


@kernel
def settle_new(ground: Ground, seats: Seats, wishes: Wishes, reserved: IntColumn) -> Seats:
    """Seats in which rows that sat nowhere are where Algorithm 1 puts them, if GPUs are free.

    Rows that sit somewhere keep what they want of it.
    """
    found = after_keeping(ground, seats, wishes, reserved)
    room, taken, kinds = found.room, found.taken, wishes.gpus.shape[1]
    servers, parts = servers_in_use(room, taken, wishes, reserved), np.zeros_like(ground.node_gpus)
    for row in wishes.order:
        for kind in range(kinds if seats.first[row] == seats.first[row + 1] else 0):
            need = wishes.gpus[row, kind]
            suits = servers
            if kinds > 1:
                gpus = np.where(ground.node_kind == kind, servers.gpus, 0)
                suits = Servers(gpus, servers.load, servers.affinity)
            if need == 0 or get_nodes(suits, need, wishes.spans[row], parts) > RELAXED:
                continue
            for node in range(parts.shape[0]):
                if parts[node] > 0:
                    move_in(servers, node, need, parts[node])
                    take(room, taken, row, node, parts[node])
    return seats_from(wishes.gpus.shape[0], taken)


@dataclass(frozen=True)
class GandivaPlacement:
    """Puts jobs that hold as many GPUs on the same servers, in order of submission; moves nobody.

    A server with such jobs and room comes first, then an empty one, then any. (Gandiva, OSDI '18,
    Algorithm 1, where GPUs are free; the policy `gandiva` also over-subscribes servers.)
    """

    def __call__(self, snapshot: Snapshot, allocation: Allocation) -> Placed:
        order = np.argsort(snapshot.jobs.id)
        wishes, seats = wishes_of(snapshot, allocation, order), snapshot.seats
        assert seats is not None
        settled = settle_new(snapshot.cluster.ground, seats, wishes, kept_back(snapshot))
        return placed_close(replace(snapshot, seats=settled), allocation, order)

"""On servers with jobs of the same size."""

from dataclasses import dataclass, replace

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.cluster import ClusterColumns
from coddl.core.columns import IntColumn
from coddl.core.compiling import kernel, part
from coddl.core.placement.affinity import RELAXED, NodeLoads, add_load, get_nodes
from coddl.core.placement.close import (
    PlacementRequest,
    after_keeping,
    kept_back,
    placed_close,
    request_of,
)
from coddl.core.placement.placement import Placed
from coddl.core.placement.room import FreeGpus, Taken, slots_from, take
from coddl.core.slots import Slots
from coddl.core.snapshot import Snapshot


@part
def servers_in_use(
    room: FreeGpus, taken: Taken, request: PlacementRequest, reserved: IntColumn
) -> NodeLoads:
    """The servers as they are used now; the first row on one gives it its affinity.

    What is kept for a job is no part of them.
    """
    gpus = room.columns.node_gpus.copy()
    for island in range(reserved.shape[0]):
        gpus[room.columns.island_node[island]] -= reserved[island]
    servers = NodeLoads(gpus, gpus - room.node_free, np.zeros_like(gpus))
    for i in range(taken.size[0]):
        node = room.columns.island_node[taken.island[i]]
        if servers.affinity[node] == 0:
            servers.affinity[node] = request.gpus[taken.row[i]].sum()
    return servers


@kernel
def assign_new(
    columns: ClusterColumns, slots: Slots, request: PlacementRequest, reserved: IntColumn
) -> Slots:
    """Seats in which rows that sat nowhere are where Algorithm 1 puts them, if GPUs are free.

    Rows that sit somewhere keep what they want of it.
    """
    found = after_keeping(columns, slots, request, reserved)
    room, taken, kinds = found.room, found.taken, request.gpus.shape[1]
    servers, parts = (
        servers_in_use(room, taken, request, reserved),
        np.zeros_like(columns.node_gpus),
    )
    for row in request.order:
        for kind in range(kinds if slots.first[row] == slots.first[row + 1] else 0):
            need = request.gpus[row, kind]
            suits = servers
            if kinds > 1:
                gpus = np.where(columns.node_kind == kind, servers.gpus, 0)
                suits = NodeLoads(gpus, servers.load, servers.affinity)
            if need == 0 or get_nodes(suits, need, request.spans[row], parts) > RELAXED:
                continue
            for node in range(parts.shape[0]):
                if parts[node] > 0:
                    add_load(servers, node, need, parts[node])
                    take(room, taken, row, node, parts[node])
    return slots_from(request.gpus.shape[0], taken)


@dataclass(frozen=True)
class GandivaPlacement:
    """Puts jobs that hold as many GPUs on the same servers, in order of submission; moves no job.

    A server with such jobs and room comes first, then an empty one, then any. (Gandiva, OSDI '18,
    Algorithm 1, where GPUs are free; the policy `gandiva` also over-subscribes servers.)
    """

    def __call__(self, snapshot: Snapshot, allocation: Allocation) -> Placed:
        order = np.argsort(snapshot.jobs.id)
        request, slots = request_of(snapshot, allocation, order), snapshot.slots
        assert slots is not None
        settled = assign_new(snapshot.cluster.columns, slots, request, kept_back(snapshot))
        return placed_close(replace(snapshot, slots=settled), allocation, order)

"""Gather only jobs that need it (Tiresias, NSDI '19, model profile-based placement)."""

from dataclasses import dataclass, replace
from typing import Annotated, Final

import numpy as np

from coddl.core.allocation import Allocation, because
from coddl.core.cluster import ClusterColumns
from coddl.core.columns import BoolColumn, IntColumn
from coddl.core.compiling import ONE, kernel, part
from coddl.core.named import Meaning, Part
from coddl.core.placement.close import (
    PartialPlacement,
    PlacementRequest,
    after_keeping,
    kept_back,
    lone_node,
    placed_at,
    request_of,
)
from coddl.core.placement.placement import Placed
from coddl.core.placement.room import (
    NONE,
    FreeGpus,
    Taken,
    nodes_to_hold,
    slots_from,
    take,
    take_within,
    tightest,
)
from coddl.core.slots import Slots
from coddl.core.snapshot import Snapshot

PAYS: Final = 1.05  # a job that one node more slows down by more than that is better gathered


@part
def take_together(found: PartialPlacement, row: int, need: int, kind: int) -> None:
    """Give a row `need` more GPUs if it then lies on the fewest nodes there could be; or none."""
    room, taken, columns = found.room, found.taken, found.room.columns
    free, mine, held, left = room.node_free.copy(), 0, 0, need
    seen = np.zeros(free.shape[0], np.bool_)
    for i in range(found.kept[row], found.kept[row + 1]):
        node = columns.island_node[taken.island[i]]
        if kind >= 0 and columns.node_kind[node] != kind:
            continue
        held += taken.gpus[i]
        if not seen[node]:
            seen[node] = True
            mine += 1
            left -= free[node]
            free[node] = 0
    fewest = nodes_to_hold(room, columns.node_gpus, held + need, kind)
    if left > 0 and mine + nodes_to_hold(room, free, left, kind) > fewest:
        return
    for i in range(found.kept[row], found.kept[row + 1]):
        node = columns.island_node[taken.island[i]]
        some = min(need, room.node_free[node])
        if some > 0 and seen[node]:
            take(room, taken, row, node, some)
            need -= some
    take_within(room, taken, row, need, kind, NONE)


@part
def take_gaps(room: FreeGpus, taken: Taken, row: int, need: int, kind: int) -> None:
    """Give a row GPUs of nodes that are in use already, as far as there are any."""
    while need > 0:
        node = tightest(room, need, kind, NONE)
        if node < 0 or room.node_free[node] == room.columns.node_gpus[node]:
            node = tightest(room, ONE, kind, NONE)
        if node < 0:
            break
        some = min(need, room.node_free[node])
        take(room, taken, row, node, some)
        need -= some


@kernel
def place_by_profile(
    columns: ClusterColumns,
    slots: Slots,
    request: PlacementRequest,
    skewed: BoolColumn,
    reserved: IntColumn,
) -> Slots:
    """Seat every row: seated ones first, then by order; a skewed one on the fewest nodes only."""
    found = after_keeping(columns, slots, request, reserved)
    room, kinds = found.room, request.gpus.shape[1]
    for row in request.order:
        for kind in range(kinds):
            need, of_kind = found.lack[row, kind], kind if kinds > 1 else NONE
            if need <= 0:
                continue
            if request.spans[row] == 0:
                node = lone_node(room, slots, row, need, of_kind)
                if node >= 0:
                    take(room, found.taken, row, node, need)
            elif skewed[row]:
                take_together(found, row, need, of_kind)
            else:
                take_gaps(room, found.taken, row, need, of_kind)
    return slots_from(request.gpus.shape[0], found.taken)


def fitted_limit(snapshot: Snapshot, shares: IntColumn, near: float) -> float:
    """The limit of skew that mistakes fewest rows that are better gathered, or not, for the other.

    Tiresias refits its limit by a linear classifier to what placements have done to jobs; this is
    the same for one feature, on what is known of places. Of limits as good, the nearest to `near`.
    """
    places, rows = snapshot.speeds.places, np.flatnonzero(shares > 1)
    curves, gpus = snapshot.jobs.curve[rows], shares[rows]
    fewest = 1 + np.searchsorted(np.cumsum(-np.sort(-snapshot.cluster.columns.node_gpus)), gpus)
    _, gpus_most, nodes_most = np.array(places.nodes.shape) - 1
    gathered, apart = (
        places.nodes[curves, np.minimum(gpus, gpus_most), np.minimum(nodes, nodes_most)]
        for nodes in (fewest, fewest + 1)
    )
    pays, skew = apart > PAYS * gathered, places.skew[curves]
    seen = np.unique(skew)
    limits = np.concatenate(([near], seen[:1] / 2, (seen[:-1] + seen[1:]) / 2, seen[-1:]))
    mistaken = ((skew > limits[:, None]) != pays).sum(axis=1)
    return float(limits[np.lexsort((np.abs(limits - near), mistaken))[0]])


@dataclass(frozen=True)
class TiresiasPlacement:
    """Gathers jobs whose models are skewed on the fewest nodes, for which they wait; moves no job.

    A model is skewed if one tensor makes up more than `pack_limit` of its parameters: VGG19 has
    0.72 and AlexNet 0.61, Inception-v3 0.14 and ResNet-50 0.11. The other jobs fill gaps, as long
    as there are any. A skewed job that grows stays as it is until the fewest nodes have room.
    With `fit` the limit is chosen at each decision, for the jobs there are.
    """

    pack_limit: Annotated[
        Part, Meaning("a model is gathered if one tensor makes up more of it than this")
    ] = 0.4  # anything within 0.15 and 0.6 parts the models that were profiled
    fit: Annotated[
        bool, Meaning("true: at each decision, the limit that mistakes the fewest jobs")
    ] = False

    def __call__(self, snapshot: Snapshot, allocation: Allocation) -> Placed:
        jobs, slots, columns = snapshot.jobs, snapshot.slots, snapshot.cluster.columns
        limit = self.pack_limit
        if self.fit:
            limit = fitted_limit(snapshot, allocation.gpus, limit)
        skewed = snapshot.speeds.places.skew[jobs.curve] > limit
        order = np.lexsort((jobs.id, -allocation.gpus, ~skewed, jobs.spans))
        request = request_of(snapshot, allocation, order)
        assert slots is not None
        found = place_by_profile(columns, slots, request, skewed, kept_back(snapshot))
        placed = placed_at(found, snapshot, allocation)
        why = "its model is slow across nodes, and the fewest nodes that can hold it are not free"
        refused = (placed.shares == 0) & (allocation.gpus > 0)
        apart = because(refused & skewed & (jobs.spans > 0), "Topology", why)
        return replace(placed, waiting=apart | placed.waiting)

"""On as few nodes as possible."""

from dataclasses import dataclass

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.placement.close import placed_close
from coddl.core.placement.defragment import DefragmentEvery, MovesMax, defragmenting
from coddl.core.placement.placement import Placed
from coddl.core.snapshot import Snapshot


@dataclass(frozen=True)
class Consolidate:
    """Puts each job on the fewest nodes that have room, the largest job first; moves no job.

    A job that fits on a node takes the one that it fills best. One that does not takes the emptiest
    nodes of the rack that it fills best, or of several racks if it must.
    """

    defragment_h: DefragmentEvery = 0.0
    moves: MovesMax = 8

    def __call__(self, snapshot: Snapshot, allocation: Allocation) -> Placed:
        place = defragmenting(_consolidated, self.defragment_h, self.moves)
        return place(snapshot, allocation)


def _consolidated(snapshot: Snapshot, allocation: Allocation) -> Placed:
    order = np.lexsort((snapshot.jobs.id, -allocation.gpus))
    return placed_close(snapshot, allocation, order)

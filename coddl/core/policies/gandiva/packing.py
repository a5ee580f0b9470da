"""Packing: two jobs on the same GPUs, tried under overload and undone where it does not pay."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn
from coddl.core.policies.gandiva.assignment import BITS, COLUMN
from coddl.core.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Overload:
    """Rows that might share GPUs, and by how many GPUs each server has too few."""

    node: IntColumn  # of rows that are assigned to one server; -1 for others
    excess: IntColumn  # by node: load over what it has; packing lowers it
    now: int  # the slice of time
    profiled_s: float  # a job's utilisation is known after so long
    busy_below: float  # a job that keeps its GPUs less busy than this may be packed


def rate_of_pair(snapshot: Snapshot, a: int, b: int) -> float:
    """What two jobs on one GPU do together, as a part of what a GPU does that they share in turns.

    The rate of each, against being alone, is one over the factor on its step time.
    """
    packed, curve = snapshot.speeds.places.packed, snapshot.jobs.curve
    return float(1.0 / packed[curve[a], curve[b]] + 1.0 / packed[curve[b], curve[a]])


def pack(snapshot: Snapshot, overload: Overload, memory: FloatMatrix) -> IntColumn:
    """The row that each row shares GPUs with, or -1; keeps the account of trials in `memory`.

    A pair is looked at after a slice of time: if the two do more together than in turns it stays,
    else it is undone and not tried again. As long as a server has too many jobs, the two that keep
    GPUs least busy are tried next, one pair at a time. (Gandiva, OSDI '18, section 4.)
    """
    packed_with = np.full(snapshot.jobs.size, -1)
    trials: set[int] = set()  # servers with a pair whose worth is not known yet
    for a, b in _pairs(snapshot, overload, memory):
        node = int(overload.node[a])
        ran = snapshot.jobs.gpus[a] > 0 and overload.now > memory[a, COLUMN.turn]
        if memory[a, COLUMN.packed_with] > 0 and ran:
            if rate_of_pair(snapshot, a, b) <= 1.0:
                _give_up(snapshot, memory, a, b)
                continue
            memory[[a, b], COLUMN.packed_with] *= -1.0
        if overload.excess[node] > 0:
            packed_with[a], packed_with[b] = b, a
            overload.excess[node] -= snapshot.jobs.gpus_requested[a]
            trials |= {node} if memory[a, COLUMN.packed_with] > 0 else set()
    memory[packed_with < 0, COLUMN.packed_with] = 0.0
    for a, b in _candidates(snapshot, overload, memory, packed_with):
        node = int(overload.node[a])
        if node not in trials and overload.excess[node] > 0:
            packed_with[a], packed_with[b] = b, a
            memory[[a, b], COLUMN.packed_with] = snapshot.jobs.id[[b, a]] + 1.0
            memory[[a, b], COLUMN.turn] = overload.now
            trials.add(node)
    return packed_with


def _pairs(snapshot: Snapshot, overload: Overload, memory: FloatMatrix) -> list[tuple[int, int]]:
    """Rows that are packed now, and still could be."""
    jobs, rows = snapshot.jobs, np.flatnonzero(memory[:, COLUMN.packed_with])
    others = np.searchsorted(jobs.id, np.abs(memory[rows, COLUMN.packed_with]) - 1.0)
    return [
        (int(a), int(b))
        for a, b in zip(rows, others, strict=True)
        if a < b < jobs.size
        and abs(memory[b, COLUMN.packed_with]) == jobs.id[a] + 1
        and abs(memory[a, COLUMN.packed_with]) == jobs.id[b] + 1
        and overload.node[a] == overload.node[b] >= 0
        and jobs.gpus_requested[a] == jobs.gpus_requested[b]
    ]


def _give_up(snapshot: Snapshot, memory: FloatMatrix, a: int, b: int) -> None:
    """Remember of two jobs that packing does not pay beside the other's model."""
    for row, other in ((a, b), (b, a)):
        memory[row, COLUMN.failed] = int(memory[row, COLUMN.failed]) | _bit_of(snapshot, other)


def _candidates(
    snapshot: Snapshot, overload: Overload, memory: FloatMatrix, packed_with: IntColumn
) -> list[tuple[int, int]]:
    """For each server with too many jobs, the first pair to try: the least busy that may."""
    jobs, busy = snapshot.jobs, _busy(snapshot)
    crowded = (overload.node >= 0) & (overload.excess[overload.node] > 0) & (packed_with < 0)
    rows = np.flatnonzero(
        crowded & (busy < overload.busy_below) & (jobs.executed_s >= overload.profiled_s)
    )
    order = rows[np.lexsort((jobs.id[rows], busy[rows], overload.node[rows]))]
    found = []
    for of_node in np.split(order, np.flatnonzero(np.diff(overload.node[order])) + 1):
        pairs = combinations(of_node.tolist(), 2)
        found += [next(((min(p), max(p)) for p in pairs if _may_try(snapshot, memory, *p)), None)]
    return [pair for pair in found if pair is not None]


def _may_try(snapshot: Snapshot, memory: FloatMatrix, a: int, b: int) -> bool:
    """Tell whether two jobs are alike in size and nothing is known against packing them."""
    alike = snapshot.jobs.gpus_requested[a] == snapshot.jobs.gpus_requested[b]
    failed = _has_failed(snapshot, memory, a, b) or _has_failed(snapshot, memory, b, a)
    # Where their memory does not fit the rate is 0, which shows at once.
    return bool(alike and not failed and rate_of_pair(snapshot, a, b) > 0.0)


def _has_failed(snapshot: Snapshot, memory: FloatMatrix, row: int, other: int) -> bool:
    return int(memory[row, COLUMN.failed]) & _bit_of(snapshot, other) != 0


def _bit_of(snapshot: Snapshot, row: int) -> int:
    """What stands for a row's model in `failed`."""
    model = int(snapshot.jobs.curve[row]) // snapshot.speeds.variants
    return int(1 << model % BITS)


def _busy(snapshot: Snapshot) -> FloatColumn:
    """How busy each job keeps its GPUs."""
    busy = snapshot.speeds.places.busy
    out: FloatColumn = busy[np.minimum(snapshot.jobs.curve, len(busy) - 1)]
    return out

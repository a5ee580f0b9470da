"""Taking turns: which jobs run in this slice of time, and when the next one begins."""

import math

import numpy as np

from coddl.core.columns import BoolColumn, FloatColumn, IntColumn
from coddl.core.compiling import kernel, part
from coddl.core.jobs import JobTable
from coddl.core.placement.affinity import ANY, NodeLoads, find_nodes
from coddl.core.policies.gandiva.assignment import NodeAssignment, Wants, add_node
from coddl.core.slots import Slots

SLACK = 1e-9  # of a slice: a wake-up for its beginning belongs to it, whatever the rounding


def slice_at(now_s: float, quantum_s: float) -> int:
    """The number of the slice of time that it is now."""
    return math.floor(now_s / quantum_s + SLACK)


def midst_of_turn(jobs: JobTable, began: FloatColumn, now: int) -> BoolColumn:
    """Which rows run on, as their turn lasts a slice for each unit of weight since it began."""
    within: BoolColumn = now < began + np.maximum(1.0, np.round(jobs.weight))
    return within & (jobs.gpus > 0)


def order_of_turns(jobs: JobTable, midst: BoolColumn) -> IntColumn:
    """Rows by their claim to this slice: weighted round robin.

    A row in the midst of its turn goes on; then come the waiting rows, the longest wait first and
    those that never ran before them; then those whose turn is over, the longest unbroken run last.
    A row that takes turns with another on its GPU anyway comes after all of them.
    """
    runs = jobs.gpus > 0
    rank = np.where(runs, np.where(midst, 0, 2), np.where(jobs.in_turns > 0, 3, 1))
    since_s = np.where(runs, -jobs.last_start_s, jobs.changed_s)
    order: IntColumn = np.lexsort((jobs.id, since_s, rank))
    return order


@kernel
def deal(
    free: IntColumn, assigned: NodeAssignment, order: IntColumn, firsts: IntColumn
) -> BoolColumn:
    """Let rows run on their servers, in order, as far as there are GPUs; groups together."""
    runs, sizes = np.zeros(order.shape[0], np.bool_), np.zeros(order.shape[0], np.int64)
    for first in firsts:
        sizes[first] += 1
    for row in order:
        if runs[row] or assigned.head[row] < 0:
            continue
        fits, i = True, assigned.head[row]
        while i >= 0:
            fits = fits and assigned.gpus[i] <= free[assigned.node[i]]
            i = assigned.after[i]
        i = assigned.head[row] if fits else -1
        while i >= 0:
            free[assigned.node[i]] -= assigned.gpus[i]
            i = assigned.after[i]
        runs[row] = fits
        if fits and sizes[firsts[row]] > 1:
            for mate in range(firsts[row], order.shape[0]):
                runs[mate] |= firsts[mate] == firsts[row]
    return runs


@part
def still_free(free: IntColumn, slots_by_node: Slots, row: int, need: int) -> bool:
    """Return whether what a row sits on is what it needs and no other row's turn."""
    for i in range(slots_by_node.first[row], slots_by_node.first[row + 1]):
        need -= slots_by_node.gpus[i]
        if slots_by_node.gpus[i] > free[slots_by_node.island[i]]:
            return False
    return need == 0


@kernel
def run_unassigned(
    free: IntColumn,
    assigned: NodeAssignment,
    wants: Wants,
    order: IntColumn,
    slots_by_node: Slots,
    runs: BoolColumn,
) -> None:
    """Let rows without servers run where GPUs would be idle in this slice, and assign them."""
    nothing, parts = np.zeros_like(free), np.zeros_like(free)
    for row in order:
        if assigned.head[row] >= 0:
            continue
        parts[:] = 0
        if still_free(free, slots_by_node, row, wants.gpus[row]):
            for i in range(slots_by_node.first[row], slots_by_node.first[row + 1]):
                parts[slots_by_node.island[i]] = slots_by_node.gpus[i]
            runs[row] = True
        else:
            idle = NodeLoads(free, nothing, nothing)
            runs[row] = find_nodes(idle, wants.gpus[row], wants.spans[row], ANY, parts)
        if runs[row]:
            for node in range(free.shape[0]):
                if parts[node] > 0:
                    add_node(assigned, row, node, parts[node])
                    free[node] -= parts[node]

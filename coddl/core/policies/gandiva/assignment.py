"""The servers of each job: found on arrival, left for better ones, remembered while it waits."""

from typing import NamedTuple

import numpy as np

from coddl.core.columns import BoolColumn, FloatMatrix, IntColumn
from coddl.core.compiling import ONE, ZERO, kernel, kernel_int, part
from coddl.core.placement.affinity import (
    ANY,
    QUEUED,
    RELAXED,
    NodeLoads,
    add_load,
    find_nodes,
    get_nodes,
    remove_load,
)
from coddl.core.placement.room import NONE
from coddl.core.slots import Slots
from coddl.core.snapshot import memory_columns

BITS = kernel_int(52)  # whole numbers that a float holds exactly
MODEL_BITS = 48  # of `failed`; the other bits hold a size
HALF = 0.5  # of its speed: what a job counts as having that shares GPUs
SURE = 1.0 - 1e-9  # no row moves for a difference of rounding
# What is remembered of a job.
COLUMN = memory_columns(
    "node",  # its first server, counted from 1; 0: it has none
    "others",  # the further ones: bit i is the server i + 1 after the first; -1: it is queued
    "turn",  # the slice of time in which its turn began
    "packed_with",  # 1 + the id of its group's first job: on trial; negative: it pays; 0: none
    "failed",  # bit i: a pair with model i did not pay; + 2**48 * the size of a group that did not
    "grow_at_s",  # when it may take idle GPUs of its servers; 0: none are idle
)


class NodeAssignment(NamedTuple):
    """The servers that rows are assigned to, as a chain of entries for each row."""

    head: IntColumn  # the first entry of each row; -1: it has no server
    node: IntColumn
    gpus: IntColumn
    after: IntColumn  # the following entry; -1: none
    size: IntColumn  # [1] entries


class Wants(NamedTuple):
    """What rows ask for."""

    gpus: IntColumn
    spans: IntColumn  # 0: on one server only


class Kinds(NamedTuple):
    """What kinds of GPU mean to rows."""

    of_node: IntColumn
    factor: FloatMatrix  # [curve, kind]: step time there over that of the speed table
    curve: IntColumn  # of each row


@kernel
def nothing_assigned(wants: Wants, nodes: int) -> NodeAssignment:
    """Servers of rows that have none, with space for four assignments of each."""
    rows, most = wants.gpus.shape[0], 1
    for row in range(rows):
        most += 4 * min(wants.gpus[row], nodes)
    entries = np.empty((3, most), np.int64)
    return NodeAssignment(
        np.full(rows, -1), entries[0], entries[1], entries[2], np.zeros(1, np.int64)
    )


@part
def add_node(assigned: NodeAssignment, row: int, node: int, gpus: int) -> None:
    """Assign a row to one more server."""
    at = assigned.size[0]
    assigned.node[at] = node
    assigned.gpus[at] = gpus
    assigned.after[at] = assigned.head[row]
    assigned.head[row] = at
    assigned.size[0] = at + 1


@part
def assign(
    servers: NodeLoads, assigned: NodeAssignment, row: int, need: int, parts: IntColumn
) -> None:
    """Assign a row to servers, with `parts` GPUs of each."""
    assigned.head[row] = -1
    for node in range(parts.shape[0]):
        if parts[node] > 0:
            add_load(servers, node, need, parts[node])
            add_node(assigned, row, node, parts[node])


@part
def unassign(servers: NodeLoads, assigned: NodeAssignment, row: int) -> None:
    """Take a row's load off its servers; it can still come back."""
    i = assigned.head[row]
    while i >= 0:
        remove_load(servers, assigned.node[i], assigned.gpus[i])
        i = assigned.after[i]


@part
def assign_again(servers: NodeLoads, assigned: NodeAssignment, row: int, need: int) -> None:
    """Undo that a row has quit."""
    i = assigned.head[row]
    while i >= 0:
        add_load(servers, assigned.node[i], need, assigned.gpus[i])
        i = assigned.after[i]


@part
def stay(
    servers: NodeLoads,
    assigned: NodeAssignment,
    wants: Wants,
    slots_by_node: Slots,
    row: int,
    crowd: int,
) -> None:
    """Assign a row to where it runs, if that will do; with a crowd only if it is one already.

    On one server a row is assigned what it asks for, whatever it holds.
    """
    need, begin, end = wants.gpus[row], slots_by_node.first[row], slots_by_node.first[row + 1]
    several = end - begin > 1
    held = 0
    for i in range(begin, end):
        held += slots_by_node.gpus[i]
    if end == begin or (several and (held != need or wants.spans[row] == 0)):
        return
    for i in range(begin, end):
        node, gpus = slots_by_node.island[i], slots_by_node.gpus[i] if several else need
        most = servers.gpus[node] - (0 if crowd > 0 else servers.load[node])
        if gpus > servers.gpus[node] or gpus > most:
            return
    for i in range(begin, end):
        node, gpus = slots_by_node.island[i], slots_by_node.gpus[i] if several else need
        add_load(servers, node, need, gpus)
        add_node(assigned, row, node, gpus)


@part
def recall(
    servers: NodeLoads, assigned: NodeAssignment, wants: Wants, memory: FloatMatrix, row: int
) -> None:
    """Assign a row that waits to the servers it remembers, filling one after the other."""
    need, others = wants.gpus[row], int(memory[row, COLUMN.others])
    parts, left = np.zeros_like(servers.gpus), need
    for i in range(BITS + 1):
        node = int(memory[row, COLUMN.node]) - 1 + i
        known = i == 0 or (others >> (i - 1)) & 1 == 1
        if known and node < parts.shape[0]:
            parts[node] = min(left, servers.gpus[node])
            left -= parts[node]
    if left == 0:
        assign(servers, assigned, row, need, parts)


@part
def share_load(servers: NodeLoads, assigned: NodeAssignment, firsts: IntColumn, row: int) -> None:
    """Count the GPUs of a group for its first row alone; a row that is elsewhere leaves it."""
    at, to = assigned.head[row], assigned.head[firsts[row]]
    together = at >= 0 and to >= 0 and assigned.after[at] < 0 and assigned.after[to] < 0
    if (
        together
        and assigned.node[at] == assigned.node[to]
        and assigned.gpus[at] == assigned.gpus[to]
    ):
        remove_load(servers, assigned.node[at], assigned.gpus[at])
    else:
        firsts[row] = row


@kernel
def join_node(servers: NodeLoads, assigned: NodeAssignment, rows: IntColumn, node: int) -> None:
    """Assign a group to a server where it shares the GPUs of others; its own load is gone."""
    gpus = assigned.gpus[assigned.head[rows[0]]]
    unassign(servers, assigned, rows[0])
    for row in rows:
        assigned.head[row] = -1
        add_node(assigned, row, node, gpus)


@kernel
def assign_nodes(
    servers: NodeLoads,
    wants: Wants,
    slots_by_node: Slots,
    memory: FloatMatrix,
    firsts: IntColumn,
) -> NodeAssignment:
    """The servers of each row: its own, or those that Algorithm 1 finds, in order of submission.

    A row without memory that sits somewhere stays there if no job has to take turns for that. A
    queued row has none. `firsts` are the first rows of groups that share GPUs; rows that are not at
    the same place are taken out of their group.
    """
    rows = wants.gpus.shape[0]
    assigned = nothing_assigned(wants, servers.gpus.shape[0])
    for row in range(rows):
        if memory[row, COLUMN.node] > 0.0:
            stay(servers, assigned, wants, slots_by_node, row, ONE)
            if assigned.head[row] < 0:
                recall(servers, assigned, wants, memory, row)
    for row in range(rows):
        if firsts[row] != row:
            share_load(servers, assigned, firsts, row)
    for row in range(rows):
        if assigned.head[row] < 0:
            stay(servers, assigned, wants, slots_by_node, row, ZERO)
    parts = np.zeros_like(servers.gpus)
    for row in range(rows):
        if assigned.head[row] >= 0:
            continue
        if get_nodes(servers, wants.gpus[row], wants.spans[row], parts) != QUEUED:
            assign(servers, assigned, row, wants.gpus[row], parts)
    return assigned


@part
def extent(assigned: NodeAssignment, row: int) -> int:
    """How many servers a row is assigned to."""
    i, servers = assigned.head[row], 0
    while i >= 0:
        servers += 1
        i = assigned.after[i]
    return servers


@part
def factor_on(kinds: Kinds, row: int, node: int) -> float:
    """What a step of a row takes on a node over what the speed table says."""
    known = kinds.factor.shape[1]
    return float(kinds.factor[kinds.curve[row], min(kinds.of_node[node], known - 1)])


@part
def speed_on_nodes(
    servers: NodeLoads, assigned: NodeAssignment, kinds: Kinds, row: int, in_turns: bool
) -> float:
    """How fast a row trains on its servers, as a part of what the speed table says."""
    i, gpus, speed, turns = assigned.head[row], 0, 0.0, 1.0
    while i >= 0:
        node = assigned.node[i]
        gpus += assigned.gpus[i]
        speed += assigned.gpus[i] / factor_on(kinds, row, node)
        if in_turns:
            turns = min(turns, servers.gpus[node] / servers.load[node])
        i = assigned.after[i]
    return speed / gpus * turns


@part
def as_fast(servers: NodeLoads, kinds: Kinds, row: int, speed: float) -> NodeLoads:
    """The servers where a row trains at this speed at least; the others without their GPUs."""
    gpus = servers.gpus.copy()
    for node in range(gpus.shape[0]):
        if SURE * speed * factor_on(kinds, row, node) > 1.0:
            gpus[node] = 0
    return NodeLoads(gpus, servers.load, servers.affinity)


@part
def find_faster(
    servers: NodeLoads,
    assigned: NodeAssignment,
    wants: Wants,
    kinds: Kinds,
    row: int,
    speed: float,
    parts: IntColumn,
) -> bool:
    """Find a row room where it trains faster than at this speed, on no more servers.

    The fastest kind is looked at first, slower ones are let in one by one. Fills in its parts.
    """
    factors, fastest = kinds.factor[kinds.curve[row]], 0.0
    while True:
        factor = np.inf
        for each in factors:
            if fastest < each < factor:
                factor = each
        if not factor * speed < SURE:
            return False
        suits = as_fast(servers, kinds, row, 1.0 / factor)
        found = get_nodes(suits, wants.gpus[row], wants.spans[row], parts) <= RELAXED
        if found and np.count_nonzero(parts) <= extent(assigned, row):
            return True
        fastest = factor


@part
def free_gpus(servers: NodeLoads) -> int:
    """How many GPUs no job is assigned to."""
    free = 0
    for node in range(servers.gpus.shape[0]):
        free += max(0, servers.gpus[node] - servers.load[node])
    return free


@kernel
def move_where_faster(
    servers: NodeLoads,
    assigned: NodeAssignment,
    wants: Wants,
    kinds: Kinds,
    order: IntColumn,
    in_turns: BoolColumn,
) -> None:
    """Move jobs to servers with room where they train faster, on no more of them than before.

    These are jobs that take turns, if the kind of GPU there does not cost more than that,
    and jobs on a slow kind while a faster one is free. (Gandiva, OSDI '18: migration on departures,
    judged by the time of a mini-batch.)
    """
    free, parts = free_gpus(servers), np.zeros_like(servers.gpus)
    for row in order:
        need = wants.gpus[row]
        if need > free or assigned.head[row] < 0:
            continue
        speed = speed_on_nodes(servers, assigned, kinds, row, in_turns[row])
        unassign(servers, assigned, row)
        if find_faster(servers, assigned, wants, kinds, row, speed, parts):
            assign(servers, assigned, row, need, parts)
            free = free_gpus(servers)
        else:
            assign_again(servers, assigned, row, need)


@kernel
def part_groups(
    servers: NodeLoads,
    assigned: NodeAssignment,
    wants: Wants,
    kinds: Kinds,
    order: IntColumn,
    firsts: IntColumn,
) -> None:
    """Let rows leave their group where GPUs are free: on their server, else on another.

    A kind of GPU that makes them twice as slow or worse does not suit them.
    """
    free, parts = free_gpus(servers), np.zeros_like(servers.gpus)
    for row in order:
        need = wants.gpus[row]
        if need > free or firsts[row] == row:
            continue
        node = assigned.node[assigned.head[row]]
        if servers.load[node] + need <= servers.gpus[node]:
            add_load(servers, node, need, need)
        elif find_faster(servers, assigned, wants, kinds, row, HALF, parts):
            assign(servers, assigned, row, need, parts)
        else:
            continue
        firsts[row] = row
        free = free_gpus(servers)


@part
def tightest_node(servers: NodeLoads, kinds: Kinds, source: int, need: int) -> int:
    """The fullest server of the source's kind that has room for a job, and less than the source."""
    best, best_free = NONE, servers.gpus[source] - servers.load[source]
    for node in range(servers.gpus.shape[0]):
        free = servers.gpus[node] - servers.load[node]
        fits = need <= free < best_free and servers.load[node] > 0
        if fits and node != source and kinds.of_node[node] == kinds.of_node[source]:
            best, best_free = node, free
    return int(best)


@kernel
def gather_jobs(
    servers: NodeLoads,
    assigned: NodeAssignment,
    wants: Wants,
    kinds: Kinds,
    movable: BoolColumn,
    idle: float,
    moves: int,
) -> None:
    """Move up to `moves` running jobs so that free GPUs lie together.

    First jobs that lie on several servers and fit on one that is no slower. Then, from the server
    in use with most free GPUs, to those with fewer, until none in use has `idle` of its GPUs free
    or more. (Gandiva, OSDI '18: defragmentation.)
    """
    parts = np.zeros_like(servers.gpus)
    for row in range(movable.shape[0]):
        if moves > 0 and movable[row] and extent(assigned, row) > 1:
            speed = speed_on_nodes(servers, assigned, kinds, row, False)
            unassign(servers, assigned, row)
            suits = as_fast(servers, kinds, row, speed)
            if find_nodes(suits, wants.gpus[row], ZERO, ANY, parts):
                assign(servers, assigned, row, wants.gpus[row], parts)
                moves -= 1
            else:
                assign_again(servers, assigned, row, wants.gpus[row])
    tried = np.zeros(servers.gpus.shape[0], np.bool_)
    while moves > 0:
        source, most = NONE, 0
        for node in range(servers.gpus.shape[0]):
            free = servers.gpus[node] - servers.load[node]
            sparse = servers.load[node] > 0 and free >= idle * servers.gpus[node]
            if sparse and not tried[node] and free > most:
                source, most = node, free
        if source < 0:
            return
        tried[source] = True
        for row in range(movable.shape[0]):
            at = assigned.head[row]
            if moves == 0 or not movable[row] or at < 0 or assigned.node[at] != source:
                continue
            target = tightest_node(servers, kinds, source, wants.gpus[row])
            if target >= 0 and extent(assigned, row) == 1:
                unassign(servers, assigned, row)
                parts[:] = 0
                parts[target] = wants.gpus[row]
                assign(servers, assigned, row, wants.gpus[row], parts)
                moves -= 1


@kernel
def lone_nodes(assigned: NodeAssignment) -> IntColumn:
    """The server of each row that is assigned to just one; -1 for the others."""
    out = np.full(assigned.head.shape[0], -1)
    for row in range(assigned.head.shape[0]):
        if extent(assigned, row) == 1:
            out[row] = assigned.node[assigned.head[row]]
    return out


@kernel
def remember(assigned: NodeAssignment, memory: FloatMatrix) -> None:
    """Write down the servers of rows, for when they wait. Far-off servers are forgotten."""
    for row in range(assigned.head.shape[0]):
        first, others, i = NONE, 0, assigned.head[row]
        while i >= 0:
            first = assigned.node[i] if first < 0 else min(first, assigned.node[i])
            i = assigned.after[i]
        i = assigned.head[row]
        while i >= 0:
            if 0 < assigned.node[i] - first <= BITS:
                others |= 1 << (assigned.node[i] - first - 1)
            i = assigned.after[i]
        memory[row, COLUMN.node] = first + 1
        memory[row, COLUMN.others] = others if first >= 0 else -1

"""Where jobs are at home: found on arrival, left for better ones, remembered while they wait."""

from typing import NamedTuple

import numpy as np

from coddl.core.columns import BoolColumn, FloatMatrix, IntColumn
from coddl.core.compiling import ONE, ZERO, kernel, kernel_int, part
from coddl.core.placement.affinity import (
    ANY,
    QUEUED,
    RELAXED,
    NodeLoads,
    find_nodes,
    get_nodes,
    move_in,
    move_out,
)
from coddl.core.placement.room import NONE
from coddl.core.slots import Slots

# Columns of the memory.
(
    HOME,  # the first server of its home, counted from 1; 0: it has none
    OTHERS,  # the further ones: bit i stands for the server i + 1 after the first; -1: it is queued
    TURN,  # the slice of time in which its turn began
    MATE,  # 1 + the id of the job it is packed with: on trial, or negative where that pays; 0: none
    FAILED,  # models that it was packed with in vain: bit i stands for model i
    GROW_AT_S,  # when it may take GPUs that are idle beside it; 0: none are
) = range(6)
BITS = kernel_int(52)  # whole numbers that a float holds exactly
SURE = 1.0 - 1e-9  # nobody moves for a difference of rounding


class Homes(NamedTuple):
    """The servers that rows are at home on, as a chain of entries for each row."""

    head: IntColumn  # the first entry of each row; -1: it has no home
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
def no_homes(wants: Wants, nodes: int) -> Homes:
    """Homes of rows that have none, with space for three in a row."""
    rows, most = wants.gpus.shape[0], 1
    for row in range(rows):
        most += 3 * min(wants.gpus[row], nodes)
    entries = np.empty((3, most), np.int64)
    return Homes(np.full(rows, -1), entries[0], entries[1], entries[2], np.zeros(1, np.int64))


@part
def enter(homes: Homes, row: int, node: int, gpus: int) -> None:
    """Add a server to a row's home."""
    at = homes.size[0]
    homes.node[at] = node
    homes.gpus[at] = gpus
    homes.after[at] = homes.head[row]
    homes.head[row] = at
    homes.size[0] = at + 1


@part
def settle(servers: NodeLoads, homes: Homes, row: int, need: int, parts: IntColumn) -> None:
    """Give a row a home with so many GPUs of each server."""
    homes.head[row] = -1
    for node in range(parts.shape[0]):
        if parts[node] > 0:
            move_in(servers, node, need, parts[node])
            enter(homes, row, node, parts[node])


@part
def quit_home(servers: NodeLoads, homes: Homes, row: int) -> None:
    """Take a row's load off its servers; it can still come back."""
    i = homes.head[row]
    while i >= 0:
        move_out(servers, homes.node[i], homes.gpus[i])
        i = homes.after[i]


@part
def come_back(servers: NodeLoads, homes: Homes, row: int, need: int) -> None:
    """Undo that a row has quit."""
    i = homes.head[row]
    while i >= 0:
        move_in(servers, homes.node[i], need, homes.gpus[i])
        i = homes.after[i]


@part
def stay(
    servers: NodeLoads, homes: Homes, wants: Wants, seated: Slots, row: int, crowd: int
) -> None:
    """Let a row be at home where it sits, if that will do; with a crowd only if it is one already.

    `seated` is by node. On one server a row is at home with what it asks for, whatever it holds.
    """
    need, begin, end = wants.gpus[row], seated.first[row], seated.first[row + 1]
    several = end - begin > 1
    held = 0
    for i in range(begin, end):
        held += seated.gpus[i]
    if end == begin or (several and (held != need or wants.spans[row] == 0)):
        return
    for i in range(begin, end):
        node, gpus = seated.island[i], seated.gpus[i] if several else need
        most = servers.gpus[node] - (0 if crowd > 0 else servers.load[node])
        if gpus > servers.gpus[node] or gpus > most:
            return
    for i in range(begin, end):
        node, gpus = seated.island[i], seated.gpus[i] if several else need
        move_in(servers, node, need, gpus)
        enter(homes, row, node, gpus)


@part
def recall(servers: NodeLoads, homes: Homes, wants: Wants, memory: FloatMatrix, row: int) -> None:
    """Bring a row that waits back to the home it remembers, filling one server after the other."""
    need, others = wants.gpus[row], int(memory[row, OTHERS])
    parts, left = np.zeros_like(servers.gpus), need
    for i in range(BITS + 1):
        node = int(memory[row, HOME]) - 1 + i
        known = i == 0 or (others >> (i - 1)) & 1 == 1
        if known and node < parts.shape[0]:
            parts[node] = min(left, servers.gpus[node])
            left -= parts[node]
    if left == 0:
        settle(servers, homes, row, need, parts)


@kernel
def find_homes(servers: NodeLoads, wants: Wants, seated: Slots, memory: FloatMatrix) -> Homes:
    """The home of each row: its own, or one that Algorithm 1 finds, in order of submission.

    A row without memory that sits somewhere stays there if nobody has to take turns for that. Who
    is queued has none.
    """
    rows = wants.gpus.shape[0]
    homes = no_homes(wants, servers.gpus.shape[0])
    for row in range(rows):
        if memory[row, HOME] > 0.0:
            stay(servers, homes, wants, seated, row, ONE)
            if homes.head[row] < 0:
                recall(servers, homes, wants, memory, row)
    for row in range(rows):
        if homes.head[row] < 0:
            stay(servers, homes, wants, seated, row, ZERO)
    parts = np.zeros_like(servers.gpus)
    for row in range(rows):
        if homes.head[row] >= 0:
            continue
        if get_nodes(servers, wants.gpus[row], wants.spans[row], parts) != QUEUED:
            settle(servers, homes, row, wants.gpus[row], parts)
    return homes


@part
def extent(homes: Homes, row: int) -> int:
    """On how many servers a row is at home."""
    i, servers = homes.head[row], 0
    while i >= 0:
        servers += 1
        i = homes.after[i]
    return servers


@part
def factor_on(kinds: Kinds, row: int, node: int) -> float:
    """What a step of a row takes on a node over what the speed table says."""
    known = kinds.factor.shape[1]
    return float(kinds.factor[kinds.curve[row], min(kinds.of_node[node], known - 1)])


@part
def speed_at_home(
    servers: NodeLoads, homes: Homes, kinds: Kinds, row: int, in_turns: bool
) -> float:
    """How fast a row trains at home, as a part of what the speed table says."""
    i, gpus, speed, turns = homes.head[row], 0, 0.0, 1.0
    while i >= 0:
        node = homes.node[i]
        gpus += homes.gpus[i]
        speed += homes.gpus[i] / factor_on(kinds, row, node)
        if in_turns:
            turns = min(turns, servers.gpus[node] / servers.load[node])
        i = homes.after[i]
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
    homes: Homes,
    wants: Wants,
    kinds: Kinds,
    row: int,
    speed: float,
    parts: IntColumn,
) -> bool:
    """Find a row room where it trains faster than at this speed, on no more servers than at home.

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
        if found and np.count_nonzero(parts) <= extent(homes, row):
            return True
        fastest = factor


@part
def free_gpus(servers: NodeLoads) -> int:
    """How many GPUs nobody is at home on."""
    free = 0
    for node in range(servers.gpus.shape[0]):
        free += max(0, servers.gpus[node] - servers.load[node])
    return free


@kernel
def move_where_faster(
    servers: NodeLoads,
    homes: Homes,
    wants: Wants,
    kinds: Kinds,
    order: IntColumn,
    in_turns: BoolColumn,
) -> None:
    """Move jobs to servers with room where they train faster, on no more of them than before.

    These are jobs that take turns at home, if the kind of GPU there does not cost more than that,
    and jobs on a slow kind while a faster one is free. (Gandiva, OSDI '18: migration on departures,
    judged by the time of a mini-batch.)
    """
    free, parts = free_gpus(servers), np.zeros_like(servers.gpus)
    for row in order:
        need = wants.gpus[row]
        if need > free or homes.head[row] < 0:
            continue
        speed = speed_at_home(servers, homes, kinds, row, in_turns[row])
        quit_home(servers, homes, row)
        if find_faster(servers, homes, wants, kinds, row, speed, parts):
            settle(servers, homes, row, need, parts)
            free = free_gpus(servers)
        else:
            come_back(servers, homes, row, need)


@part
def snug_node(servers: NodeLoads, kinds: Kinds, source: int, need: int) -> int:
    """The fullest server of the source's kind that has room for a job, and less than the source."""
    best, best_free = NONE, servers.gpus[source] - servers.load[source]
    for node in range(servers.gpus.shape[0]):
        free = servers.gpus[node] - servers.load[node]
        fits = need <= free < best_free and servers.load[node] > 0
        if fits and node != source and kinds.of_node[node] == kinds.of_node[source]:
            best, best_free = node, free
    return int(best)


@kernel
def close_ranks(
    servers: NodeLoads,
    homes: Homes,
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
        if moves > 0 and movable[row] and extent(homes, row) > 1:
            speed = speed_at_home(servers, homes, kinds, row, False)
            quit_home(servers, homes, row)
            suits = as_fast(servers, kinds, row, speed)
            if find_nodes(suits, wants.gpus[row], ZERO, ANY, parts):
                settle(servers, homes, row, wants.gpus[row], parts)
                moves -= 1
            else:
                come_back(servers, homes, row, wants.gpus[row])
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
            at = homes.head[row]
            if moves == 0 or not movable[row] or at < 0 or homes.node[at] != source:
                continue
            target = snug_node(servers, kinds, source, wants.gpus[row])
            if target >= 0 and extent(homes, row) == 1:
                quit_home(servers, homes, row)
                parts[:] = 0
                parts[target] = wants.gpus[row]
                settle(servers, homes, row, wants.gpus[row], parts)
                moves -= 1


@kernel
def lone_nodes(homes: Homes) -> IntColumn:
    """The server of each row that is at home on just one; -1 for the others."""
    out = np.full(homes.head.shape[0], -1)
    for row in range(homes.head.shape[0]):
        if extent(homes, row) == 1:
            out[row] = homes.node[homes.head[row]]
    return out


@kernel
def remember(homes: Homes, memory: FloatMatrix) -> None:
    """Write down where rows are at home, for when they wait. Far-off servers are forgotten."""
    for row in range(homes.head.shape[0]):
        first, others, i = NONE, 0, homes.head[row]
        while i >= 0:
            first = homes.node[i] if first < 0 else min(first, homes.node[i])
            i = homes.after[i]
        i = homes.head[row]
        while i >= 0:
            if 0 < homes.node[i] - first <= BITS:
                others |= 1 << (homes.node[i] - first - 1)
            i = homes.after[i]
        memory[row, HOME] = first + 1
        memory[row, OTHERS] = others if first >= 0 else -1

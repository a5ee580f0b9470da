"""Workers and parameter servers, evenly on few nodes (Optimus, EuroSys '18, §4.2)."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coddl.core.allocation import Allocation, because
from coddl.core.cluster import Ground
from coddl.core.columns import FloatMatrix, IntColumn
from coddl.core.compiling import ZERO, kernel, part
from coddl.core.kernels import comes_before, make_heap, sink
from coddl.core.placement.placement import Placed
from coddl.core.placement.room import (
    NONE,
    Room,
    Taken,
    note,
    nothing_taken,
    room_of,
    seats_from,
    take,
    tightest,
)
from coddl.core.seats import Seats
from coddl.core.snapshot import Snapshot


class Crew(NamedTuple):
    """What the rows shall have, what they need at least, and what their tasks take."""

    workers: IntColumn
    servers: IntColumn
    gpus_min: IntColumn
    spans: IntColumn  # 0: on one node only
    worker_cpus: int
    server_cpus: int


class Board(NamedTuple):
    """Where tasks can go, and where they have gone."""

    crew: Crew
    room: Room
    cpus: IntColumn  # free cores of each node
    workers: Taken
    servers: Taken
    heap: IntColumn  # `size[0]` nodes, the one with most room on top
    keys: FloatMatrix  # their room when they were last looked at: there may be less by now
    size: IntColumn
    start: IntColumn  # nodes before these have no room for a worker, for a server


@part
def fits(board: Board, node: int, workers: int, servers: int) -> bool:
    """Tell whether a node has room for these tasks."""
    cpus = workers * board.crew.worker_cpus + servers * board.crew.server_cpus
    return bool(workers <= board.room.node_free[node] and cpus <= board.cpus[node])


@part
def seat(board: Board, row: int, node: int, workers: int, servers: int) -> None:
    """Put tasks of a row on a node that has room for them."""
    if workers > 0:
        take(board.room, board.workers, row, node, workers)
    if servers > 0:
        note(board.servers, row, board.room.ground.first[node], servers)
    board.cpus[node] -= workers * board.crew.worker_cpus + servers * board.crew.server_cpus


@part
def room_at(board: Board, node: int) -> int:
    """What nodes are ordered by: free cores, or GPUs where cores are free."""
    counted = board.crew.worker_cpus > 0 or board.crew.server_cpus > 0
    return int(board.cpus[node] if counted else board.room.node_free[node])


@part
def pop(board: Board) -> int:
    """The node with most room, taken off the heap; -1 if none has a GPU left."""
    while board.size[0] > 0:
        node = board.heap[0]
        if board.room.node_free[node] > 0 and board.keys[0, node] != room_at(board, node):
            board.keys[0, node] = room_at(board, node)
            sink(board.heap, ZERO, board.size[0], board.keys)
            continue
        board.size[0] -= 1
        board.heap[0] = board.heap[board.size[0]]
        sink(board.heap, ZERO, board.size[0], board.keys)
        if board.room.node_free[node] > 0:
            return int(node)
    return -1


@part
def push(board: Board, node: int) -> None:
    """Put a node back on the heap."""
    at = board.size[0]
    board.size[0] += 1
    board.keys[0, node] = room_at(board, node)
    while at > 0 and comes_before(board.keys, board.heap[(at - 1) // 2], node):
        board.heap[at] = board.heap[(at - 1) // 2]
        at = (at - 1) // 2
    board.heap[at] = node


@part
def dealt(tasks: int, nodes: int, at: int) -> int:
    """How many of some tasks the node in this place gets when they are dealt in turn."""
    return tasks // nodes + (1 if at < tasks % nodes else 0)


@part
def seat_evenly(board: Board, row: int) -> bool:
    """Put a row on the fewest of the emptiest nodes that hold it evenly; False if none do."""
    w, p = board.crew.workers[row], board.crew.servers[row]
    most = max(w, p) if board.crew.spans[row] else 1
    nodes = np.empty(most, np.int64)
    count, found = 0, False
    while count < most and not found:
        node = pop(board)
        if node < 0:
            break
        nodes[count] = node
        count += 1
        found = True
        for i in range(count):
            if not fits(board, nodes[i], dealt(w, count, i), dealt(p, count, i)):
                found = False
                break
    for i in range(count):
        if found:
            seat(board, row, nodes[i], dealt(w, count, i), dealt(p, count, i))
        push(board, nodes[i])
    return found


class Plan(NamedTuple):
    """Tasks that may go to nodes, if all of them find one: `size[0]` entries."""

    node: IntColumn
    kind: IntColumn  # 0: a worker, 1: a server
    size: IntColumn
    start: IntColumn  # as on the board, beside these tasks


@part
def plan_task(board: Board, plan: Plan, kind: int) -> bool:
    """Add a task on the first node with room for it beside the others; False if there is none."""
    while plan.start[kind] < board.cpus.shape[0]:
        node, workers, servers = plan.start[kind], 1 - kind, kind
        for i in range(plan.size[0]):
            if plan.node[i] == node:
                workers += 1 - plan.kind[i]
                servers += plan.kind[i]
        if board.room.ground.node_gpus[node] > 0 and fits(board, node, workers, servers):
            plan.node[plan.size[0]], plan.kind[plan.size[0]] = node, kind
            plan.size[0] += 1
            return True
        plan.start[kind] += 1
    return False


@part
def plan_of(board: Board, tasks: int) -> Plan:
    """A plan for up to so many tasks."""
    entries, size = np.empty((2, tasks), np.int64), np.zeros(1, np.int64)
    return Plan(entries[0], entries[1], size, board.start.copy())


@part
def carry_out(board: Board, row: int, plan: Plan) -> None:
    """Put a row where it was planned to go."""
    for i in range(plan.size[0]):
        seat(board, row, plan.node[i], 1 - plan.kind[i], plan.kind[i])
    board.start[:] = plan.start


@part
def seat_anywhere(board: Board, row: int) -> bool:
    """Put servers and workers of a row in turn where there is room; it shrinks to what fits."""
    wanted, got = np.zeros(2, np.int64), np.zeros(2, np.int64)
    wanted[0], wanted[1] = board.crew.workers[row], board.crew.servers[row]
    plan, kind = plan_of(board, int(wanted.sum())), 1 if wanted[1] > 0 else 0
    while got[kind] < wanted[kind] and plan_task(board, plan, kind):
        got[kind] += 1
        if got[1 - kind] < wanted[1 - kind]:
            kind = 1 - kind
    if got[0] < board.crew.gpus_min[row] or (wanted[1] > 0 and got[1] == 0):
        return False
    carry_out(board, row, plan)
    return True


@part
def seat_servers(board: Board, row: int, seats: Seats) -> None:
    """Put the servers of a row that stays evenly on its nodes, else where there is room."""
    p, count = board.crew.servers[row], 0
    nodes = np.empty(seats.first[row + 1] - seats.first[row], np.int64)
    for i in range(seats.first[row], seats.first[row + 1]):
        node = board.room.ground.island_node[seats.island[i]]
        if count == 0 or nodes[count - 1] != node:
            nodes[count] = node
            count += 1
    even = True
    for i in range(count):
        even = even and fits(board, nodes[i], ZERO, dealt(p, count, i))
    for i in range(count if even else 0):
        seat(board, row, nodes[i], ZERO, dealt(p, count, i))
    if even:
        return
    for i in range(count):
        while p > 0 and fits(board, nodes[i], ZERO, 1):
            seat(board, row, nodes[i], ZERO, 1)
            p -= 1
    plan = plan_of(board, p)
    while p > 0 and plan_task(board, plan, 1):
        p -= 1
    carry_out(board, row, plan)


@kernel
def place_evenly(
    ground: Ground, seats: Seats, crew: Crew, order: IntColumn, reserved: IntColumn
) -> tuple[Seats, Seats]:
    """Seats of workers and of servers. Who keeps its share keeps its GPUs; others go by `order`."""
    rows, nodes = crew.workers.shape[0], ground.node_gpus.shape[0]
    total = int(crew.workers.sum()) + seats.island.shape[0] + 1
    workers, servers = nothing_taken(total), nothing_taken(int(crew.servers.sum()) + 1)
    used, cpus = reserved.copy(), ground.node_cpus.copy()
    stays = np.zeros(rows, np.bool_)
    for row in range(rows):
        held, free = 0, True
        for i in range(seats.first[row], seats.first[row + 1]):
            held += seats.gpus[i]
            # Of two rows that hold the same GPUs, as packed jobs do, the first keeps them.
            free &= used[seats.island[i]] + seats.gpus[i] <= ground.island_gpus[seats.island[i]]
        stays[row] = free and held > 0 and held == crew.workers[row]
        for i in range(seats.first[row], seats.first[row + 1] if stays[row] else 0):
            note(workers, row, seats.island[i], seats.gpus[i])
            used[seats.island[i]] += seats.gpus[i]
            cpus[ground.island_node[seats.island[i]]] -= seats.gpus[i] * crew.worker_cpus
    room, heap = room_of(ground, used), np.arange(nodes)
    counts = np.zeros((2, 2), np.int64)
    counts[0, 0] = nodes
    keys = np.empty((2, nodes))
    board = Board(crew, room, cpus, workers, servers, heap, keys, counts[0], counts[1])
    for row in range(rows):
        if stays[row]:
            seat_servers(board, row, seats)
    for node in range(nodes):
        keys[0, node], keys[1, node] = room_at(board, node), -node
    make_heap(heap, nodes, keys)
    for row in order:
        if stays[row] or crew.workers[row] == 0 or seat_evenly(board, row):
            continue
        node = tightest(room, crew.workers[row], NONE, NONE)
        if crew.spans[row]:
            seat_anywhere(board, row)
        elif node >= 0 and fits(board, node, crew.workers[row], crew.servers[row]):
            seat(board, row, node, crew.workers[row], crew.servers[row])
    return seats_from(rows, workers), seats_from(rows, servers)


@dataclass(frozen=True)
class OptimusPlacement:
    """Puts each job evenly, workers and parameter servers alike, on the fewest of the emptiest
    nodes; the smallest job first.

    Who keeps its share keeps its GPUs, with servers beside them. A job that no nodes hold evenly
    takes what it finds and shrinks to that. Where nobody has servers, or counts cores, GPUs alone
    are spread.
    """

    worker_cpus: int = 2  # cores of a worker and of a server, as in the published scheduler
    server_cpus: int = 3

    def __call__(self, snapshot: Snapshot, allocation: Allocation) -> Placed:
        ground, jobs, seats = snapshot.cluster.ground, snapshot.jobs, snapshot.seats
        assert seats is not None, "rows that are placed sit somewhere, if only nowhere"
        reserved, servers = snapshot.reserved, allocation.servers
        if reserved is None:
            reserved = np.zeros(len(ground.island_gpus), np.int64)
        counted = servers is not None and bool(ground.node_cpus.any())
        crew = Crew(
            allocation.gpus,
            np.zeros(jobs.size, np.int64) if servers is None else servers,
            jobs.gpus_min,
            jobs.spans,
            self.worker_cpus if counted else 0,
            self.server_cpus if counted else 0,
        )
        order = np.lexsort((jobs.id, crew.workers + crew.servers))
        at, served = place_evenly(ground, seats, crew, order, reserved)
        why = "no nodes have room for one of its workers and one of its servers until others end"
        refused = because((at.totals == 0) & (crew.workers > 0), "Topology", why)
        return Placed(at, refused, servers=None if servers is None else served)

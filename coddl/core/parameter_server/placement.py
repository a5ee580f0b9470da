"""Workers and parameter servers, evenly on few nodes (Optimus, EuroSys '18, §4.2)."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coddl.core.allocation import Allocation, because
from coddl.core.cluster import ClusterColumns
from coddl.core.columns import BoolColumn, FloatMatrix, IntColumn
from coddl.core.compiling import ONE, ZERO, kernel, part
from coddl.core.heaps import comes_before, make_heap, sink
from coddl.core.parameter_server.costs import SERVER_CPUS, WORKER_CPUS, ServerCpus, WorkerCpus
from coddl.core.parameter_server.tasks import ServedAllocation, ServedPlaced
from coddl.core.placement.close import kept_back, leaders_of, placed_close
from coddl.core.placement.placement import Placed
from coddl.core.placement.room import NONE, Taken, note, nothing_taken, slots_from, take_islands
from coddl.core.slots import Slots
from coddl.core.snapshot import Snapshot


class TaskDemands(NamedTuple):
    """What the rows are to have, what they need at least, and what their tasks take."""

    workers: IntColumn
    servers: IntColumn
    gpus_min: IntColumn
    spans: IntColumn  # 0: on one node only
    worker_cpus: int
    server_cpus: int


class FreeNodes(NamedTuple):
    """What is free on each node, and the order in which they are tried."""

    tasks: TaskDemands
    gpus: IntColumn  # free GPUs and cores of each node
    cpus: IntColumn
    heap: IntColumn  # `size[0]` nodes, the one with most room on top
    keys: FloatMatrix  # their room when they were last looked at: there may be less by now
    size: IntColumn
    start: IntColumn  # nodes before these have no room for a worker, for a server


class NodePlan(NamedTuple):
    """What a row may be given on which nodes, before it is: `size[0]` entries."""

    node: IntColumn
    workers: IntColumn
    servers: IntColumn
    size: IntColumn
    start: IntColumn  # as on the board, once this is carried out


class Given(NamedTuple):
    """What rows have been given: `size[0]` entries."""

    row: IntColumn
    node: IntColumn
    workers: IntColumn
    servers: IntColumn
    size: IntColumn


@part
def fits(room: FreeNodes, node: int, workers: int, servers: int) -> bool:
    """Return whether a node has room for these tasks."""
    cpus = workers * room.tasks.worker_cpus + servers * room.tasks.server_cpus
    return bool(workers <= room.gpus[node] and cpus <= room.cpus[node])


@part
def room_at(room: FreeNodes, node: int) -> int:
    """What nodes are ordered by: free cores, or GPUs where cores are free."""
    counted = room.tasks.worker_cpus > 0 or room.tasks.server_cpus > 0
    return int(room.cpus[node] if counted else room.gpus[node])


@part
def pop(room: FreeNodes) -> int:
    """The node with most room, taken off the heap; -1 if none has a GPU left."""
    while room.size[0] > 0:
        node = room.heap[0]
        if room.gpus[node] > 0 and room.keys[0, node] != room_at(room, node):
            room.keys[0, node] = room_at(room, node)
            sink(room.heap, ZERO, room.size[0], room.keys)
            continue
        room.size[0] -= 1
        room.heap[0] = room.heap[room.size[0]]
        sink(room.heap, ZERO, room.size[0], room.keys)
        if room.gpus[node] > 0:
            return int(node)
    return -1


@part
def push(room: FreeNodes, node: int) -> None:
    """Put a node back on the heap."""
    at = room.size[0]
    room.size[0] += 1
    room.keys[0, node] = room_at(room, node)
    while at > 0 and comes_before(room.keys, room.heap[(at - 1) // 2], node):
        room.heap[at] = room.heap[(at - 1) // 2]
        at = (at - 1) // 2
    room.heap[at] = node


@part
def dealt(tasks: int, nodes: int, at: int) -> int:
    """How many of some tasks the node in this place gets when they are dealt in turn."""
    return tasks // nodes + (1 if at < tasks % nodes else 0)


@part
def clear(room: FreeNodes, plan: NodePlan) -> None:
    """Begin a plan for another row."""
    plan.size[0] = 0
    plan.start[0], plan.start[1] = room.start[0], room.start[1]


@part
def plan_task(room: FreeNodes, plan: NodePlan, node: int, kind: int) -> bool:
    """Add a worker (0) or a server (1) on a node; False if there is no room left for it."""
    at, size = 0, plan.size[0]
    while at < size and plan.node[at] != node:
        at += 1
    if at == size:
        plan.node[at], plan.workers[at], plan.servers[at] = node, 0, 0
    workers, servers = plan.workers[at] + 1 - kind, plan.servers[at] + kind
    if not fits(room, node, workers, servers):
        return False
    plan.workers[at], plan.servers[at] = workers, servers
    plan.size[0] = max(size, at + 1)
    return True


@part
def plan_first_fit(room: FreeNodes, plan: NodePlan, kind: int) -> bool:
    """Add a task on the first node that has room for it; False if there is none."""
    while plan.start[kind] < room.cpus.shape[0]:
        if plan_task(room, plan, plan.start[kind], kind):
            return True
        plan.start[kind] += 1  # nodes only fill up: no need to look here again
    return False


@part
def plan_evenly(room: FreeNodes, plan: NodePlan, row: int) -> bool:
    """Plan a row on the fewest of the emptiest nodes that hold it evenly; False if none do."""
    w, p = room.tasks.workers[row], room.tasks.servers[row]
    most = max(w, p) if room.tasks.spans[row] else 1
    count, found = 0, False
    while count < most and not found:
        node = pop(room)
        if node < 0:
            break
        plan.node[count] = node
        count += 1
        found = True
        for i in range(count):
            plan.workers[i], plan.servers[i] = dealt(w, count, i), dealt(p, count, i)
            found = found and fits(room, plan.node[i], plan.workers[i], plan.servers[i])
    for i in range(count):
        push(room, plan.node[i])
    plan.size[0] = count if found else 0
    return found


@part
def plan_anywhere(room: FreeNodes, plan: NodePlan, row: int) -> None:
    """Plan servers and workers of a row in turn where there is room; it shrinks to what fits."""
    wanted, got = np.zeros(2, np.int64), np.zeros(2, np.int64)
    wanted[0], wanted[1] = room.tasks.workers[row], room.tasks.servers[row]
    kind = 1 if wanted[1] > 0 else 0
    while got[kind] < wanted[kind] and plan_first_fit(room, plan, kind):
        got[kind] += 1
        if got[1 - kind] < wanted[1 - kind]:
            kind = 1 - kind
    if got[0] < room.tasks.gpus_min[row] or (wanted[1] > 0 and got[1] == 0):
        clear(room, plan)


@part
def plan_on_one_node(room: FreeNodes, plan: NodePlan, row: int) -> None:
    """Plan a row that can't span on the node that its workers fill best and that has the cores."""
    w, p, best = room.tasks.workers[row], room.tasks.servers[row], NONE
    for node in range(room.gpus.shape[0]):
        if fits(room, node, w, p) and (best < 0 or room.gpus[node] < room.gpus[best]):
            best = node
    if best >= 0:
        plan.node[0], plan.workers[0], plan.servers[0] = best, w, p
        plan.size[0] = 1


@part
def plan_servers(
    room: FreeNodes, plan: NodePlan, row: int, columns: ClusterColumns, slots: Slots
) -> None:
    """Plan the servers of a row that stays evenly on its nodes, else where there is room."""
    p, count, even = room.tasks.servers[row], 0, True
    for i in range(slots.first[row], slots.first[row + 1]):
        node = columns.island_node[slots.island[i]]
        if count == 0 or plan.node[count - 1] != node:
            plan.node[count], plan.workers[count] = node, 0
            count += 1
    for i in range(count):
        plan.servers[i] = dealt(p, count, i)
        even = even and fits(room, plan.node[i], plan.workers[i], plan.servers[i])
    plan.size[0] = count
    if even:
        return
    for i in range(count):
        plan.servers[i] = 0
    for i in range(count):
        while p > 0 and plan_task(room, plan, plan.node[i], ONE):
            p -= 1
    while p > 0 and plan_first_fit(room, plan, ONE):
        p -= 1


@part
def carry_out(room: FreeNodes, plan: NodePlan, row: int, given: Given) -> None:
    """Give a row what was planned for it."""
    for i in range(plan.size[0]):
        node, workers, servers, at = plan.node[i], plan.workers[i], plan.servers[i], given.size[0]
        given.row[at], given.node[at] = row, node
        given.workers[at], given.servers[at] = workers, servers
        given.size[0] += 1
        room.gpus[node] -= workers
        room.cpus[node] -= workers * room.tasks.worker_cpus + servers * room.tasks.server_cpus
    room.start[0], room.start[1] = plan.start[0], plan.start[1]


@part
def stay(
    columns: ClusterColumns, slots: Slots, tasks: TaskDemands, used: IntColumn, taken: Taken
) -> BoolColumn:
    """Let rows that keep their share keep their GPUs; say which do."""
    rows = tasks.workers.shape[0]
    stays = np.zeros(rows, np.bool_)
    for row in range(rows):
        held, free = 0, True
        for i in range(slots.first[row], slots.first[row + 1]):
            held += slots.gpus[i]
            # Of two rows that hold the same GPUs, as packed jobs do, the first keeps them.
            free &= used[slots.island[i]] + slots.gpus[i] <= columns.island_gpus[slots.island[i]]
        stays[row] = free and held > 0 and held == tasks.workers[row]
        for i in range(slots.first[row], slots.first[row + 1] if stays[row] else 0):
            note(taken, row, slots.island[i], slots.gpus[i])
            used[slots.island[i]] += slots.gpus[i]
    return stays


@part
def free_nodes_of(
    columns: ClusterColumns, tasks: TaskDemands, used: IntColumn, taken: Taken
) -> FreeNodes:
    """The room left by the workers that stay."""
    nodes = columns.node_gpus.shape[0]
    counts, keys = np.zeros((2, 2), np.int64), np.empty((2, nodes))
    gpus, cpus, heap = np.zeros(nodes, np.int64), columns.node_cpus.copy(), np.arange(nodes)
    for island in range(used.shape[0]):
        gpus[columns.island_node[island]] += columns.island_gpus[island] - used[island]
    for i in range(taken.size[0]):
        cpus[columns.island_node[taken.island[i]]] -= taken.gpus[i] * tasks.worker_cpus
    for node in range(nodes):
        if columns.node_gpus[node] == 0:
            cpus[node] = 0  # a place is part of an island, and this node has none
    counts[0, 0] = nodes
    room = FreeNodes(tasks, gpus, cpus, heap, keys, counts[0], counts[1])
    for node in range(nodes):
        keys[0, node], keys[1, node] = room_at(room, node), -node
    make_heap(heap, nodes, keys)
    return room


@part
def give(
    room: FreeNodes,
    order: IntColumn,
    stays: BoolColumn,
    columns: ClusterColumns,
    slots: Slots,
) -> Given:
    """Find places for the servers of rows that stay, and then for all of the others."""
    tasks, rows, most, total = room.tasks, stays.shape[0], 0, 0
    for row in range(rows):
        most = max(most, tasks.workers[row] + tasks.servers[row])
        total += tasks.workers[row] + tasks.servers[row]
    entries, counts = np.empty((3, most + 1), np.int64), np.zeros((3, 2), np.int64)
    plan = NodePlan(entries[0], entries[1], entries[2], counts[0], counts[1])
    out = np.empty((4, total + 1), np.int64)
    given = Given(out[0], out[1], out[2], out[3], counts[2])
    for turn in range(rows + order.shape[0]):
        first = turn < rows
        row = turn if first else order[turn - rows]
        clear(room, plan)
        if first and stays[row]:
            plan_servers(room, plan, row, columns, slots)
        elif first or stays[row] or tasks.workers[row] == 0:
            continue
        elif not plan_evenly(room, plan, row):
            if tasks.spans[row]:
                plan_anywhere(room, plan, row)
            else:
                plan_on_one_node(room, plan, row)
        carry_out(room, plan, row, given)
    return given


@kernel
def place_evenly(
    columns: ClusterColumns, slots: Slots, tasks: TaskDemands, order: IntColumn, reserved: IntColumn
) -> tuple[Slots, Slots]:
    """Seats of workers and servers: jobs that keep their share stay, the others go by `order`."""
    rows, used = tasks.workers.shape[0], reserved.copy()
    workers = nothing_taken(int(tasks.workers.sum()) + slots.island.shape[0] + 1)
    stays = stay(columns, slots, tasks, used, workers)
    given = give(free_nodes_of(columns, tasks, used, workers), order, stays, columns, slots)
    free = columns.island_gpus - used
    servers = nothing_taken(given.size[0] + 1)
    for i in range(given.size[0]):
        if given.workers[i] > 0:
            node = given.node[i]
            take_islands(columns.first, free, workers, given.row[i], node, given.workers[i])
        if given.servers[i] > 0:
            note(servers, given.row[i], columns.first[given.node[i]], given.servers[i])
    return slots_from(rows, workers), slots_from(rows, servers)


@dataclass(frozen=True)
class OptimusPlacement:
    """Puts each job evenly, workers and parameter servers alike, on the fewest of the emptiest
    nodes; the smallest job first.

    A job that keeps its share keeps its GPUs, with servers next to them. A job that no nodes hold
    evenly takes what it finds and shrinks to that. If no job has servers, or if cores are not
    counted, only GPUs are spread. Even parts are best on nodes that are alike: shares of several
    kinds of GPU are put close together instead, without servers.
    """

    worker_cpus: WorkerCpus = WORKER_CPUS
    server_cpus: ServerCpus = SERVER_CPUS

    def __call__(self, snapshot: Snapshot, allocation: Allocation) -> Placed:
        columns, jobs, slots = snapshot.cluster.columns, snapshot.jobs, snapshot.slots
        assert slots is not None, "rows that are placed sit somewhere, if only nowhere"
        wanted, nothing = allocation.gpus, np.zeros(jobs.size, np.int64)
        servers = allocation.servers if isinstance(allocation, ServedAllocation) else nothing
        order = np.lexsort((jobs.id, wanted + servers))
        if allocation.by_kind.shape[1] > 1:
            return placed_close(snapshot, allocation, order)
        has_servers = bool(servers.any())
        counted = has_servers and bool(columns.node_cpus.any())
        leaders, rows = leaders_of(slots, allocation), np.arange(slots.rows)
        leads = leaders == rows
        tasks = TaskDemands(
            np.where(leads, wanted, 0),
            np.where(leads, servers, 0),
            jobs.gpus_min,
            jobs.spans,
            self.worker_cpus if counted else 0,
            self.server_cpus if counted else 0,
        )
        at, served = place_evenly(columns, slots, tasks, order, kept_back(snapshot))
        # A job that stays may have found no core for a server: without one it can't train.
        idle = (tasks.servers > 0) & (served.totals == 0)
        at = at.take(np.where(idle, -1, rows)).take(leaders)
        why = "no nodes have room for its workers and a parameter server"
        refused = because((at.totals == 0) & (wanted > 0), "Topology", why)
        found = ServedPlaced(at, refused, servers=served.take(leaders))
        return found if has_servers else Placed(at, refused)

"""Which servers suit a job: Algorithm 1 of Gandiva (OSDI '18).

Jobs that ask for as many GPUs share servers, so that a server hosts jobs of one size and none of
its GPUs is left over. A job is *assigned* to servers, on which it runs or waits for its turn.
"""

from typing import NamedTuple

import numpy as np

from coddl.core.columns import IntColumn
from coddl.core.compiling import ONE, ZERO, kernel, kernel_int, part
from coddl.core.placement.room import NONE


class NodeLoads(NamedTuple):
    """The jobs assigned to each node."""

    gpus: IntColumn
    load: IntColumn  # GPUs that the jobs assigned to it ask for; more than it has: they take turns
    affinity: IntColumn  # what the first of them asks for in all; 0: no job is assigned to it


# What Algorithm 1 comes to.
SAME = kernel_int(0)  # servers of its affinity, with room
EMPTY = kernel_int(1)  # servers without jobs
RELAXED = kernel_int(2)  # servers of any affinity with room
SHARED = kernel_int(3)  # servers of its affinity, over-subscribed
QUEUED = kernel_int(4)  # none
ANY = kernel_int(-1)  # in place of an affinity: whatever it is, if GPUs are free
NO_AFFINITY = kernel_int(0)


@kernel
def no_loads(gpus: IntColumn) -> NodeLoads:
    """Servers with `gpus` GPUs, without jobs."""
    return NodeLoads(gpus, np.zeros_like(gpus), np.zeros_like(gpus))


@part
def room_at(servers: NodeLoads, node: int, affinity: int) -> int:
    """How many GPUs of a node count: those that are free if affinity is ANY, else all of it."""
    if affinity == ANY:
        return int(servers.gpus[node] - servers.load[node])
    return int(servers.gpus[node]) if servers.affinity[node] == affinity else 0


@part
def is_better(servers: NodeLoads, node: int, best: int, affinity: int, alone: int) -> bool:
    """Return whether a node comes before the best so far.

    Of the job's own affinity, the one with the least load a GPU. Of the others, the one that the
    job fills best if it is to be there alone, else the one with most room.
    """
    if best < 0:
        return True
    if affinity > 0:
        here = servers.load[node] * servers.gpus[best]
        return bool(here < servers.load[best] * servers.gpus[node])
    here, there = room_at(servers, node, affinity), room_at(servers, best, affinity)
    return here < there if alone > 0 else here > there


@part
def find_nodes(servers: NodeLoads, need: int, spans: int, affinity: int, parts: IntColumn) -> bool:
    """Find a server with `need` GPUs, or else several if the job `spans`; fill in its parts."""
    best, left = NONE, need
    parts[:] = 0
    for node in range(parts.shape[0]):
        fits = room_at(servers, node, affinity) >= need
        if fits and is_better(servers, node, best, affinity, ONE):
            best = node
    if best >= 0:
        parts[best] = need
        return True
    while left > 0 and spans > 0:
        best = NONE
        for node in range(parts.shape[0]):
            helps = parts[node] == 0 and room_at(servers, node, affinity) > 0
            if helps and is_better(servers, node, best, affinity, ZERO):
                best = node
        if best < 0:
            break
        parts[best] = min(left, room_at(servers, best, affinity))
        left -= parts[best]
    return bool(left == 0)


@part
def has_room(servers: NodeLoads, parts: IntColumn) -> bool:
    """Return whether these nodes have room without turns: each height stays at 1 or below."""
    for node in range(parts.shape[0]):
        if parts[node] > 0 and servers.load[node] + parts[node] > servers.gpus[node]:
            return False
    return True


@kernel
def get_nodes(servers: NodeLoads, need: int, spans: int, parts: IntColumn) -> int:
    """Algorithm 1: fill in how many GPUs of each node are the job's, and say which kind.

    QUEUED leaves `parts` without meaning. A server's height is its load over its GPUs; "height < 1"
    is read as room for this job, since other sizes may live there once affinity was relaxed.
    """
    # Load over what is free rises with load over all: this is the least loaded one with room.
    free = np.maximum(0, servers.gpus - servers.load)
    if find_nodes(NodeLoads(free, servers.load, servers.affinity), need, ZERO, need, parts):
        return SAME
    same = find_nodes(servers, need, spans, need, parts)
    if same and has_room(servers, parts):
        return SAME
    other = np.empty_like(parts)
    if find_nodes(servers, need, spans, NO_AFFINITY, other):
        parts[:] = other
        return EMPTY
    if find_nodes(servers, need, spans, ANY, other):
        parts[:] = other
        return RELAXED
    return SHARED if same else QUEUED


@part
def add_load(servers: NodeLoads, node: int, need: int, gpus: int) -> None:
    """Assign to a node a job that asks for `need` GPUs in all, `gpus` here."""
    servers.load[node] += gpus
    if servers.affinity[node] == 0:
        servers.affinity[node] = need


@part
def remove_load(servers: NodeLoads, node: int, gpus: int) -> None:
    """Take a node from a job. With the last job its affinity goes."""
    servers.load[node] -= gpus
    if servers.load[node] == 0:
        servers.affinity[node] = 0

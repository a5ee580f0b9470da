"""How jobs leave nodes that are drained: led from elsewhere, and in time where there is a deadline.

A decision gives jobs other devices as soon as a node is drained. What it can't move, because it
waits for others or can't be resized, has until the node is to be empty; then it keeps what it has
elsewhere if that is enough for it, and is saved and stopped if not.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from coddl.core.pool import records as r
from coddl.core.pool.job import JobState
from coddl.core.pool.nodes import AGENT as AGENT
from coddl.core.pool.nodes import NodeState
from coddl.core.pool.state import Pool

SAME_S: Final = 1.0  # two notices whose deadlines are this close are one


class ForcedMove(NamedTuple):
    """A job that must leave a node now."""

    job: JobState
    kept: tuple[int, ...]  # the slots that it goes on with; none: it is saved and stopped
    because: str


def drained_by_notice(pool: Pool, notice: r.NodeNoticed, now_s: float) -> r.NodeDrained | None:
    """Return what an agent's notice changes: nothing, if the node leaves by then anyway."""
    node = pool.nodes.get(notice.node)
    if node is None or not node.is_up or node.boot != notice.boot:
        return None
    within_s = max(0.0, notice.within_s)
    if node.leaves_at_s is not None and now_s + within_s > node.leaves_at_s - SAME_S:
        return None
    return r.NodeDrained(node.name, AGENT, within_s, "its machine is taken back")


def led_from_drained(pool: Pool) -> Iterator[tuple[JobState, NodeState]]:
    """Name jobs that are led from a drained node and train elsewhere."""
    for node in pool.nodes.values():
        if not node.is_drained or node.is_silent:
            continue
        for number in list(node.leads):
            job = pool.jobs[number]
            here = any(pool.slots[slot].node == node.name for slot in job.granted)
            if not here and job.granted and job.phase == "running" and job.is_elastic:
                yield job, node


def forced_moves(pool: Pool, now_s: float) -> Iterator[ForcedMove]:
    """Name the jobs that are where nothing may be any more."""
    nodes = pool.nodes.values()
    due = {n.name: n for n in nodes if n.empty_by_s is not None and now_s >= n.empty_by_s}
    for node in due.values():
        for job in _owners(pool, node):
            kept = tuple(slot for slot in job.granted if pool.slots[slot].node not in due)
            if kept == job.granted or job.stop or job.is_over or pool.is_deaf(job):
                continue  # it leaves already, or can't be reached
            enough = job.is_elastic and len(kept) >= job.gpus_least
            yield ForcedMove(job, kept if enough else (), f"node {node.name} leaves")


def due_s(pool: Pool) -> Iterator[float]:
    """Return when jobs will be made to leave, if they are still there."""
    for node in pool.nodes.values():
        if node.empty_by_s is not None and node.is_up and _owners(pool, node):
            yield node.empty_by_s


def _owners(pool: Pool, node: NodeState) -> list[JobState]:
    """Name the jobs whose processes may be on a node."""
    owners = {job for slot in node.slots for job in pool.slots[slot].owners}
    return [pool.jobs[job] for job in sorted(owners)]

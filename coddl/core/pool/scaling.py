"""Nodes that come and go: what an engine's report means, how many are wanted, which may go.

An engine reports all it has, again and again; what differs from what we know becomes records. The
answer says how many nodes to acquire and which to release. A node that is not needed is drained
first, and released when nothing is on it. A node that expires is used until another one has come in
its place, or the engine says that it leaves.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from coddl.core import node_demand
from coddl.core.node_count import (
    NodeBounds,
    NodeCount,
    emptiest,
    gpus_worth,
    next_count,
    nodes_for,
)
from coddl.core.node_demand import Demand, JobNeeds
from coddl.core.pool import records as r
from coddl.core.pool.estimates import PoolOutline, outline_of
from coddl.core.pool.job import JobState
from coddl.core.pool.nodes import NodeState
from coddl.core.pool.snapshot import speeds_by_size
from coddl.core.pool.state import Pool

SCALING: Final = "scaling"  # `drained_by` of a node that is not needed
SAME_S: Final = 5.0  # two deadlines that are this close are one
# That the agent of an empty node may take to end, and jobs to leave a node that is none any more.
RELEASE_S: Final = 30.0


class Release(NamedTuple):
    """A node that the engine must give back."""

    node: str
    within_s: float


class EngineOrders(NamedTuple):
    """Orders for an engine."""

    acquire: int
    release: tuple[Release, ...]


class JobNeed(NamedTuple):
    """An entry of JobNeeds."""

    id: int
    gpus_min: int
    worth: int
    held: int
    left_s: float


def demand_of(pool: Pool, bounds: NodeBounds, now_s: float) -> Demand:
    """Count the GPUs that the jobs of a pool make good use of."""
    outline = outline_of(pool)
    needs = [
        _need_of(pool, job, bounds, outline, now_s)
        for job in pool.live_jobs()
        if not job.suspended and not job.cancelled and job.fits
    ]
    jobs = JobNeeds(
        id=np.array([need.id for need in needs], np.int64),
        gpus_min=np.array([need.gpus_min for need in needs], np.int64),
        worth=np.array([need.worth for need in needs], np.int64),
        held=np.array([need.held for need in needs], np.int64),
        left_s=np.array([need.left_s for need in needs], np.float64),
    )
    return node_demand.demand_of(jobs, bounds.start_s, pool.unit)


def _need_of(
    pool: Pool, job: JobState, bounds: NodeBounds, outline: PoolOutline, now_s: float
) -> JobNeed:
    least, most = job.bounds(now_s)
    most = max(least, min(most, bounds.most * bounds.gpus))
    curve = speeds_by_size(pool, job, most, outline)
    speeds = {gpus: speed.step_s for gpus, speed in curve.items()}
    worth = gpus_worth(speeds, least, min(most, max(speeds))) if least in speeds else least
    held = len(job.granted)
    left_s = np.nan
    if job.remaining is not None and held in speeds:
        left_s = job.remaining * speeds[held]
    return JobNeed(job.id, least, worth, held, left_s)


def news_of(pool: Pool, report: r.EngineReported, now_s: float) -> Iterator[r.Record]:
    """Yield what an engine's report has that the pool does not know."""
    if (pool.engine.name, pool.engine.bounds) != (report.engine, report.bounds):
        yield r.EngineBounded(report.engine, report.bounds)
    for told in report.nodes:
        if told.name not in pool.engine.acquired:
            yield r.NodeAcquired(told.name)
        node = pool.nodes.get(told.name)
        if node is not None and node.is_up and told.leaves_in_s is not None:
            known_s = node.leaves_at_s
            if known_s is None or abs(now_s + told.leaves_in_s - known_s) > SAME_S:
                within_s = max(0.0, told.leaves_in_s)
                yield r.NodeDrained(told.name, report.engine, within_s, told.because)
    named = {told.name for told in report.nodes}
    because = f"{report.engine} no longer has it"
    for name in [name for name in pool.engine.acquired if name not in named]:
        node = pool.nodes.get(name)
        if _may_go(pool, node):
            yield r.NodeLeft(name, because)
        elif node is not None and not node.is_silent and node.leaves_at_s is None:
            yield r.NodeDrained(name, report.engine, RELEASE_S, because)


def ended_nodes(pool: Pool, report: r.EngineReported) -> list[r.NodeLost]:
    """Name nodes whose lease need not be waited for: all that ran there has ended."""
    nodes = [pool.nodes[name] for name in report.ended if name in pool.nodes]
    because = f"{report.engine} says that all its processes have ended"
    return [r.NodeLost(n.name, n.boot, because) for n in nodes if n.is_up and n.is_silent]


def wanted_because(pool: Pool, now_s: float) -> str:
    """Return why as many nodes are wanted as there are, as of now."""
    bounds = pool.engine.bounds
    if bounds is None:
        return pool.engine.wanted_because
    demand = demand_of(pool, bounds, now_s)
    if nodes_for(demand.gpus, bounds) < pool.engine.wanted:
        return f"{demand.because}; nodes are kept for {bounds.idle_s:g} s after they were needed"
    return demand.because


def _may_go(pool: Pool, node: NodeState | None) -> bool:
    """Return whether a node that its engine does not name is gone for good.

    While its lease holds and it has devices of jobs, their processes may live on without it.
    """
    return node is None or not node.is_up or (node.is_silent and _is_empty(pool, node))


def _is_empty(pool: Pool, node: NodeState) -> bool:
    return not node.leads and not any(pool.slots[slot].owners for slot in node.slots)


def count_after(
    pool: Pool, report: r.EngineReported, before: NodeCount, now_s: float
) -> tuple[NodeCount, str]:
    """Decide the number of nodes, and give the reason."""
    demand = demand_of(pool, report.bounds, now_s)
    needed, there = nodes_for(demand.gpus, report.bounds), len(_kept(pool, report))
    # After a restart of the server the nodes that are there are what was wanted.
    before = before if before.nodes else NodeCount(there)
    # A node that has gone while it was not needed is not asked for again.
    most = max(needed, there)
    before = NodeCount(min(before.nodes, most), before.surplus_since_s, min(before.peak, most))
    return next_count(before, needed, report.bounds, now_s), demand.because


def _kept(pool: Pool, report: r.EngineReported) -> list[r.ReportedNode]:
    """Name the nodes that jobs may be given, or will be when they have come."""
    found = []
    for told in report.nodes:
        node = pool.nodes.get(told.name)
        if told.state == "releasing" or _must_go(told):
            continue
        if node is None or not node.is_drained:
            found.append(told)
    return found


def _must_go(told: r.ReportedNode) -> bool:
    """Return whether the engine will take a node away."""
    return told.leaves_in_s is not None or told.expires_in_s is not None


def surplus_of(pool: Pool, report: r.EngineReported, wanted: int) -> Iterator[r.Record]:
    """Drain nodes that are not needed, or use them again if they are needed after all."""
    kept = _kept(pool, report)
    if (lacking := wanted - len(kept)) > 0:
        for name in _drained_by_scaling(pool, report)[:lacking]:
            yield r.NodeUndrained(name, SCALING)
        return
    joined = [node for told in kept if (node := pool.nodes.get(told.name)) is not None]
    starting = len(kept) - len(joined)
    if len(joined) >= wanted:
        yield from _replaced(pool, report)
    movable = {node.name: _load(pool, node) for node in joined if _can_move(pool, node)}
    for name in emptiest(movable, len(kept) - wanted - starting):
        yield r.NodeDrained(name, SCALING, None, "fewer nodes are needed")


def _replaced(pool: Pool, report: r.EngineReported) -> Iterator[r.Record]:
    """Drain nodes that expire and that others have taken the place of."""
    for told in report.nodes:
        node = pool.nodes.get(told.name)
        if told.expires_in_s is None or node is None or not node.is_up or node.is_drained:
            continue
        if not _can_move(pool, node):
            continue  # it may use the rest of the time
        because = "its time is nearly over, and other nodes are there"
        yield r.NodeDrained(told.name, SCALING, max(0.0, told.expires_in_s), because)


def _drained_by_scaling(pool: Pool, report: r.EngineReported) -> list[str]:
    names = [told.name for told in report.nodes if told.state == "up" and not _must_go(told)]
    return [n for n in names if n in pool.nodes and pool.nodes[n].drained_by == SCALING]


def _empty_for_good(pool: Pool, report: r.EngineReported) -> list[str]:
    """Name nodes that nothing is on any more, and that were to be left, by whomever."""
    found = []
    for told in report.nodes:
        node = pool.nodes.get(told.name)
        if node is None or told.state != "up" or not node.is_up or not node.is_drained:
            continue
        is_to_go = node.drained_by == SCALING or node.leaves_at_s is not None
        if is_to_go and _is_empty(pool, node):
            found.append(node.name)
    return found


def _load(pool: Pool, node: NodeState) -> int:
    return sum(bool(pool.slots[slot].owners) for slot in node.slots)


def _can_move(pool: Pool, node: NodeState) -> bool:
    """Return whether nothing is lost when a node is emptied."""
    owners = {job for slot in node.slots for job in pool.slots[slot].owners}
    return not any(pool.jobs[owner].is_fixed for owner in owners)


def orders_of(pool: Pool, report: r.EngineReported) -> EngineOrders:
    """Tell an engine what to do, after the pool has taken in its report."""
    kept, wanted = _kept(pool, report), pool.engine.wanted
    not_there = [told.name for told in kept if told.name not in pool.nodes]
    over = max(0, len(kept) - wanted)
    release = [*not_there[::-1][:over], *_empty_for_good(pool, report)]
    return EngineOrders(
        max(0, wanted - len(kept)), tuple(Release(node, RELEASE_S) for node in release)
    )

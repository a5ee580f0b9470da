"""Nodes that come and go in a run: how many there are at each moment, and why.

How many there should be is decided as in the live pool (`core/node_count.py`). Nodes that are asked
for are ready after a while. Those that are not needed are emptied, those with the fewest GPUs in
use first, and given back when no job holds GPUs of them any more.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coddl.core.columns import IntColumn
from coddl.core.jobs import JobTable
from coddl.core.node_count import (
    NodeBounds,
    NodeCount,
    emptiest,
    gpus_worth,
    next_count,
    nodes_for,
)
from coddl.core.node_demand import JobNeeds, demand_of
from coddl.core.plan import Plan
from coddl.core.speed.table import Speeds


class NodeChange(NamedTuple):
    """A change of the number of nodes, and the reason."""

    time_s: float
    held: int  # from then on: those that start, that jobs may use, and that are being emptied
    ready: int  # of these, those that jobs may use
    because: str


@dataclass(frozen=True, slots=True)
class NodesHeld:
    """The nodes of a run over time."""

    gpus: int  # of each node
    changes: tuple[NodeChange, ...]  # the first has what the run begins with

    def gpu_s(self, until_s: float) -> float:
        """Add up the GPU-time of the nodes, whether jobs held it or not."""
        times_s = np.array([*(change.time_s for change in self.changes), until_s])
        gpus = np.array([self.gpus * change.held for change in self.changes])
        return float((gpus * np.diff(times_s)).sum())


class StartingNode(NamedTuple):
    """A node that was asked for."""

    ready_s: float
    because: str


class EmptyingNode(NamedTuple):
    """A node that jobs move off."""

    rows: IntColumn  # jobs that may still hold GPUs of it
    because: str


class NodeScaling:
    """The nodes of a run, which begins with the fewest that there may be.

    Nodes have the numbers 0 to `most` - 1; that of a node that was given back is used again.
    """

    def __init__(self, bounds: NodeBounds, worth: IntColumn, begin_s: float) -> None:
        self.bounds = bounds
        self.ready = tuple(range(bounds.least))  # nodes that jobs may use, in ascending order
        self._worth = worth  # by job: the most GPUs that it makes good use of
        self._count = NodeCount(bounds.least)
        self._starting: list[StartingNode] = []  # the first to be ready first
        self._emptying: dict[int, EmptyingNode] = {}
        self._changes: list[NodeChange] = []
        is_fixed = bounds.least == bounds.most
        self._tell(begin_s, "a fixed number" if is_fixed else "the run begins with the minimum")

    @property
    def history(self) -> NodesHeld:
        """What has happened so far."""
        return NodesHeld(self.bounds.gpus, tuple(self._changes))

    @property
    def next_s(self) -> float:
        """Return when the next nodes are ready, or some have been idle for long enough."""
        since_s = self._count.surplus_since_s
        idle_s = np.inf if since_s is None else since_s + self.bounds.idle_s
        return min([idle_s, *(node.ready_s for node in self._starting)])

    def start(self, now_s: float) -> int:
        """Let jobs use the nodes whose start is over; return how many those are."""
        due = [node for node in self._starting if node.ready_s <= now_s]
        if due:
            self._starting = self._starting[len(due) :]
            taken = {*self.ready, *self._emptying}
            free = [number for number in range(self.bounds.most) if number not in taken]
            self.ready = tuple(sorted((*self.ready, *free[: len(due)])))
            ago = f"asked for {self.bounds.start_s:g} s ago: " * (self.bounds.start_s > 0)
            self._tell(now_s, ago + due[-1].because)
        return len(due)

    def give_back(
        self, now_s: float, used_gpus: float, is_settled: Callable[[IntColumn], bool]
    ) -> int:
        """Give back the nodes that no job holds GPUs of any more; return how many those are."""
        empty = [at for at, node in self._emptying.items() if is_settled(node.rows)]
        # A job that has moved may be where another still is, which has not shrunk yet.
        unused_gpus = (len(self.ready) + len(self._emptying)) * self.bounds.gpus - used_gpus
        gone = empty[: max(0, int(unused_gpus / self.bounds.gpus))]
        for number in gone:
            self._tell(now_s, self._emptying.pop(number).because)
        return len(gone)

    def decide(self, plan: Plan) -> None:
        """Decide how many nodes there should be, now that jobs have what a plan gives them."""
        jobs, now_s = plan.snapshot.jobs, plan.snapshot.now_s
        # What a job would take that does not run plays no part; on its minimum it is a number.
        left_s = plan.snapshot.seconds_left_at(np.maximum(plan.shares, jobs.gpus_min))
        needs = JobNeeds(jobs.id, jobs.gpus_min, self._worth[jobs.id], plan.shares, left_s)
        demand = demand_of(needs, self.bounds.start_s)
        needed = nodes_for(demand.gpus, self.bounds)
        self._count = next_count(self._count, needed, self.bounds, now_s)
        more = self._count.nodes - len(self.ready) - len(self._starting)
        if more > 0:
            limit = f"; at most {_counted(needed)}" * (demand.gpus > needed * self.bounds.gpus)
            self._ask_for(more, now_s, demand.because + limit)
        elif more < 0:
            idle = f" for {self.bounds.idle_s:g} s" * (self.bounds.idle_s > 0)
            self._set_aside(-more, plan, f"not needed{idle}: {demand.because}")

    def _ask_for(self, count: int, now_s: float, because: str) -> None:
        """Use nodes again that jobs were to move off, and ask for others."""
        again = sorted(self._emptying)[:count]
        for number in again:
            del self._emptying[number]
        self.ready = tuple(sorted((*self.ready, *again)))
        node = StartingNode(now_s + self.bounds.start_s, because)
        self._starting += [node] * (count - len(again))
        self._tell(now_s, because)

    def _set_aside(self, count: int, plan: Plan, because: str) -> None:
        """Do without nodes that start, and then without those that are used least."""
        unstarted = min(count, len(self._starting))
        self._starting = self._starting[: len(self._starting) - unstarted]
        assert plan.placed is not None, "jobs are placed where nodes come and go"
        slots, jobs = plan.placed.slots, plan.snapshot.jobs
        used = slots.in_use(plan.snapshot.cluster.columns)
        row = np.repeat(np.arange(slots.rows), np.diff(slots.first))
        # One whose last change is not in effect yet may hold GPUs of any node.
        lags = (jobs.settled == 0) | (plan.shares != jobs.gpus)
        by_number = dict(zip(self.ready, used.tolist(), strict=True))
        for number in emptiest(by_number, count - unstarted):
            sits = lags.copy()
            sits[row[slots.island == self.ready.index(number)]] = True
            self._emptying[number] = EmptyingNode(jobs.id[sits], because)
        self.ready = tuple(number for number in self.ready if number not in self._emptying)
        self._tell(plan.snapshot.now_s, because)

    def _tell(self, now_s: float, because: str) -> None:
        """Note how many nodes there are; of several changes at a time, the last is kept."""
        held = len(self.ready) + len(self._starting) + len(self._emptying)
        if self._changes and self._changes[-1].time_s == now_s:
            self._changes.pop()
        self._changes.append(NodeChange(now_s, held, len(self.ready), because))


def worth_of(jobs: JobTable, curve: IntColumn, speeds: Speeds, *, rigid: bool) -> IntColumn:
    """Return the most GPUs that each job makes good use of: the request under a rigid policy."""
    if rigid:
        return jobs.gpus_requested
    widest = speeds.step_s.shape[1] - 1
    kinds = np.stack((curve, jobs.gpus_min, np.minimum(jobs.gpus_max, widest)), axis=1)
    different, kind = np.unique(kinds, axis=0, return_inverse=True)
    worth = [
        gpus_worth(dict(enumerate(speeds.step_s[row].tolist())), least, most)
        for row, least, most in different.tolist()
    ]
    return np.array(worth, np.int64)[kind.reshape(-1)]


def _counted(nodes: int) -> str:
    return f"{nodes} node{'s' * (nodes != 1)}"

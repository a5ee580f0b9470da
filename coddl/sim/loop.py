"""The event loop, step by step: for any policy, and the readable twin of `compiled`."""

from dataclasses import dataclass, field

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.cluster import Cluster, Ground
from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn
from coddl.core.jobs import (
    ATTAINED_GPU_S,
    CURVE,
    GPUS,
    REMAINING_ITERATIONS,
    SERVERS,
    SETTLED,
    JobTable,
)
from coddl.core.parameter_server.costs import TaskCounts, remote_parts, server_slowdowns
from coddl.core.plan import Plan
from coddl.core.scheduler import Scheduler
from coddl.core.seats import Seats
from coddl.core.seeds import next_seed
from coddl.core.snapshot import Snapshot
from coddl.core.speed.places import slowdowns
from coddl.core.speed.table import Speeds
from coddl.sim.moving import LastNodes, Places, move_pauses, take_places
from coddl.sim.world import (
    ACTIVE,
    DECIDE,
    FINISHED,
    HELD,
    LOGGED,
    NOW,
    PAUSE_S,
    SEED,
    World,
    advance,
    apply_shares,
)


@dataclass(frozen=True, eq=False)
class Beliefs:
    """What a scheduler takes for the jobs' lengths and speeds, right or wrong."""

    speeds: Speeds
    curve: IntColumn | None = None  # by job: its row in `speeds`; None: as in the trace
    # A factor on what is left to do, [job, stage]: stages are equal parts of a job's training, as
    # many as there are columns. None: the truth.
    length: FloatMatrix | None = None

    def left(self, rows: IntColumn, left: FloatColumn, whole: FloatColumn) -> FloatColumn:
        """What jobs are taken to have left, that in truth have `left` of their `whole` length."""
        if self.length is None:
            return left
        stages = self.length.shape[1]
        stage = np.minimum(stages * (whole - left) / whole, stages - 1).astype(np.int64)
        believed: FloatColumn = left * self.length[rows, stage]
        return believed


@dataclass(frozen=True, eq=False)
class Site:
    """What the jobs run on: the machines, the true speeds there, and who is entitled to what."""

    cluster: Cluster
    speeds: Speeds
    beliefs: Beliefs
    quota_gpus: IntColumn = field(default_factory=lambda: np.zeros(0, np.int64))  # by queue
    move_s: tuple[float, float] | None = None  # as in Reconfigure


class Steps:
    """Runs a world with a scheduler, one event at a time.

    The simulator adds nothing to the scheduler but time: something happens, the scheduler decides,
    the world follows.
    """

    def __init__(self, world: World, site: Site, scheduler: Scheduler) -> None:
        self._world = world
        self._site = site
        self._scheduler = scheduler
        self._places_jobs = scheduler.placement is not None or len(site.cluster.nodes) > 1
        self._rows = np.zeros(0, np.int64)  # that `_seats` are of
        self._seats = Seats.none(0)
        self._last = LastNodes(world.jobs.size, len(site.cluster.nodes))
        self._iterations = world.jobs.remaining_iterations.copy()  # in all: nothing has run yet
        self._past_gpu_s = np.empty(world.jobs.size)
        self._known = 0  # of those that have ended

    def run(self, events: int) -> bool:
        """Run up to `events` events, or until the log should be emptied; False at the end."""
        world = self._world
        room = len(world.log.time_s) // 2
        for _ in range(events):
            if not advance(world):
                return False
            if world.counts[DECIDE]:
                plan = self._scheduler.decide(self._snapshot())
                world.memory[world.active[: world.counts[ACTIVE]]] = plan.memory
                if plan.placed is not None or plan.allocation.servers is not None:
                    take_places(world, self._places(plan), plan.shares)
                    self._seats = self._seats if plan.placed is None else plan.placed.seats
                apply_shares(world, plan.shares, plan.allocation.wake_at_s)
            if world.counts[LOGGED] > room:
                break
        return True

    def _snapshot(self) -> Snapshot:
        """Take the picture of this instant, with the next seed for the policy's coin."""
        world, site = self._world, self._site
        rows, whole = world.active[: world.counts[ACTIVE]].copy(), world.jobs.whole
        whole[SETTLED, rows] = whole[GPUS, rows] == whole[HELD, rows]
        seed = next_seed(int(world.counts[SEED]))
        world.counts[SEED] = seed
        return Snapshot(
            now_s=float(world.clock[NOW]),
            cluster=site.cluster,
            jobs=self._table(rows),
            speeds=site.beliefs.speeds,
            memory=np.take(world.memory, rows, axis=0),
            seed=seed,
            seats=self._reseated(rows),
            past_gpu_s=self._past(),
            quota_gpus=site.quota_gpus,
        )

    def _table(self, rows: IntColumn) -> JobTable:
        """The jobs as the scheduler takes them to be."""
        beliefs, table = self._site.beliefs, self._world.jobs.take(rows)
        if beliefs.curve is None and beliefs.length is None:
            return table
        real, whole = table.real.copy(), table.whole.copy()
        if beliefs.curve is not None:
            whole[CURVE] = beliefs.curve[rows]
        if beliefs.length is not None:
            left = real[REMAINING_ITERATIONS]
            real[REMAINING_ITERATIONS] = beliefs.left(rows, left, self._iterations[rows])
        return JobTable(real, whole).read_only()

    def _reseated(self, rows: IntColumn) -> Seats | None:
        """Where the jobs sit that are in the system now; None if nobody places them."""
        if not self._places_jobs:
            return None
        at = np.searchsorted(self._rows, rows)
        at[at == self._rows.size] = 0
        known = self._rows[at] == rows if self._rows.size else np.zeros(rows.size, np.bool_)
        known &= self._world.jobs.whole[GPUS, rows] > 0  # one that failed has lost its seats
        self._rows, self._seats = rows, self._seats.take(np.where(known, at, -1))
        return self._seats

    def _past(self) -> FloatColumn:
        """GPU-time of the jobs that have ended."""
        world, ended = self._world, int(self._world.counts[FINISHED])
        rows = world.ended[self._known : ended]
        self._past_gpu_s[self._known : ended] = world.jobs.real[ATTAINED_GPU_S, rows]
        self._known = ended
        return self._past_gpu_s[:ended]

    def _places(self, plan: Plan) -> Places:
        """What it means to the jobs to be where the plan puts them."""
        world, site = self._world, self._site
        rows = world.active[: world.counts[ACTIVE]]
        curves, mates = world.jobs.whole[CURVE, rows], mates_of(plan.allocation)
        ground, slowdown, moved = site.cluster.ground, np.ones(rows.size), plan.moved
        pause_s = np.full(rows.size, world.clock[PAUSE_S])
        if plan.placed is not None:
            seats = plan.placed.seats
            slowdown = slowdowns(site.speeds.places, ground, curves, seats, mates)
            if site.move_s is not None:
                left = self._last.left(ground, rows, seats)
                pause_s[left] = move_pauses(site.move_s, plan.shares[left])
        if site.speeds.servers is not None and plan.allocation.servers is not None:
            tasks = tasks_of(plan, curves, ground)
            slowdown *= server_slowdowns(site.speeds.servers, site.speeds.step_s, tasks)
            # It starts anew with others.
            moved = moved | (world.jobs.whole[SERVERS, rows] != tasks.servers)
            world.jobs.whole[SERVERS, rows] = tasks.servers
        return Places(slowdown, np.where(mates >= 0, 0.5, 1.0), moved, pause_s)


def tasks_of(plan: Plan, curves: IntColumn, ground: Ground) -> TaskCounts:
    """The workers and servers of each row, and how far apart a placement has put them."""
    servers, remote = plan.allocation.servers, np.ones(len(curves))
    assert servers is not None
    if plan.placed is not None and plan.placed.servers is not None:
        servers = plan.placed.servers.totals
        remote = remote_parts(ground, plan.placed.seats, plan.placed.servers)
    return TaskCounts(curves, plan.shares, servers, remote)


def mates_of(allocation: Allocation) -> IntColumn:
    """Who shares each row's GPUs, -1 for nobody."""
    rows = len(allocation.shares)
    return np.full(rows, -1) if allocation.mates is None else allocation.mates

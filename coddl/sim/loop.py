"""The event loop, step by step: for any policy, and the readable twin of `compiled`."""

from dataclasses import dataclass, field, replace

import numpy as np

from coddl.core.allocation import Allocation, group_sizes
from coddl.core.cluster import Cluster, ClusterColumns
from coddl.core.columns import FloatColumn, IntColumn
from coddl.core.history import EndedJobs
from coddl.core.jobs import (
    ATTAINED_GPU_S,
    COHORT,
    CURVE,
    GPUS,
    GPUS_MAX,
    GPUS_MIN,
    GPUS_REQUESTED,
    ID,
    REMAINING_ITERATIONS,
    SETTLED,
    JobTable,
)
from coddl.core.parameter_server.costs import (
    ServedSpeeds,
    TaskCounts,
    remote_parts,
    server_slowdowns,
)
from coddl.core.parameter_server.tasks import ServedAllocation, ServedPlaced, held_servers
from coddl.core.plan import Plan
from coddl.core.scheduler import Scheduler
from coddl.core.seeds import next_seed
from coddl.core.slots import Slots
from coddl.core.snapshot import Snapshot
from coddl.core.speed.places import slowdowns
from coddl.core.speed.table import Speeds
from coddl.sim.beliefs import Beliefs
from coddl.sim.learning import LearnedSpeeds
from coddl.sim.moving import LastNodes, PlacementEffects, apply_places, move_pauses
from coddl.sim.node_scaling import NodeScaling
from coddl.sim.pool_conditions import PoolEvents
from coddl.sim.world import (
    ACTIVE,
    ARRIVED,
    DECIDE,
    FINISHED,
    FREE,
    HELD,
    LOGGED,
    MOVING_S,
    NOW,
    PART,
    PAUSE_S,
    RUNNING,
    SEED,
    STEP_S,
    WAKE,
    World,
    advance,
    apply_shares,
)


@dataclass(frozen=True, eq=False)
class SimulatedCluster:
    """What the jobs run on: the machines, the true speeds there, and each queue's quota."""

    cluster: Cluster
    speeds: Speeds
    beliefs: Beliefs
    quota_gpus: IntColumn = field(default_factory=lambda: np.zeros(0, np.int64))  # by queue
    move_s: tuple[float, float] | None = None  # as in Reconfigure


class StepLoop:
    """Runs a world with a scheduler, one event at a time.

    The simulator adds nothing to the scheduler but time: something happens, the scheduler decides,
    the world follows.
    """

    def __init__(
        self,
        world: World,
        simulated: SimulatedCluster,
        scheduler: Scheduler,
        scaling: NodeScaling | None = None,  # None: all nodes are there all the time
        *,
        events: PoolEvents | None = None,  # None: nothing happens but what is decided
        prerun: bool = False,  # a job has its minimum until it has made its first step
    ) -> None:
        self._world = world
        self._simulated = simulated
        self._scheduler = scheduler
        self._places_jobs = scheduler.placement is not None or len(simulated.cluster.nodes) > 1
        self._rows = np.zeros(0, np.int64)  # that `_seats` are of
        self._slots = Slots.none(0)
        self._last = LastNodes(world.jobs.size, len(simulated.cluster.nodes))
        self._iterations = world.jobs.remaining_iterations.copy()  # in all: nothing has run yet
        self._past_gpu_s = np.empty(world.jobs.size)
        self._known = 0  # of those that have ended
        learning = simulated.beliefs.learning
        self._learned = None if learning is None else LearnedSpeeds(learning, world.jobs.curve)
        self._proven = np.full(world.jobs.size, not prerun)  # has made a step
        self._scaling = scaling
        self._events = events
        assert events is None or not self._places_jobs, "where GPUs come and go is not simulated"
        self._all_nodes = simulated.cluster.nodes
        self._ready = np.arange(len(self._all_nodes))  # the numbers of the nodes that are there
        if scaling is not None:
            world.counts[FREE] = len(scaling.ready) * scaling.bounds.gpus
            self._use(scaling.ready)

    def run(self, events: int) -> bool:
        """Run up to `events` events, or until the log should be emptied; False at the end."""
        world = self._world
        room = len(world.log.time_s) // 2
        for _ in range(events):
            if not advance(world):
                return False
            if self._scaling is not None:
                started = self._scaling.start(float(world.clock[NOW]))
                world.counts[FREE] += started * self._scaling.bounds.gpus
                self._use(self._scaling.ready)
            if self._events is not None:
                self._happen(self._events)
            self._see_steps()
            plan = self._decide() if world.counts[DECIDE] else None
            if self._scaling is not None:
                self._scale(self._scaling, plan)
            self._see_steps()
            if self._events is not None and self._has_jobs:
                world.clock[WAKE] = min(world.clock[WAKE], self._events.next_s)
            if world.counts[LOGGED] > room:
                break
        return True

    def _decide(self) -> Plan:
        """Ask the scheduler, and let the world follow."""
        world = self._world
        active = world.active[: world.counts[ACTIVE]]
        competes = np.ones(active.size, np.bool_)
        if self._events is not None:
            competes = self._events.competes(active)
        plan = self._scheduler.decide(self._snapshot(active[competes]))
        world.memory[active[competes]] = plan.memory
        if plan.placed is not None or isinstance(self._simulated.speeds, ServedSpeeds):
            apply_places(world, self._places(plan), plan.shares)
            self._slots = self._slots if plan.placed is None else plan.placed.slots
        shares = np.zeros(active.size, np.int64)
        shares[competes] = plan.shares
        apply_shares(world, shares, plan.allocation.wake_at_s)
        return plan

    def _happen(self, events: PoolEvents) -> None:
        """Let happen what is due, whatever is decided."""
        world, before = self._world, self._simulated.cluster.gpus_total
        gpus = events.happen(float(world.clock[NOW]))
        if gpus != before:
            world.counts[FREE] += gpus - before
            self._simulated = replace(self._simulated, cluster=Cluster.of(gpus))

    @property
    def _has_jobs(self) -> bool:
        """Return whether a job is in the system, or still to come."""
        counts = self._world.counts
        return bool(counts[ACTIVE] > 0 or counts[ARRIVED] < self._world.jobs.size)

    def _see_steps(self) -> None:
        """See the jobs that have made a step where they are; decide again when others will have."""
        world, learned = self._world, self._learned
        if learned is None and self._proven.all():
            return
        running = world.running[: world.counts[RUNNING]]
        rows = running[world.ints[HELD, running] > 0]
        stepped_s = world.floats[MOVING_S, rows] + world.floats[STEP_S, rows]
        done, sizes = stepped_s <= world.clock[NOW], world.ints[HELD, rows]
        self._proven[rows[done]] = True
        soon_s = stepped_s[~self._proven[rows]].min(initial=np.inf)
        if learned is not None:
            learned.see(rows[done], sizes[done])
            soon_s = min(soon_s, stepped_s[learned.is_new(rows, sizes)].min(initial=np.inf))
        world.clock[WAKE] = min(world.clock[WAKE], soon_s)

    def _scale(self, scaling: NodeScaling, plan: Plan | None) -> None:
        """Give back empty nodes, decide how many there should be, and see to it in time."""
        world, now_s = self._world, float(self._world.clock[NOW])
        ints, held = world.jobs.ints, world.ints[HELD]
        rows = world.active[: world.counts[ACTIVE]]
        used_gpus = float((held[rows] * world.floats[PART, rows]).sum())
        gone = scaling.give_back(
            now_s, used_gpus, lambda rows: bool((held[rows] == ints[GPUS, rows]).all())
        )
        world.counts[FREE] -= gone * scaling.bounds.gpus
        if plan is not None:
            scaling.decide(plan)
        next_s = now_s if self._use(scaling.ready) else scaling.next_s
        if self._has_jobs:
            world.clock[WAKE] = min(world.clock[WAKE], next_s)

    def _use(self, numbers: tuple[int, ...]) -> bool:
        """Let the scheduler see these nodes and no others; return whether that is a change."""
        before, after = self._ready, np.array(numbers, np.int64)
        if np.array_equal(before, after):
            return False
        assert all(node.island_gpus == 0 for node in self._all_nodes), "a node is an island"
        islands = np.full(len(self._all_nodes), -1)
        islands[after] = np.arange(after.size)
        self._slots = self._slots.renumbered(islands[before])
        self._ready = after
        nodes = tuple(self._all_nodes[number] for number in numbers)
        cluster = replace(self._simulated.cluster, nodes=nodes)
        self._simulated = replace(self._simulated, cluster=cluster)
        return True

    def _snapshot(self, rows: IntColumn) -> Snapshot:
        """Take the snapshot of this instant, with the next seed for the policy's coin."""
        world, simulated = self._world, self._simulated
        ints = world.jobs.ints
        ints[SETTLED, rows] = ints[GPUS, rows] == world.ints[HELD, rows]
        seed = next_seed(int(world.counts[SEED]))
        world.counts[SEED] = seed
        beliefs = simulated.beliefs
        speeds, curve = beliefs.speeds, None if beliefs.curve is None else beliefs.curve[rows]
        if self._learned is not None:
            speeds, curve = self._learned.table(rows)
        return Snapshot(
            now_s=float(world.clock[NOW]),
            cluster=simulated.cluster,
            jobs=self._table(rows, curve),
            speeds=speeds,
            memory=np.take(world.memory, rows, axis=0),
            seed=seed,
            slots=self._slots_of(rows),
            past_gpu_s=self._past(),
            quota_gpus=simulated.quota_gpus,
            known_past=self._ended,
        )

    def _table(self, rows: IntColumn, curve: IntColumn | None) -> JobTable:
        """The jobs as the scheduler takes them to be, with these curves or their own."""
        beliefs, table = self._simulated.beliefs, self._world.jobs.take(rows)
        if self._events is not None:
            table = self._events.as_bounded(table, float(self._world.clock[NOW]))
        unproven = ~self._proven[rows]
        if curve is None and beliefs.length is None and not unproven.any():
            return table
        floats, ints = table.floats.copy(), table.ints.copy()
        for bound in (GPUS_MAX, GPUS_REQUESTED):
            ints[bound, unproven] = ints[GPUS_MIN, unproven]
        if curve is not None:
            ints[CURVE] = curve
        if beliefs.length is not None:
            left = floats[REMAINING_ITERATIONS]
            floats[REMAINING_ITERATIONS] = beliefs.left(rows, left, self._iterations[rows])
        return JobTable(floats, ints).read_only()

    def _slots_of(self, rows: IntColumn) -> Slots | None:
        """Where the jobs sit that are in the system now; None if they are not placed."""
        if not self._places_jobs:
            return None
        at = np.searchsorted(self._rows, rows)
        at[at == self._rows.size] = 0
        known = self._rows[at] == rows if self._rows.size else np.zeros(rows.size, np.bool_)
        known &= self._world.jobs.ints[GPUS, rows] > 0  # one that failed has lost its seats
        self._rows, self._slots = rows, self._slots.take(np.where(known, at, -1))
        return self._slots

    def _past(self) -> FloatColumn:
        """GPU-time of the jobs that have ended."""
        world, ended = self._world, int(self._world.counts[FINISHED])
        rows = world.ended[self._known : ended]
        self._past_gpu_s[self._known : ended] = world.jobs.floats[ATTAINED_GPU_S, rows]
        self._known = ended
        return self._past_gpu_s[:ended]

    def _ended(self) -> EndedJobs:
        """The jobs that have ended, and how long they trained."""
        world = self._world
        rows, ints = world.ended[: world.counts[FINISHED]], world.jobs.ints
        return EndedJobs(ints[ID, rows], ints[COHORT, rows], world.history.level[rows])

    def _places(self, plan: Plan) -> PlacementEffects:
        """What it means to the jobs to be where the plan puts them."""
        world, simulated = self._world, self._simulated
        rows = world.active[: world.counts[ACTIVE]]
        curves, packed_with = world.jobs.ints[CURVE, rows], packed_rows(plan.allocation)
        columns, slowdown, moved = simulated.cluster.columns, np.ones(rows.size), plan.moved
        pause_s = np.full(rows.size, world.clock[PAUSE_S])
        if plan.placed is not None:
            slots = plan.placed.slots
            slowdown = slowdowns(simulated.speeds.places, columns, curves, slots, packed_with)
            if simulated.move_s is not None:
                numbered = columns._replace(island_node=self._ready[columns.island_node])
                left = self._last.left(numbered, rows, slots)
                pause_s[left] = move_pauses(simulated.move_s, plan.shares[left])
        speeds, allocation = simulated.speeds, plan.allocation
        if isinstance(speeds, ServedSpeeds) and isinstance(allocation, ServedAllocation):
            tasks = tasks_of(plan, curves, columns)
            slowdown *= server_slowdowns(speeds.servers, speeds.step_s, tasks)
            # It starts anew with others.
            moved = moved | (held_servers(plan.shares, plan.snapshot.memory) != tasks.servers)
        return PlacementEffects(slowdown, 1.0 / group_sizes(packed_with), moved, pause_s)


def tasks_of(plan: Plan, curves: IntColumn, columns: ClusterColumns) -> TaskCounts:
    """The workers and servers of each row, and how far apart a placement has put them."""
    remote = np.ones(len(curves))
    if isinstance(plan.placed, ServedPlaced):
        remote = remote_parts(columns, plan.placed.slots, plan.placed.servers)
    return TaskCounts(curves, plan.shares, held_servers(plan.shares, plan.memory), remote)


def packed_rows(allocation: Allocation) -> IntColumn:
    """The row that shares each row's GPUs, -1 for none."""
    rows = len(allocation.shares)
    return np.full(rows, -1) if allocation.packed_with is None else allocation.packed_with

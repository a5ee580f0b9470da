"""The policy: servers, turns, packing, migration and growth, in one decision."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np

from coddl.core.allocation import Allocation, Reasons, because, packed_with_of
from coddl.core.columns import BoolColumn, FloatMatrix, IntColumn
from coddl.core.jobs import ELASTIC
from coddl.core.named import Meaning, Part
from coddl.core.placement.affinity import NodeLoads, no_loads
from coddl.core.placement.close import leaders_of
from coddl.core.policies.gandiva.assignment import (
    COLUMN,
    Kinds,
    NodeAssignment,
    Wants,
    assign_nodes,
    gather_jobs,
    join_node,
    lone_nodes,
    move_where_faster,
    part_groups,
    remember,
)
from coddl.core.policies.gandiva.growth import Idle, Sizes, grow
from coddl.core.policies.gandiva.packing import (
    Overload,
    groups_that_pay,
    name_groups,
    new_trials,
    note_trial,
)
from coddl.core.policies.gandiva.slots import by_node, slots_on_nodes
from coddl.core.policies.gandiva.turns import (
    deal,
    midst_of_turn,
    order_of_turns,
    run_unassigned,
    slice_at,
)
from coddl.core.slots import Slots
from coddl.core.snapshot import Snapshot

Asks = Annotated[
    Literal["request", "minimum"],
    Meaning(
        "what elastic jobs ask for: their request (of a pool's jobs that name only a range, the "
        "minimum), or all the minimum they grow from"
    ),
]


class GandivaState(NamedTuple):
    """What a decision works on."""

    snapshot: Snapshot
    now: int  # the slice of time
    servers: NodeLoads
    kinds: Kinds
    slots_by_node: Slots  # by server
    memory: FloatMatrix
    wants: Wants


def state_of(snapshot: Snapshot, quantum_s: float, asks: Asks = "request") -> GandivaState:
    """The state before any job is assigned. Without places, all GPUs are one server's."""
    jobs, memory = snapshot.jobs, snapshot.memory.copy()
    columns, slots = snapshot.cluster.columns, snapshot.slots
    if slots is None:
        gpus, of_node = np.array([snapshot.cluster.gpus_total]), np.zeros(1, np.int64)
        slots_by_node = Slots.of([{0: held} if held > 0 else {} for held in jobs.gpus.tolist()])
        memory[:, COLUMN.node] = 1.0
    else:
        gpus, of_node, slots_by_node = columns.node_gpus, columns.node_kind, by_node(columns, slots)
    kinds = Kinds(of_node, snapshot.speeds.places.kinds, jobs.curve.copy())
    is_modest = (jobs.tier == ELASTIC) & ((asks == "minimum") | (jobs.is_range > 0))
    need = np.where(is_modest, np.minimum(jobs.gpus_min, jobs.gpus_requested), jobs.gpus_requested)
    wants = Wants(need, jobs.spans.copy())
    now = slice_at(snapshot.now_s, quantum_s)
    return GandivaState(snapshot, now, no_loads(gpus), kinds, slots_by_node, memory, wants)


Packing = Annotated[
    bool, Meaning("jobs may share GPUs under overload, if a profile of models is known")
]


@dataclass(frozen=True)
class Gandiva:
    """Gives jobs GPUs at once, on servers with jobs of their size; where there are too many, they
    take turns or share GPUs, and move when others leave.

    Rigid request · overload: time slices in turn, and packing where it pays · cap: the request, or
    the idle GPUs of its server for an elastic job.
    """

    quantum_s: Annotated[
        float, "above 0", Meaning("a slice of time in seconds; turns change at its multiples")
    ] = 60.0
    packing: Packing = True
    pack_below: Annotated[
        Part, Meaning("a job that keeps GPUs less busy than this may be packed with another")
    ] = 0.75
    moves: Annotated[
        int, Meaning("running jobs that one decision may move so that free GPUs lie together")
    ] = 1
    idle: Annotated[
        Part, Meaning("part of a server's GPUs: if this many are free, its jobs may move elsewhere")
    ] = 0.75
    grow_after_s: Annotated[
        float, Meaning("seconds until idle GPUs go to elastic jobs on the same server; 0: never")
    ] = 60.0
    asks: Asks = "request"

    rigid = True
    memory = COLUMN
    own_placement: ClassVar[str] = "gandiva"

    @property
    def turn_s(self) -> float:
        """How long jobs of a pool that share a GPU by turns have it."""
        return self.quantum_s

    def __call__(self, snapshot: Snapshot) -> Allocation:
        state = state_of(snapshot, self.quantum_s, self.asks)
        jobs, servers, memory, wants = snapshot.jobs, state.servers, state.memory, state.wants
        midst = midst_of_turn(jobs, memory[:, COLUMN.turn], state.now)
        order = order_of_turns(jobs, midst)
        firsts = _groups(self, state)
        assigned = assign_nodes(servers, wants, state.slots_by_node, memory, firsts)
        heads = assigned.head.copy()
        _migrate(self, state, assigned, order, firsts)
        grouped, moved = _pack(self, state, assigned, firsts)
        if moved.size:
            _use_left_gpus(state, assigned, order, ~grouped & (assigned.head == heads))
        free, is_assigned = servers.gpus.copy(), assigned.head >= 0
        kept = NodeAssignment(assigned.head.copy(), *assigned[1:])
        runs = _dealt(state, free, assigned, order, firsts)
        memory[runs & ~midst, COLUMN.turn] = state.now
        shares = np.where(runs, wants.gpus, 0)
        wake_at_s = _grow(self, state, Idle(free, lone_nodes(assigned), runs & ~grouped), shares)
        if _needs_next_slice(state, runs, is_assigned):
            wake_at_s = min(wake_at_s, (state.now + 1) * self.quantum_s)
        if snapshot.slots is None:
            memory[:, COLUMN.node] = snapshot.memory[:, COLUMN.node]
            return Allocation(shares, _why(self, state, shares, is_assigned), wake_at_s, memory)
        remember(kept, memory)
        found = Allocation(
            shares,
            _why(self, state, shares, is_assigned),
            wake_at_s,
            memory,
            packed_with=np.where(runs, packed_with_of(firsts), -1),
        )
        return replace(found, slots=_slots_of(snapshot.slots, state, found, assigned, moved))


def _dealt(
    state: GandivaState,
    free: IntColumn,
    assigned: NodeAssignment,
    order: IntColumn,
    firsts: IntColumn,
) -> BoolColumn:
    """Return which rows run in this slice; `free` becomes what is left of each server."""
    runs = deal(free, assigned, order, firsts)
    # What takes turns with another runs on any GPU that would be idle, not only where it is.
    assigned.head[(state.snapshot.jobs.in_turns > 0) & ~runs] = -1
    run_unassigned(free, assigned, state.wants, order, state.slots_by_node, runs)
    return runs


def _needs_next_slice(state: GandivaState, runs: BoolColumn, is_assigned: BoolColumn) -> bool:
    """Return whether the next slice is another's turn, or ends a trial of packing.

    A job that takes turns with another on its GPU anyway needs no decision for that.
    """
    guests = runs & ~is_assigned
    waits = ~runs & (is_assigned | guests.any())
    waits &= (state.wants.gpus <= state.servers.gpus.sum()) & (state.snapshot.jobs.in_turns == 0)
    return bool(waits.any() or (state.memory[:, COLUMN.packed_with] > 0).any())


def _slots_of(
    before: Slots,
    state: GandivaState,
    found: Allocation,
    assigned: NodeAssignment,
    moved: IntColumn,
) -> Slots:
    """The islands of those that run, the same for all of a group; a row that moved follows."""
    stay = np.arange(before.rows)
    stay[moved] = -1
    leaders = leaders_of(before.take(stay), found)
    alone = np.where(leaders == np.arange(len(leaders)), found.gpus, 0)
    columns = state.snapshot.cluster.columns
    return slots_on_nodes(columns, before, assigned, alone).take(leaders)


def _migrate(
    policy: Gandiva,
    state: GandivaState,
    assigned: NodeAssignment,
    order: IntColumn,
    firsts: IntColumn,
) -> None:
    """Move jobs to where they are faster, and together where GPUs lie idle.

    What is left free then goes to jobs that share GPUs.
    """
    jobs, now_s = state.snapshot.jobs, state.snapshot.now_s
    servers, wants, kinds = state.servers, state.wants, state.kinds
    grouped = name_groups(state.snapshot, firsts, state.memory)
    several = len(servers.gpus) > 1
    if several:
        alone = order[~grouped[order]]
        move_where_faster(servers, assigned, wants, kinds, alone, jobs.gpus == 0)
    if grouped.any():
        part_groups(servers, assigned, wants, kinds, order, firsts)
    if not several:
        return
    if (
        (state.memory[:, [COLUMN.node, COLUMN.others]] == 0.0).all(axis=1) & (jobs.gpus == 0)
    ).any():
        return  # a job that has come is no reason to move others about
    settled = (jobs.gpus > 0) & (now_s >= jobs.last_start_s + policy.quantum_s) & ~grouped
    gather_jobs(
        state.servers, assigned, state.wants, state.kinds, settled, policy.idle, policy.moves
    )


def _groups(policy: Gandiva, state: GandivaState) -> IntColumn:
    """The first row of each row's group, as far as these pay."""
    if not policy.packing or state.snapshot.slots is None:
        return np.arange(state.snapshot.jobs.size)
    return groups_that_pay(state.snapshot, state.wants.gpus, state.now, state.memory)


def _pack(
    policy: Gandiva, state: GandivaState, assigned: NodeAssignment, firsts: IntColumn
) -> tuple[BoolColumn, IntColumn]:
    """Try jobs on the GPUs of others; return which rows share GPUs, and which moved for that."""
    snapshot, servers, memory = state.snapshot, state.servers, state.memory
    grouped, moved = name_groups(snapshot, firsts, memory), np.zeros(0, np.int64)
    heavy = snapshot.speeds.places.busy.min(initial=1.0) >= policy.pack_below
    if not policy.packing or snapshot.slots is None or heavy:
        return grouped, moved
    node, excess, gpus = lone_nodes(assigned), servers.load - servers.gpus, state.wants.gpus
    waiting = int(gpus[(assigned.head < 0) & (gpus <= servers.gpus.sum())].sum())
    overload = Overload(node, gpus, excess, waiting, state.now, policy.quantum_s, policy.pack_below)
    crowded = waiting > 0 or bool((excess > 0).any())
    joins = new_trials(snapshot, overload, firsts, memory) if crowded else []
    for join in joins:
        note_trial(firsts, memory, join, state.now, snapshot.jobs.id)
        join_node(servers, assigned, join.rows, node[join.hosts[0]])
        grouped[join.rows], grouped[join.hosts] = True, True
        moved = np.append(moved, join.rows)
    return grouped, moved


def _use_left_gpus(
    state: GandivaState, assigned: NodeAssignment, order: IntColumn, unmoved: BoolColumn
) -> None:
    """Move jobs that wait, and have not moved yet, to GPUs that packing has left."""
    stuck = unmoved & (state.snapshot.jobs.gpus == 0)
    rows = order[stuck[order]]
    move_where_faster(state.servers, assigned, state.wants, state.kinds, rows, stuck)


def _grow(policy: Gandiva, state: GandivaState, idle: Idle, shares: IntColumn) -> float:
    """Hand out idle GPUs; say when to look again."""
    jobs, servers = state.snapshot.jobs, state.servers
    if policy.grow_after_s == 0.0:
        return np.inf
    elastic = (jobs.tier == ELASTIC) & (jobs.gpus_max > state.wants.gpus) & (idle.node >= 0)
    calm = servers.load[idle.node] <= servers.gpus[idle.node]
    able = idle._replace(may_grow=idle.may_grow & elastic & calm)
    last = state.snapshot.speeds.steps.last
    sizes = Sizes(jobs.gpus.copy(), jobs.gpus_max.copy(), jobs.curve.copy(), last)
    now_s = state.snapshot.now_s
    return grow(sizes, able, state.memory, now_s, policy.grow_after_s, shares)


def _why(
    policy: Gandiva, state: GandivaState, shares: IntColumn, is_assigned: BoolColumn
) -> Reasons:
    """Why rows have nothing now."""
    need, gpus, without = state.wants.gpus, state.servers.gpus, shares == 0
    if not without.any():
        return Reasons()
    total, largest = int(gpus.sum()), int(gpus.max(initial=0))
    left_s = (state.now + 1) * policy.quantum_s - state.snapshot.now_s
    turn = f"its node has more jobs than GPUs; the next time slice starts in {left_s:.0f} s"
    lone = f"its GPUs must be on one node, and the largest node has {largest}"
    queue = "no node has enough free GPUs, or jobs of its size to share GPUs with"
    return (
        because(
            without & (need > total),
            "Infeasible",
            f"it needs more GPUs than the {total} in the cluster",
        )
        | because(without & is_assigned, "Resources", turn)
        | because(without & (state.wants.spans == 0) & (need > largest), "Topology", lone)
        | because(without, "Resources", queue)
    )

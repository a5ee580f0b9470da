"""Optimus with workers and parameter servers, its baselines, and its placement."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from coddl.core.allocation import Allocation
from coddl.core.cluster import Cluster, Node
from coddl.core.columns import FloatMatrix
from coddl.core.invariants import check
from coddl.core.parameter_server.costs import ServerCosts, served_by, servers_of
from coddl.core.parameter_server.placement import OptimusPlacement
from coddl.core.parameter_server.tasks import COLUMN, ServedAllocation, ServedPlaced
from coddl.core.placement.placement import Placed, check_placed
from coddl.core.registry import placement_from, policy_from
from coddl.core.scheduler import Scheduler, Stability
from coddl.core.slots import Slots
from coddl.core.snapshot import Snapshot, empty_memory
from coddl.sim.loop import tasks_of
from coddl.testing import job, snapshot_of
from coddl.testing.builders import JobRow

Tasks = dict[str, tuple[int, int]]  # workers and servers


def cluster_of(nodes: int, gpus: int, cpus: int) -> Cluster:
    return Cluster(tuple(Node(f"node-{i}", gpus, cpus=cpus) for i in range(nodes)))


def with_servers(
    snapshot: Snapshot, cluster: Cluster, theta: Sequence[tuple[float, ...]], most: int = 8
) -> Snapshot:
    model = servers_of([ServerCosts(each) for each in theta], most)
    return replace(snapshot, cluster=cluster, speeds=served_by(snapshot.speeds, model))


def memory_of(servers: Sequence[int]) -> FloatMatrix:
    memory = empty_memory(len(servers))
    memory[:, COLUMN.servers] = servers
    return memory


SLOW_WIRES = (8.0, 0.0, 1.2, 0.0, 0.0)  # a step takes 8/w + 1.2 w/p
NO_WIRES = (8.0, 1.0, 0.0, 0.0, 0.0)
DEAR_TASKS = (8.0, 0.0, 0.0, 0.7, 0.7)  # 8/w + 0.7 w + 0.7 p


@dataclass(frozen=True)
class Case:
    """Jobs on one node; a worker takes a GPU and 2 cores, a server 3 cores."""

    gpus: int
    cpus: int
    jobs: Sequence[JobRow]
    theta: Sequence[tuple[float, ...]]
    want: Tasks
    policy: str = "optimus-ps"

    @property
    def got(self) -> Tasks:
        cluster = cluster_of(1, self.gpus, self.cpus)
        snapshot = with_servers(snapshot_of(self.gpus, self.jobs), cluster, self.theta)
        allocation = policy_from(self.policy)(snapshot)
        check(snapshot, allocation)
        assert isinstance(allocation, ServedAllocation)
        pairs = zip(allocation.gpus.tolist(), allocation.servers.tolist(), strict=True)
        return dict(zip([row.name for row in self.jobs], pairs, strict=True))


# With SLOW_WIRES the steps are (w, p): (1,1) 9.2, (2,1) 6.4, (2,2) 5.2, (3,2) 4.467, (3,3) 3.867,
# (4,3) 3.6. A server gains a third of what it saves, as its 3 cores are its dominant resource.
GAINS = {
    "workers and servers in turn, until the cores are used up": Case(
        4, 17, [job("a")], [SLOW_WIRES], {"a": (4, 3)},
    ),
    "the hand-out ends where the best task does not fit": Case(
        4, 16, [job("a")], [SLOW_WIRES], {"a": (3, 3)},
    ),
    "no server beyond the first where nothing is transferred": Case(
        4, 99, [job("a")], [NO_WIRES], {"a": (4, 1)},
    ),
    "no task that slows a job down": Case(
        8, 99, [job("a", 1, 8)], [DEAR_TASKS], {"a": (3, 1)},
    ),
    "cores that nobody counts are free": Case(
        2, 0, [job("a", 1, 2)], [SLOW_WIRES], {"a": (2, 8)},
    ),
    "the longer job gets the next worker": Case(
        3, 99, [job("a", left=10), job("b", left=1000)], [NO_WIRES] * 2,
        {"a": (1, 1), "b": (2, 1)},
    ),
    "a tie goes to the one submitted first": Case(
        3, 99, [job("a"), job("b")], [NO_WIRES] * 2, {"a": (2, 1), "b": (1, 1)},
    ),
    "a job that has just begun counts less": Case(
        3, 99, [job("a"), job("b", started_s=0.0, executed_s=600)], [NO_WIRES] * 2,
        {"a": (1, 1), "b": (2, 1)},
    ),
    "under overload those that came first": Case(
        9, 11, [job("a"), job("b"), job("c")], [NO_WIRES] * 3,
        {"a": (1, 1), "b": (1, 1), "c": (0, 0)},
    ),
    "an unknown length gets what others leave": Case(
        3, 99, [job("a", left=float("nan")), job("b", 1, 1)], [NO_WIRES] * 2,
        {"a": (2, 1), "b": (1, 1)},
    ),
}  # fmt: skip
FAIR = {
    "drf gives equal shares with as many servers": Case(
        6, 30, [job("a"), job("b")], [NO_WIRES] * 2, {"a": (3, 3), "b": (3, 3)}, "drf",
    ),
    "drf asks not what a share brings": Case(
        8, 99, [job("a", 1, 8)], [DEAR_TASKS], {"a": (8, 8)}, "drf",
    ),
    "drf fills what a small job leaves": Case(
        6, 99, [job("a", 1, 2), job("b")], [NO_WIRES] * 2, {"a": (2, 2), "b": (4, 4)}, "drf",
    ),
    "drf ends where cores do": Case(
        8, 16, [job("a"), job("b")], [NO_WIRES] * 2, {"a": (2, 2), "b": (1, 1)}, "drf",
    ),
    "tetris prefers what is soon done": Case(
        4, 99, [job("a", left=50), job("b", left=10)], [NO_WIRES] * 2,
        {"a": (0, 0), "b": (4, 4)}, "tetris",
    ),
    # Alignment is 1 and 1/4, time left 3 s and 2 s, so eps = (5/8) / (5/12): a scores 1.5, b 1.
    "tetris prefers what fills the room": Case(
        4, 0, [job("a", left=12), job("b", requested=1, left=2)], [NO_WIRES] * 2,
        {"a": (4, 4), "b": (0, 0)}, "tetris",
    ),
    "tetris gives the last one what is left": Case(
        5, 99, [job("a", left=50), job("b", left=10)], [NO_WIRES] * 2,
        {"a": (1, 1), "b": (4, 4)}, "tetris",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", (GAINS | FAIR).values(), ids=(GAINS | FAIR).keys())
def test_tasks(case: Case) -> None:
    assert case.got == case.want


def test_within_a_slot_nobody_is_resized_and_who_comes_starts_small() -> None:
    policy = policy_from("optimus-ps:slot_s=600")
    jobs = [job("a"), job("b", 1, 8)]
    snapshot = with_servers(snapshot_of(4, jobs), cluster_of(1, 4, 99), [NO_WIRES] * 3)
    alone = replace(snapshot.take(np.array([0])), now_s=50.0)
    first = policy(alone)
    assert (first.gpus.tolist(), first.wake_at_s) == ([4], 650.0)

    def later(now_s: float, held: int, gpus: int = 6) -> Allocation:
        rows = [replace(jobs[0], holds=held, started_s=50.0), jobs[1]]
        picture = snapshot_of(gpus, rows, now_s=now_s)
        memory = np.zeros_like(picture.memory)
        assert first.memory is not None
        memory[0] = first.memory[0]
        cluster = cluster_of(1, gpus, 99)
        return policy(replace(with_servers(picture, cluster, [NO_WIRES] * 3), memory=memory))

    within = later(649.0, held=4)
    assert (within.gpus.tolist(), within.wake_at_s) == ([4, 1], 650.0)
    assert later(650.0, held=4).gpus.tolist() == [3, 3]
    assert later(650.0, held=4).wake_at_s == 1250.0
    assert later(300.0, held=4, gpus=3).gpus.tolist() == [2, 1]  # a GPU was lost


def test_who_waits_for_cores_is_told_so() -> None:
    jobs = [job("a", 1, 1), job("b")]
    snapshot = with_servers(snapshot_of(4, jobs), cluster_of(1, 4, 9), [NO_WIRES] * 2)
    allocation = policy_from("optimus-ps")(snapshot)
    why = allocation.waiting.of(1)
    assert why is not None
    assert (why.code, "4 CPU cores" in why.sentence) == ("Resources", True)


def test_cores_of_jobs_that_keep_their_share_are_not_handed_out_again() -> None:
    """16 cores are 8 workers, whoever holds them."""
    rows = [job("a", holds=4, changed_s=99.0), job("b"), job("c", 1, 8)]
    snapshot = replace(snapshot_of(16, rows, now_s=100.0), cluster=cluster_of(1, 16, 16))
    cooling = Scheduler(policy_from("optimus-ps:slot_s=0"), Stability(cool_down_s=1000.0))
    assert cooling.decide(snapshot).shares[0] == 4
    assert cooling.decide(snapshot).shares.sum() == 8
    full = [job("a", 1, 8, holds=8, pinned=True), job("b")]
    snapshot = replace(snapshot_of(16, full), cluster=cluster_of(1, 16, 16))
    plan = Scheduler(policy_from("optimus-ps")).decide(snapshot)
    assert plan.shares.tolist() == [8, 0]
    why = plan.waiting(1)
    assert why is not None
    assert "only 0 CPU cores are free" in why.sentence


# What b gets of 16 cores when a holds 2 workers and a server, 7 cores: a server and 3 workers.
BESIDE = {
    "pinned": [job("a", holds=2, pinned=True), job("b", 1, 8)],
    "of a higher priority": [job("a", 2, 2, priority=1), job("b", 1, 8)],
}


@pytest.mark.parametrize("rows", BESIDE.values(), ids=BESIDE.keys())
def test_servers_of_others_stay_and_take_cores(rows: list[JobRow]) -> None:
    snapshot = with_servers(snapshot_of(8, rows), cluster_of(1, 8, 16), [NO_WIRES] * 2)
    snapshot = replace(snapshot, memory=memory_of([1, 0]))
    allocation = Scheduler(policy_from("optimus-ps")).decide(snapshot).allocation
    assert isinstance(allocation, ServedAllocation)
    assert (allocation.gpus.tolist(), allocation.servers.tolist()) == ([2, 3], [1, 1])


def test_servers_stay_where_all_gpus_are_kept() -> None:
    rows = [job("a", 1, 2, holds=2, pinned=True), job("b")]
    snapshot = with_servers(snapshot_of(2, rows), cluster_of(1, 2, 16), [NO_WIRES] * 2)
    snapshot = replace(snapshot, memory=memory_of([1, 0]))
    for kept in (snapshot, snapshot.take(np.array([0]))):
        allocation = Scheduler(policy_from("optimus-ps")).decide(kept).allocation
        assert isinstance(allocation, ServedAllocation)
        assert allocation.servers.tolist() == [1, 0][: kept.jobs.size]


# Where a job of so many workers and servers lands on nodes of 4 GPUs and 16 cores.
@dataclass(frozen=True)
class Room:
    wants: Sequence[tuple[int, int]]
    at: Sequence[tuple[dict[int, int], dict[int, int]]]  # {node: workers}, {node: servers}
    held: Sequence[dict[int, int]] = ()
    cpus: int = 16
    nodes: int = 4

    @property
    def placed(self) -> tuple[Snapshot, Placed]:
        jobs = [job(str(i), 1, 16) for i in range(len(self.wants))]
        cluster = cluster_of(self.nodes, 4, self.cpus)
        slots = Slots.of(list(self.held) or [{} for _ in jobs])
        snapshot = replace(snapshot_of(16, jobs), cluster=cluster, slots=slots)
        workers, servers = np.array(self.wants).T.copy()
        allocation = ServedAllocation(workers, memory=memory_of(servers))
        placed = OptimusPlacement()(snapshot, allocation)
        check_placed(snapshot, allocation, placed)
        return snapshot, placed


PLACES = {
    "one node if it holds the job": Room([(2, 2)], [({0: 2}, {0: 2})]),
    "evenly on the fewest that do": Room([(4, 4)], [({0: 2, 1: 2}, {0: 2, 1: 2})]),
    "three where two would not do": Room(
        [(8, 8)], [({0: 3, 1: 3, 2: 2}, {0: 3, 1: 3, 2: 2})],
    ),
    "what does not divide is dealt in turn": Room([(5, 2)], [({0: 3, 1: 2}, {0: 1, 1: 1})]),
    "the smallest job first, then where most cores are free": Room(
        [(2, 3), (1, 1)], [({1: 2}, {1: 3}), ({0: 1}, {0: 1})],
    ),
    "GPUs decide where nobody counts cores": Room(
        [(4, 9), (3, 1)], [({1: 4}, {1: 9}), ({0: 3}, {0: 1})], cpus=0,
    ),
    "who keeps its share keeps its nodes": Room(
        [(2, 2), (2, 2)], [({2: 1, 3: 1}, {2: 1, 3: 1}), ({0: 2}, {0: 2})],
        held=[{2: 1, 3: 1}, {}],
    ),
    "who does not is placed anew": Room(
        [(2, 2)], [({0: 2}, {0: 2})], held=[{1: 1, 2: 1, 3: 1}],
    ),
    "it shrinks to what there is, a server and a worker in turn": Room(
        [(8, 8)], [({0: 3, 1: 3}, {0: 3, 1: 3})], nodes=2,
    ),
    "servers of one that stays go where cores are": Room(
        [(1, 6)], [({1: 1}, {0: 2, 1: 4})], held=[{1: 1}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PLACES.values(), ids=PLACES.keys())
def test_tasks_are_placed(case: Room) -> None:
    snapshot, placed = case.placed
    columns = snapshot.cluster.columns
    assert isinstance(placed, ServedPlaced)
    rows = range(len(case.wants))
    got = [(placed.slots.nodes(row, columns), placed.servers.nodes(row, columns)) for row in rows]
    assert got == list(case.at)


def test_who_finds_no_room_for_a_worker_and_a_server_waits() -> None:
    _, placed = Room([(1, 1), (1, 1), (1, 1)], [], cpus=6, nodes=2).placed
    assert placed.shares.tolist() == [1, 1, 0]
    why = placed.waiting.of(2)
    assert why is not None
    assert why.code == "Topology"


def test_a_policy_without_servers_is_spread_by_gpus() -> None:
    snapshot = snapshot_of(16, [job("a", 1, 8), job("b", 1, 8)])
    cluster = cluster_of(4, 4, 1)  # cores that nobody asks for
    snapshot = replace(snapshot, cluster=cluster, slots=Slots.none(2))
    placed = placement_from("optimus")(snapshot, Allocation(np.array([6, 3])))
    columns = cluster.columns
    assert [placed.slots.nodes(row, columns) for row in (0, 1)] == [{1: 3, 2: 3}, {0: 3}]
    assert not isinstance(placed, ServedPlaced)


def test_who_stays_and_finds_no_core_for_a_server_waits() -> None:
    """The first leaves 1 core on its node, so its server takes the 3 that are free on the other."""
    held = [{0: 2}, {1: 1}]
    _, placed = Room([(2, 1), (1, 1)], [], held=held, cpus=5, nodes=2).placed
    assert placed.shares.tolist() == [2, 0]
    assert placed.waiting.of(1) is not None


def test_what_a_placement_cuts_is_what_runs() -> None:
    jobs = [job("a", 1, 8)]
    snapshot = with_servers(snapshot_of(8, jobs), cluster_of(2, 4, 16), [SLOW_WIRES])
    snapshot = replace(snapshot, slots=Slots.none(1))
    plan = Scheduler(policy_from("drf"), placement=OptimusPlacement()).decide(snapshot)
    tasks = tasks_of(plan, snapshot.jobs.curve, snapshot.cluster.columns)
    # Of 32 cores in all, 6 workers and 6 servers would take 30; each node holds 3 of both.
    assert (tasks.workers.tolist(), tasks.servers.tolist()) == ([6], [6])
    assert tasks.remote.tolist() == [0.5]

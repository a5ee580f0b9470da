"""Gandiva: where jobs are at home, whose turn it is, who shares GPUs, who moves, who grows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from coddl.core.allocation import Allocation
from coddl.core.cluster import Cluster
from coddl.core.jobs import CHANGED_S, GPUS, IN_TURNS, IS_RANGE, WEIGHT, JobTable
from coddl.core.placement.affinity import EMPTY, QUEUED, RELAXED, SAME, SHARED, NodeLoads, get_nodes
from coddl.core.placement.gandiva import GandivaPlacement
from coddl.core.placement.placement import check_placed
from coddl.core.policies.gandiva.assignment import COLUMN
from coddl.core.policies.gandiva.policy import Gandiva
from coddl.core.scheduler import Scheduler
from coddl.core.slots import Slots
from coddl.core.snapshot import Snapshot
from coddl.testing.builders import JobRow, job, snapshot_of

Parts = dict[int, int]


@dataclass(frozen=True)
class Choice:
    """Servers by (load, affinity), and what Algorithm 1 makes of a job there."""

    servers: Sequence[tuple[int, int]]
    need: int
    found: int
    home: Parts
    spans: int = 1
    gpus: Sequence[int] = ()  # of the servers; none: four each


CHOICES = {
    "the first job opens a server": Choice([(0, 0), (0, 0)], 1, EMPTY, {0: 1}),
    "a job joins those of its size": Choice([(0, 0), (2, 1)], 1, SAME, {1: 1}),
    "of its own servers it takes the least loaded": Choice([(3, 1), (1, 1)], 1, SAME, {1: 1}),
    "a tie goes to the first server": Choice([(2, 1), (2, 1)], 1, SAME, {0: 1}),
    "another size opens another server": Choice([(2, 1), (0, 0)], 2, EMPTY, {1: 2}),
    "its full servers send it to an empty one": Choice([(4, 2), (0, 0)], 2, EMPTY, {1: 2}),
    "without an empty one it goes where it fits": Choice([(4, 2), (2, 1)], 2, RELAXED, {1: 2}),
    "it goes where it fits best": Choice([(1, 1), (3, 1)], 2, RELAXED, {0: 2}),
    "of two that fit the fuller one": Choice([(1, 1), (2, 1)], 2, RELAXED, {1: 2}),
    "or on several servers": Choice([(3, 1), (3, 1)], 2, RELAXED, {0: 1, 1: 1}),
    "unless it can't span them": Choice([(3, 1), (3, 1)], 2, QUEUED, {}, spans=0),
    "when all is full it takes turns with its size": Choice([(4, 1), (4, 2)], 2, SHARED, {1: 2}),
    "on the server with fewest": Choice([(8, 1), (5, 1)], 1, SHARED, {1: 1}),
    "and waits if there is nobody of its size": Choice([(4, 1), (4, 1)], 4, QUEUED, {}),
    "a slot is as large as the job": Choice([(3, 2), (0, 0)], 2, EMPTY, {1: 2}),
    "a large job takes empty servers": Choice([(1, 1), (0, 0), (0, 0)], 8, EMPTY, {1: 4, 2: 4}),
    "its rest leaves room": Choice([(0, 0), (0, 0)], 6, EMPTY, {0: 4, 1: 2}),
    "large jobs take turns too": Choice([(4, 8), (4, 8), (4, 1)], 8, SHARED, {0: 4, 1: 4}),
    "it has room on its own server, if not on the least loaded": Choice(
        [(1, 2), (5, 2), (2, 1)], 2, SAME, {1: 2}, gpus=(2, 8, 4)
    ),
    "what is larger than all servers waits": Choice([(0, 0), (0, 0)], 12, QUEUED, {}),
}


@pytest.mark.parametrize("case", CHOICES.values(), ids=CHOICES.keys())
def test_algorithm_1(case: Choice) -> None:
    load, affinity = np.array(case.servers).T.copy()
    servers = NodeLoads(np.array(case.gpus or [4] * len(load)), load, affinity)
    parts = np.zeros(len(load), np.int64)
    assert get_nodes(servers, case.need, case.spans, parts) == case.found
    if case.found != QUEUED:
        assert {node: int(gpus) for node, gpus in enumerate(parts) if gpus} == case.home


def one(name: str, **facts: float) -> JobRow:
    """A job for one GPU that can't use more."""
    return job(name, 1, 1, **facts)  # type: ignore[arg-type]  # facts of `job`


def rigid(name: str, gpus: int, **facts: float) -> JobRow:
    """A job for so many GPUs that can't use more."""
    return job(name, gpus, gpus, **facts)  # type: ignore[arg-type]  # facts of `job`


def on_servers(
    servers: int,
    jobs: Sequence[JobRow],
    sits: Mapping[int, Parts] | None = None,
    *,
    home: Mapping[int, int] | None = None,
    now_s: float = 600.0,
) -> Snapshot:
    """A picture of servers of four GPUs; rows sit on {node: gpus}, or wait at home on a node."""
    sits, home = sits or {}, home or {}
    snapshot = snapshot_of(4 * servers, jobs, now_s=now_s)
    memory, whole = snapshot.memory.copy(), snapshot.jobs.ints.copy()
    for row in range(len(jobs)):
        nodes = sits.get(row, {home[row]: 0} if row in home else {})
        memory[row, COLUMN.node] = 1 + min(nodes, default=-1)
        whole[GPUS, row] = sum(sits.get(row, {}).values())
    return replace(
        snapshot,
        cluster=Cluster.of(4 * servers, 4),
        jobs=JobTable(snapshot.jobs.floats, whole).read_only(),
        memory=memory,
        slots=Slots.of([sits.get(row, {}) for row in range(len(jobs))]),
    )


def decided(snapshot: Snapshot, policy: Gandiva) -> tuple[list[Parts], Allocation]:
    """Where a policy puts the rows, checked as always, and its answer."""
    plan = Scheduler(policy).decide(snapshot)
    assert plan.placed is not None
    slots = plan.placed.slots
    return [slots.row(row) for row in range(slots.rows)], replace(plan.allocation, slots=slots)


def again(snapshot: Snapshot, answer: Allocation, now_s: float) -> Snapshot:
    """The picture after an answer was carried out."""
    whole, real = snapshot.jobs.ints.copy(), snapshot.jobs.floats.copy()
    real[CHANGED_S, (whole[GPUS] > 0) & (answer.gpus == 0)] = snapshot.now_s
    whole[GPUS] = answer.gpus
    assert answer.memory is not None
    return replace(
        snapshot,
        now_s=now_s,
        jobs=JobTable(real, whole).read_only(),
        memory=answer.memory.copy(),
        slots=answer.slots,
    )


STILL = Gandiva(packing=False, moves=0, grow_after_s=0.0)


def test_sixteen_gpus_host_jobs_by_size() -> None:
    # Four servers with four GPUs: 1-GPU jobs fill the first, 2-GPU jobs the second, two 4-GPU jobs
    # have one each. Then all is full, and further jobs join those of their size.
    sizes = [1, 2, 4, 1, 2, 1, 1, 4, 4, 2, 1]
    rows = [rigid(f"{i}", gpus) for i, gpus in enumerate(sizes)]
    slots, answer = decided(on_servers(4, rows), STILL)
    home = {row: int(first) - 1 for row, first in enumerate(answer.memory[:, COLUMN.node])}  # type: ignore[index]
    assert home == {0: 0, 3: 0, 5: 0, 6: 0, 10: 0, 1: 1, 4: 1, 9: 1, 2: 2, 7: 3, 8: 2}
    assert [row for row, seat in enumerate(slots) if not seat] == [8, 9, 10]
    assert answer.wake_at_s == 660.0
    why = answer.waiting.of(8)
    assert why is not None
    assert why.code == "Resources"
    assert "the next time slice starts in 60 s" in why.sentence


def test_who_waits_keeps_its_home() -> None:
    rows = [rigid("a", 4), rigid("b", 4, changed_s=30.0), rigid("c", 2)]
    began = on_servers(2, rows, {0: {0: 4}, 2: {1: 2}}, home={1: 0})
    slots, answer = decided(began, STILL)
    assert slots == [{}, {0: 4}, {1: 2}]  # a's turn is over
    assert answer.memory is not None
    assert answer.memory[:, COLUMN.node].tolist() == [1.0, 1.0, 2.0]


def test_a_turn_lasts_until_the_next_slice() -> None:
    began = on_servers(1, [rigid("a", 4), rigid("b", 4)], {0: {0: 4}}, home={1: 0}, now_s=610.0)
    began.memory[0, COLUMN.turn] = 10.0  # the slice that began at 600 s
    slots, answer = decided(began, STILL)
    assert slots == [{0: 4}, {}]
    assert answer.wake_at_s == 660.0
    heavy = began.jobs.floats.copy()
    heavy[WEIGHT, 0] = 2.0
    later = replace(began, jobs=JobTable(heavy, began.jobs.ints).read_only(), now_s=660.0)
    assert decided(later, STILL)[0] == [{0: 4}, {}]  # two slices for twice the weight
    assert decided(replace(later, now_s=720.0), STILL)[0] == [{}, {0: 4}]


def test_nobody_is_woken_where_all_run() -> None:
    _, answer = decided(on_servers(2, [rigid("a", 4), rigid("b", 2)]), STILL)
    assert answer.wake_at_s == np.inf


def test_a_queued_job_uses_what_would_be_idle() -> None:
    # Jobs of three GPUs take turns on the server and leave one idle; c has no server of its size.
    rows = [rigid("a", 3), rigid("b", 3, changed_s=30.0), one("c")]
    began = on_servers(1, rows, {0: {0: 3}}, home={1: 0})
    slots, answer = decided(began, STILL)
    assert slots == [{}, {0: 3}, {0: 1}]
    assert answer.memory is not None
    assert answer.memory[2, COLUMN.node] == 0.0  # a guest


def in_turns(snapshot: Snapshot, *rows: int) -> Snapshot:
    """The same where rows take turns with others on their GPU."""
    whole = snapshot.jobs.ints.copy()
    whole[IN_TURNS, list(rows)] = 1
    return replace(snapshot, jobs=JobTable(snapshot.jobs.floats, whole).read_only())


def test_jobs_that_take_turns_on_a_gpu_anyway_wait_for_no_slice() -> None:
    assert Gandiva(quantum_s=7.0).turn_s == 7.0
    rows = [one(name, changed_s=-10.0 * at) for at, name in enumerate("abcdef")]
    full = on_servers(1, rows, {row: {0: 1} for row in range(4)}, home={4: 0, 5: 0})
    slots, answer = decided(in_turns(full, 4, 5), STILL)
    assert (slots, answer.wake_at_s) == ([{0: 1}] * 4 + [{}] * 2, np.inf), "their turn is over"
    slots, answer = decided(in_turns(full, 4), STILL)
    assert slots[5] == {0: 1}, "a job that only waits comes before those whose turn is over"
    assert (slots[4], answer.wake_at_s) == ({}, 660.0)


def test_they_get_gpus_that_are_free_wherever_these_are() -> None:
    rows = [one(name) for name in "abcde"]
    free = on_servers(2, rows, {row: {0: 1} for row in range(4)}, home={4: 0})
    assert decided(in_turns(free, 4), STILL)[0] == [{0: 1}] * 4 + [{1: 1}]


def test_a_job_that_others_take_turns_with_does_not_grow() -> None:
    grows = Gandiva(grow_after_s=100.0, asks="minimum")
    rows = [job("a", 1, 4, started_s=0.0), rigid("b", 3), rigid("c", 4)]
    alone = on_servers(1, rows[:1], {0: {0: 1}}, home={0: 0})
    assert decided(alone, grows)[1].wake_at_s == 700.0
    crowded = on_servers(1, rows, {0: {0: 1}}, home={0: 0, 1: 0, 2: 0})
    _, answer = decided(in_turns(crowded, 1, 2), grows)
    assert answer.memory is not None
    assert answer.memory[0, COLUMN.grow_at_s] == 0.0


def test_jobs_that_take_turns_move_to_servers_that_have_become_free() -> None:
    rows = [rigid("a", 4), rigid("b", 4, changed_s=30.0), one("c", changed_s=10.0)]
    began = on_servers(2, rows, {0: {0: 4}}, home={1: 0, 2: 0})
    slots, _ = decided(began, STILL)
    assert slots == [{}, {0: 4}, {1: 1}]  # c has waited longest; a whole server is left to none
    rows[2] = one("c", started_s=0.0)
    slots, _ = decided(on_servers(2, rows[:2], {0: {0: 4}}, home={1: 0}), STILL)
    assert slots == [{0: 4}, {1: 4}]


def of_kinds(snapshot: Snapshot, kinds: Sequence[int], factor: float) -> Snapshot:
    """The same on servers of two kinds; a step takes `factor` times as long on the second."""
    nodes = zip(snapshot.cluster.nodes, kinds, strict=True)
    cluster = Cluster(tuple(replace(node, kind=kind) for node, kind in nodes), kinds=("new", "old"))
    factors = np.tile([1.0, factor], (snapshot.jobs.size, 1))
    places = snapshot.speeds.places._replace(kinds=factors)
    speeds = replace(snapshot.speeds, known_places=places, kinds=cluster.kinds)
    return replace(snapshot, cluster=cluster, speeds=speeds)


@pytest.mark.parametrize(("factor", "moves"), [(1.9, True), (2.1, False)])
def test_a_job_leaves_every_other_turn_only_for_more_than_half_the_speed(
    factor: float, moves: bool
) -> None:
    rows = [rigid("a", 4), rigid("b", 4, changed_s=30.0)]
    began = of_kinds(on_servers(2, rows, {0: {0: 4}}, home={1: 0}), [0, 1], factor)
    assert decided(began, STILL)[0] == ([{0: 4}, {1: 4}] if moves else [{}, {0: 4}])


def test_a_job_goes_to_the_fastest_servers_that_have_room() -> None:
    # a runs on the old kind, b has just come; Algorithm 1 would put it on the first empty server.
    rows = [rigid("a", 2, started_s=590.0), rigid("b", 4)]
    began = of_kinds(on_servers(4, rows, {0: {0: 2}}), [1, 1, 0, 0], 1.5)
    assert decided(began, STILL)[0] == [{3: 2}, {2: 4}]
    settled = of_kinds(on_servers(2, rows[:1], {0: {0: 2}}), [1, 1], 1.1)
    assert decided(settled, STILL)[0] == [{0: 2}]


def test_a_job_is_not_gathered_on_a_slower_server() -> None:
    rows = [rigid("a", 2, started_s=0.0), *(rigid(name, 3, started_s=0.0) for name in "bc")]
    sits = {0: {0: 1, 1: 1}, 1: {0: 3}, 2: {1: 3}}
    gathers = replace(STILL, moves=1)
    assert decided(on_servers(3, rows, sits), gathers)[0][0] == {2: 2}
    assert decided(of_kinds(on_servers(3, rows, sits), [0, 0, 1], 1.1), gathers)[0][0] == sits[0]


def test_free_gpus_are_brought_together_one_job_at_a_time() -> None:
    # Three servers with one 1-GPU job each have three of four free; one decision moves one job.
    rows = [one("a", started_s=0.0), one("b", started_s=0.0), rigid("c", 2, started_s=0.0)]
    sits = {0: {0: 1}, 1: {1: 1}, 2: {2: 2}}
    began = on_servers(3, rows, sits)
    calm = Gandiva(grow_after_s=0.0)
    slots, answer = decided(began, calm)
    assert slots == [{2: 1}, {1: 1}, {2: 2}]
    slots, answer = decided(again(began, answer, 700.0), calm)
    assert slots == [{2: 1}, {2: 1}, {2: 2}]
    assert decided(again(began, answer, 800.0), calm)[0] == slots
    assert decided(began, STILL)[0] == [sits[row] for row in range(3)]
    less = replace(calm, idle=0.8)  # three of four are not enough to move anybody
    assert decided(began, less)[0] == [sits[row] for row in range(3)]


def test_a_job_on_several_servers_moves_to_one_that_has_room() -> None:
    rows = [rigid("a", 2, started_s=0.0), rigid("b", 3, started_s=0.0)]
    began = on_servers(2, rows, {0: {0: 1, 1: 1}, 1: {0: 3}})
    assert decided(began, replace(STILL, moves=1))[0] == [{1: 2}, {0: 3}]


def test_an_elastic_job_grows_when_gpus_stay_idle_and_shrinks_at_once() -> None:
    grows = Gandiva(grow_after_s=100.0)
    began = on_servers(2, [job("a", 1, 8, requested=1)], {0: {0: 1}})
    slots, answer = decided(began, grows)
    assert (slots, answer.wake_at_s) == ([{0: 1}], 700.0)
    assert answer.memory is not None
    assert answer.memory[0, COLUMN.grow_at_s] == 700.0
    slots, answer = decided(again(began, answer, 700.0), grows)
    assert (slots, answer.wake_at_s) == ([{0: 4}], np.inf)  # those of one server
    grown = {0: {0: 4}}
    crowded = [job("a", 1, 8, requested=1, started_s=0.0), *(one(name) for name in "bc")]
    slots, _ = decided(on_servers(1, crowded, grown), grows)
    assert slots == [{0: 2}, {0: 1}, {0: 1}]


def test_elastic_jobs_may_ask_for_their_minimum_and_grow_from_there() -> None:
    modest = Gandiva(grow_after_s=100.0, asks="minimum")
    rows = [job("a", 1, 4, requested=4, started_s=0.0), rigid("b", 2)]
    began = on_servers(1, rows, {0: {0: 1}})
    slots, answer = decided(began, modest)
    assert slots == [{0: 1}, {0: 2}], "a job that is not elastic gets what it requests"
    slots, _ = decided(again(began, answer, 700.0), modest)
    assert slots == [{0: 2}, {0: 2}]


def test_a_job_that_names_only_a_range_asks_for_its_minimum() -> None:
    rows = [job("a", 1, 4, requested=4, started_s=0.0), job("b", 1, 4, requested=4)]
    began = on_servers(1, rows, {0: {0: 1}})
    whole = began.jobs.ints.copy()
    whole[IS_RANGE, 0] = 1
    began = replace(began, jobs=JobTable(began.jobs.floats, whole).read_only())
    slots, _ = decided(began, Gandiva(grow_after_s=100.0))
    assert slots == [{0: 1}, {}], "the other one asks for all four, and waits for them"
    slots, _ = decided(began, Gandiva(grow_after_s=100.0, asks="minimum"))
    assert slots == [{0: 1}, {0: 1}]


def test_with_several_islands_a_job_keeps_its_own() -> None:
    began = on_servers(1, [rigid("a", 2), one("b")], {0: {0: 2}})
    islands = tuple(replace(node, island_gpus=2) for node in began.cluster.nodes)
    began = replace(began, cluster=Cluster(islands), slots=Slots.of([{1: 2}, {}]))
    assert decided(began, STILL)[0] == [{1: 2}, {0: 1}]


def test_the_placement_puts_jobs_of_a_size_together_for_any_policy() -> None:
    rows = [one("a"), rigid("b", 2), one("c"), rigid("d", 2), rigid("e", 6)]
    began = on_servers(4, rows, {0: {0: 1}})
    allocation = Allocation(np.array([1, 2, 1, 2, 6]))
    placed = GandivaPlacement()(began, allocation)
    check_placed(began, allocation, placed)
    slots = [placed.slots.row(row) for row in range(5)]
    assert slots == [{0: 1}, {1: 2}, {0: 1}, {1: 2}, {2: 4, 3: 2}]

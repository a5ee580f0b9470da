"""Philly: quotas that are lent and taken back, and locality that is relaxed while a job waits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coddl.core.allocation import Allocation
from coddl.core.cluster import Cluster, Node
from coddl.core.invariants import check
from coddl.core.jobs import QUEUE, JobTable
from coddl.core.placement.philly import PhillyPlacement
from coddl.core.placement.placement import Placed, check_placed
from coddl.core.plan import Plan
from coddl.core.policies.philly import Philly
from coddl.core.registry import policy_from
from coddl.core.scheduler import Scheduler
from coddl.core.slots import Slots
from coddl.core.snapshot import REFUSED_S, Snapshot, empty_memory
from coddl.core.waiting import WaitingCode
from coddl.testing import job, snapshot_of
from coddl.testing.builders import JobRow
from coddl.testing.contract import SETTINGS, snapshots


def in_queues(snapshot: Snapshot, queues: Sequence[int], quota: Sequence[int]) -> Snapshot:
    """The same picture with the jobs in these queues."""
    whole = snapshot.jobs.ints.copy()
    whole[QUEUE] = queues
    jobs = JobTable(snapshot.jobs.floats, whole).read_only()
    return replace(snapshot, jobs=jobs, quota_gpus=np.array(quota, np.int64))


def rigid(name: str, gpus: int, holds: bool = False, since_s: float = 0.0) -> JobRow:
    return job(name, 1, gpus, requested=gpus, holds=gpus * holds, submitted_s=since_s)


@dataclass(frozen=True)
class Case:
    """Jobs as (queue, GPUs, runs), on ten GPUs; the expected shares, and why some wait."""

    quota: Sequence[int]
    jobs: Sequence[tuple[int, int, bool]]
    want: Sequence[int]
    why: Mapping[int, WaitingCode]
    reclaim_at: float = 0.9


RUNS, WAITS = True, False
CASES = {
    "without quotas the jobs run as they came": Case(
        (), [(0, 4, WAITS), (1, 8, WAITS), (2, 6, WAITS)], [4, 0, 6], {1: "Resources"}
    ),
    "a queue within its quota is served before one beyond it": Case(
        (4, 6), [(0, 4, WAITS), (0, 4, WAITS), (1, 6, WAITS)], [4, 0, 6], {1: "QueueQuota"}
    ),
    "idle GPUs are lent": Case((4, 6), [(0, 4, RUNS), (0, 6, WAITS)], [4, 6], {}),
    "a claim takes lent GPUs back from a full cluster": Case(
        (4, 6), [(0, 4, RUNS), (0, 6, RUNS), (1, 6, WAITS)], [4, 0, 6], {1: "QueueQuota"}
    ),
    "the newest borrower goes first": Case(
        (4, 6),
        [(0, 4, RUNS), (0, 3, RUNS), (0, 3, RUNS), (1, 3, WAITS)],
        [4, 3, 0, 3],
        {2: "QueueQuota"},
    ),
    "who was stopped for nothing goes on": Case(
        (4, 6),
        [(0, 4, RUNS), (0, 4, RUNS), (0, 2, RUNS), (1, 4, WAITS)],
        [4, 0, 2, 4],
        {1: "QueueQuota"},
    ),
    "in a cluster that is not full a claim waits for free GPUs": Case(
        (4, 6), [(0, 4, RUNS), (0, 4, RUNS), (1, 6, WAITS)], [4, 4, 0], {2: "Resources"}
    ),
    "unless it takes back at a lower load": Case(
        (4, 6), [(0, 4, RUNS), (0, 4, RUNS), (1, 6, WAITS)], [4, 0, 6], {1: "QueueQuota"}, 0.8
    ),
    "a claim that lent GPUs would not satisfy stops nobody": Case(
        (8, 2), [(0, 8, RUNS), (1, 1, RUNS), (1, 1, RUNS), (1, 2, WAITS)], [8, 1, 1, 0],
        {3: "QueueQuota"},
    ),
    "what is left goes to the queue that has least for its quota": Case(
        (6, 2, 2), [(0, 5, RUNS), (1, 2, RUNS), (1, 3, WAITS), (0, 3, WAITS)], [5, 2, 0, 3],
        {2: "QueueQuota"},
    ),
    "a job larger than its queue's quota runs on lent GPUs": Case(
        (4, 6), [(0, 8, WAITS)], [8], {}
    ),
    "a job larger than the cluster never runs": Case((4, 6), [(0, 11, WAITS)], [0],
        {0: "Infeasible"}),
    "a queue without a quota lives on loans": Case(
        (10,), [(1, 4, RUNS), (0, 10, WAITS)], [4, 0], {1: "Resources"}
    ),
    "a loan that fills the cluster lets a claim take back": Case(
        (5, 5), [(0, 5, RUNS), (0, 3, RUNS), (1, 3, WAITS), (0, 2, WAITS)], [5, 0, 3, 2],
        {1: "QueueQuota"},
    ),
    "so does a claim that fills it": Case(
        (4, 6), [(0, 4, RUNS), (0, 3, RUNS), (1, 4, WAITS), (1, 2, WAITS)], [4, 0, 4, 2],
        {1: "QueueQuota"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_quotas(case: Case) -> None:
    rows = [
        rigid(str(at), gpus, runs, since_s=float(at))
        for at, (_, gpus, runs) in enumerate(case.jobs)
    ]
    queues = [queue for queue, _, _ in case.jobs]
    snapshot = in_queues(snapshot_of(10, rows, now_s=100.0), queues, case.quota)
    answer = Philly(reclaim_at=case.reclaim_at)(snapshot)
    check(snapshot, answer)
    assert answer.shares.tolist() == list(case.want)
    waits = {int(row): answer.waiting.of(int(row)) for row in np.flatnonzero(answer.shares == 0)}
    assert {row: why.code for row, why in waits.items() if why is not None} == case.why


@given(snapshot=snapshots(), data=st.data())
@SETTINGS
def test_a_claim_within_the_quota_waits_only_for_what_cannot_be_taken_back(
    snapshot: Snapshot, data: st.DataObject
) -> None:
    jobs, total = snapshot.jobs, snapshot.cluster.gpus_total
    queues = data.draw(st.lists(st.integers(0, 2), min_size=jobs.size, max_size=jobs.size))
    first = data.draw(st.integers(0, total))
    second = data.draw(st.integers(0, total - first))
    quota = [first, second, total - first - second]
    picture = in_queues(snapshot, queues, quota)
    reclaim_at = data.draw(st.sampled_from([0.0, 0.5, 0.9, 1.0]))
    answer = Philly(reclaim_at)(picture)
    check(picture, answer)
    shares, free = answer.gpus, total - int(answer.gpus.sum())
    assert not ((shares == 0) & (jobs.gpus_requested <= free)).any()
    for queue in range(3):
        mine = np.array(queues, np.int64) == queue
        within = mine & (shares == 0) & (shares[mine].sum() + jobs.gpus_requested <= quota[queue])
        # Quotas add up to the cluster, and all that is lent may be taken back if it is full enough.
        assert not within.any() or total - free < reclaim_at * total
        for row in np.flatnonzero(within).tolist():
            why = answer.waiting.of(row)
            assert why is not None
            assert "only when the cluster is fuller" in why.sentence


def test_a_claim_that_all_that_is_lent_would_not_satisfy_is_told_so() -> None:
    # Quotas of 8 and 8 on ten GPUs, as when some were lost. Busy are nine tenths.
    rows = [rigid("a", 8, holds=True), rigid("b", 1, holds=True), rigid("c", 4)]
    answer = Philly()(in_queues(snapshot_of(10, rows), [0, 0, 1], [8, 8]))
    assert answer.shares.tolist() == [8, 1, 0]
    why = answer.waiting.of(2)
    assert why is not None
    assert (
        why.sentence
        == "its queue's quota allows it, but only 2 GPUs are free or on loan to other queues"
    )


def nodes(*racks: Sequence[int]) -> Cluster:
    """Racks of nodes with so many GPUs."""
    flat = [(gpus, rack) for rack, sizes in enumerate(racks) for gpus in sizes]
    return Cluster(tuple(Node(f"n{at}", gpus, rack=rack) for at, (gpus, rack) in enumerate(flat)))


def placed(
    cluster: Cluster,
    jobs: Sequence[tuple[int, Mapping[int, int] | None]],
    unplaced_s: float = 0.0,
    strategy: PhillyPlacement | None = None,
) -> Placed:
    """Place jobs of (GPUs, where they sit or None); those without were refused so long ago."""
    rows = [job(str(at), 1, gpus, sits=slots) for at, (gpus, slots) in enumerate(jobs)]
    snapshot = snapshot_of(cluster, rows, now_s=unplaced_s)
    if unplaced_s > 0.0:
        snapshot.memory[snapshot.jobs.gpus == 0, REFUSED_S] = 1.0  # at 0 s
    allocation = Allocation(np.array([gpus for gpus, _ in jobs], np.int64))
    out = (strategy or PhillyPlacement())(snapshot, allocation)
    check_placed(snapshot, allocation, out)
    return out


def busy(*used: int) -> list[tuple[int, Mapping[int, int] | None]]:
    """A job on each node, of so many GPUs."""
    return [(gpus, {at: gpus}) for at, gpus in enumerate(used) if gpus]


FRESH, SECOND, THIRD = (270.0 * tries for tries in range(3))


@dataclass(frozen=True)
class Spot:
    """A job of `gpus` on a cluster where so much of each node is in use, some time without."""

    cluster: Cluster
    used: Sequence[int]
    gpus: int
    unplaced_s: float
    want: Mapping[int, int]
    holds: Mapping[int, int] | None = None  # what is kept for it while it waits


SPOTS = {
    "nodes are counted by what each has": Spot(
        nodes([8, 2, 2, 2, 2]), (), 16, FRESH, {0: 8, 1: 2, 2: 2, 3: 2, 4: 2}
    ),
    "on one node, the emptiest": Spot(nodes([8, 8, 8]), (4, 0, 2), 4, FRESH, {1: 4}),
    "in the emptiest of the rack that has most nodes with room": Spot(
        nodes([8], [8, 8]), (0, 3, 2), 4, FRESH, {2: 4}
    ),
    "of several nodes the last is an empty one, too": Spot(
        nodes([4, 4, 4]), (2, 0, 0), 6, FRESH, {1: 4, 2: 2}
    ),
    "in the rack with most nodes that have room": Spot(
        nodes([8, 8], [8, 8, 8]), (0, 8, 0, 0, 8), 8, FRESH, {2: 8}
    ),
    "at first only on the fewest nodes": Spot(nodes([8, 8]), (2, 4), 8, FRESH, {}, holds={0: 6}),
    "then on one more": Spot(nodes([8, 8]), (2, 4), 8, SECOND, {0: 6, 1: 2}),
    "fewer nodes are still better": Spot(nodes([8, 8, 8]), (2, 4, 0), 8, THIRD, {2: 8}),
    "a larger job has more than one node from the first": Spot(
        nodes([4, 4, 4]), (2, 2, 2), 6, FRESH, {}, holds={0: 2, 1: 2}
    ),
    "and one more at its second try": Spot(
        nodes([4, 4, 4]), (2, 2, 2), 6, SECOND, {0: 2, 1: 2, 2: 2}
    ),
    "a node that is whole before two halves": Spot(
        nodes([4, 4], [4, 4]), (0, 4, 2, 2), 4, SECOND, {0: 4}
    ),
    "not in two racks while one may do": Spot(
        nodes([4, 4], [4, 4]), (4, 2, 4, 2), 4, FRESH, {}, holds={1: 2}
    ),
    "in the end in several racks": Spot(
        nodes([4, 4], [4, 4]), (4, 2, 4, 2), 4, SECOND, {1: 2, 3: 2}
    ),
    "what no rack holds is given several at once": Spot(
        nodes([4, 4], [4, 4]), (), 12, FRESH, {0: 4, 1: 4, 2: 4}
    ),
    "after the time-out all is released": Spot(nodes([8, 8]), (2, 4), 8, 150.0, {}, holds={}),
    "until the pause is over": Spot(nodes([8, 8]), (2, 4), 8, 269.9, {}, holds={}),
    "a pause is a pause": Spot(nodes([8, 8]), (0, 4), 8, 200.0, {}, holds={}),
}


@pytest.mark.parametrize("spot", SPOTS.values(), ids=SPOTS.keys())
def test_locality_is_relaxed_while_a_job_has_no_place(spot: Spot) -> None:
    jobs = [*busy(*spot.used), (spot.gpus, None)]
    out = placed(spot.cluster, jobs, spot.unplaced_s)
    assert out.slots.row(len(jobs) - 1) == spot.want
    assert [out.slots.row(row) for row in range(len(jobs) - 1)] == [seat for _, seat in jobs[:-1]]
    assert out.reserved is not None
    kept = {int(at): int(out.reserved[at]) for at in np.flatnonzero(out.reserved)}
    assert kept == (spot.holds or {})
    why = out.waiting.of(len(jobs) - 1)
    assert (why is None) == bool(spot.want)
    assert why is None or why.code == "Topology"


@pytest.mark.parametrize(
    ("unplaced_s", "wake_at_s"),
    [(0.0, 150.0), (149.0, 150.0), (150.0, 270.0), (200.0, 270.0), (280.0, 420.0)],
)
def test_it_asks_to_be_woken_when_a_job_changes_its_mind(
    unplaced_s: float, wake_at_s: float
) -> None:
    # One GPU is free on each of four nodes: the third try is the first that could succeed.
    out = placed(nodes([2, 2, 2, 2]), [*busy(1, 1, 1, 1), (4, None)], unplaced_s)
    assert out.slots.row(4) == {}
    assert out.wake_at_s == pytest.approx(wake_at_s, abs=1e-3)
    assert out.wake_at_s > unplaced_s


def test_what_one_job_holds_another_cannot_take() -> None:
    # Job 1 came first and holds node 0's six GPUs; job 2 could have four of them.
    out = placed(nodes([8, 4]), [(2, {0: 2}), (8, None), (4, None), (4, None)])
    assert out.slots.row(1) == {}
    assert out.slots.row(2) == {1: 4}
    assert out.slots.row(3) == {}
    assert out.reserved is not None
    assert out.reserved.tolist() == [6, 0]


def test_a_job_that_waits_for_locality_stops_nobody_and_says_so() -> None:
    # Within its quota job 2 may take back what queue 0 has borrowed, but there is no whole node.
    cluster = nodes([4, 4, 4])
    rows = [rigid("a", 6, holds=True), rigid("b", 6, holds=True, since_s=1.0)]
    rows += [rigid("c", 4, since_s=2.0), rigid("d", 4, since_s=3.0)]
    snapshot = in_queues(snapshot_of(12, rows, now_s=10.0), [0, 0, 1, 0], [6, 6])
    where = Slots.of([{0: 2, 1: 2, 2: 2}, {0: 2, 1: 2, 2: 2}, {}, {}])
    snapshot = replace(snapshot, cluster=cluster, slots=where)
    plan = Scheduler(Philly(), placement=PhillyPlacement()).decide(snapshot)
    assert plan.shares.tolist() == [6, 6, 0, 0]
    fragmented, over_quota = plan.waiting(2), plan.waiting(3)
    assert fragmented is not None
    assert over_quota is not None
    assert (fragmented.code, over_quota.code) == ("Topology", "QueueQuota")


def decided(snapshot: Snapshot, now_s: float, last: Plan | None = None) -> Plan:
    """Decide at a time, with what the last decision has left to remember."""
    memory = snapshot.memory if last is None else last.memory
    scheduler = Scheduler(policy_from("fifo:backfill=true"), placement=PhillyPlacement())
    return scheduler.decide(replace(snapshot, now_s=now_s, memory=memory))


def test_a_job_that_is_left_with_too_few_gpus_to_run_on_is_refused() -> None:
    # Of 4 GPUs that job 0 keeps, 3 are on a node that can't be used any more, and no other is free.
    rows = [job("a", 2, 4, sits={0: 1}), job("b", 3, 3, sits={0: 3})]
    snapshot = snapshot_of(nodes([4]), rows)
    allocation = Allocation(np.array([4, 3], np.int64))
    placed = PhillyPlacement()(snapshot, allocation)
    check_placed(snapshot, allocation, placed)
    assert placed.shares.tolist() == [0, 3]


def test_a_job_relaxes_from_its_first_refusal_on_not_from_its_submission() -> None:
    # Behind a full cluster job 2 has no share for an hour; then two GPUs of each node are free.
    full = [job("a", 4, 4, sits={0: 4}), job("b", 4, 4, sits={1: 4}), job("c", 4, 4)]
    queued = decided(snapshot_of(nodes([4, 4]), full), 0.0)
    queued = decided(snapshot_of(nodes([4, 4]), full), 3600.0, queued)
    assert (queued.memory[:, REFUSED_S] == 0.0).all()
    halves = [job("a", 2, 2, sits={0: 2}), job("b", 2, 2, sits={1: 2}), job("c", 4, 4)]
    apart = snapshot_of(nodes([4, 4]), halves)
    first = decided(apart, 3600.0, queued)
    assert first.shares.tolist() == [2, 2, 0]
    assert first.allocation.wake_at_s == pytest.approx(3750.0, abs=1e-3)
    second = decided(apart, 3600.0 + 200.0, first)  # it rests
    assert second.shares.tolist() == [2, 2, 0]
    third = decided(apart, 3600.0 + 270.0, second)
    assert third.shares.tolist() == [2, 2, 4]
    assert third.memory[2, REFUSED_S] == 0.0
    # Who has no share any more asks anew when it has one again.
    assert (decided(snapshot_of(nodes([4, 4]), full), 3800.0, second).memory == 0.0).all()


def test_a_refusal_at_the_beginning_of_time_is_remembered_and_no_policy_touches_it() -> None:
    def forgetful(snapshot: Snapshot) -> Allocation:
        return Allocation(
            snapshot.jobs.gpus_requested.copy(), memory=empty_memory(snapshot.jobs.size)
        )

    apart = snapshot_of(nodes([4, 4]), [job("a", 4, 4, sits={0: 2, 1: 2}), job("b", 4, 4)])
    scheduler = Scheduler(forgetful, placement=PhillyPlacement())
    first = scheduler.decide(apart)
    later = scheduler.decide(replace(apart, now_s=100.0, memory=first.memory))
    assert first.shares.tolist() == later.shares.tolist() == [4, 0]
    assert replace(apart, now_s=250.0, memory=later.memory).unplaced_s.tolist() == [0.0, 250.0]


@given(data=st.data())
@SETTINGS
def test_every_placement_can_be_carried_out(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1,
                               max_size=3))  # fmt: skip
    cluster = nodes(*sizes)
    left = cluster.columns.island_gpus.copy()
    jobs: list[tuple[int, Mapping[int, int] | None]] = []
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, len(left) - 1))
        if left[at] and data.draw(st.booleans()):
            gpus = data.draw(st.integers(1, int(left[at])))
            jobs.append((gpus, {at: gpus}))
            left[at] -= gpus
    free = int(left.sum())
    while free and data.draw(st.booleans()):
        jobs.append((data.draw(st.integers(1, free)), None))
        free -= jobs[-1][0]
    unplaced_s = data.draw(st.floats(0.0, 5000.0))
    if not jobs:
        return
    out = placed(cluster, jobs, unplaced_s)  # which checks it
    assert out.wake_at_s > unplaced_s
    for row, (_, slots) in enumerate(jobs):
        assert not slots or out.slots.row(row) == slots

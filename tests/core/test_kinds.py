"""GPUs of several kinds: who gets which, around what may not be touched, and where they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coddl.core.allocation import Allocation
from coddl.core.cluster import Cluster, Node
from coddl.core.invariants import InvalidAllocation, check
from coddl.core.policies.kinds import KindPolicy
from coddl.core.registry import placement_from, policy_from
from coddl.core.scheduler import Scheduler, Stability
from coddl.core.slots import Slots
from coddl.core.snapshot import Snapshot
from coddl.core.speed.kinds import balanced, compute_s, equal
from coddl.core.speed.places import plain, slowdowns
from coddl.testing import job, snapshot_of, snapshots
from coddl.testing.builders import JobRow
from coddl.testing.contract import SETTINGS

KINDS = ("afs-l", "afs-p", "max-min", "ranked-speedup")


def mixed(
    gpus: Mapping[str, int],
    rows: Sequence[tuple[JobRow, Sequence[float]]],
    held: Sequence[dict[int, int]] | None = None,
    now_s: float = 0.0,
    apart: float = 1.0,
) -> Snapshot:
    """Jobs with their factors by kind, on one node a kind; `held` is by node."""
    nodes = tuple(Node(name, count, kind) for kind, (name, count) in enumerate(gpus.items()))
    plain_snapshot = snapshot_of(sum(gpus.values()), [row for row, _ in rows], now_s=now_s)
    places = plain(len(rows))._replace(
        kinds=np.array([factors for _, factors in rows], np.float64),
        nodes=np.tile([[[1.0, 1.0, apart]]], (len(rows), 1, 1)),
    )
    return replace(
        plain_snapshot,
        cluster=Cluster(nodes, tuple(gpus)),
        speeds=replace(plain_snapshot.speeds, known_places=places),
        slots=Slots.of(held) if held is not None else Slots.none(len(rows)),
    )


@dataclass(frozen=True)
class Case:
    policy: str
    gpus: Mapping[str, int]
    rows: Sequence[tuple[JobRow, Sequence[float]]]
    want: Sequence[Sequence[int]]
    apart: float = 1.0  # factor of two nodes


# Worked by hand: what gives the least sum of completion times of two jobs, whoever ends first
# leaving the fast GPU to the other.
CASES = {
    "a lone job takes the fast ones, and the slow ones while they help": Case(
        "afs-l",
        {"fast": 1, "slow": 3},
        [(job("a", 1, 4), (1, 4))],
        [[1, 3]],
    ),
    "no slow GPU where it costs more than it does": Case(
        # On 2 GPUs the table says 1.2 x; with the second a quarter as fast, 1.2 x 5/8 < 1.
        "afs-l",
        {"fast": 1, "slow": 1},
        [(job("a", 1, 2, scales=0.2), (1, 4))],
        [[1, 0]],
    ),
    "the fast GPU goes to whom it does most for": Case(
        # 8 s each on the fast one, else 16 and 64. a first: 8 and 8 + 56/8; b first: 8 and 8 + 8/2.
        "afs-l",
        {"slow": 1, "fast": 1},
        [(job("a", 1, 1, left=8), (2, 1)), (job("b", 1, 1, left=8), (8, 1))],
        [[1, 0], [0, 1]],
    ),
    "the shorter one, if the other would not end before it": Case(
        # 8 or 16 s, and 80 or 640 s. a first: 8 and 8 + 632/8; b first: 16 and 80.
        "afs-l",
        {"slow": 1, "fast": 1},
        [(job("a", 1, 1, left=8), (2, 1)), (job("b", 1, 1, left=80), (8, 1))],
        [[0, 1], [1, 0]],
    ),
    "a longer one, if the shorter hardly gains": Case(
        # 8 or 9 s, and 80 or 640 s. a first: 8 and 8 + 632/8; b first: 9 and 80.
        "afs-l",
        {"slow": 1, "fast": 1},
        [(job("a", 1, 1, left=8), (1.125, 1)), (job("b", 1, 1, left=80), (8, 1))],
        [[1, 0], [0, 1]],
    ),
    "under overload the shortest are served, the fast GPU to whom it helps": Case(
        "afs-l",
        {"fast": 1, "slow": 1},
        [
            (job("a", 1, 1, left=90), (1, 9)),
            (job("b", 1, 1, left=5), (1, 1)),
            (job("c", 1, 1, left=7), (1, 3)),
        ],
        [[0, 0], [0, 1], [1, 0]],
    ),
    "without lengths it goes to whom it makes faster": Case(
        "afs-p",
        {"fast": 1, "slow": 1},
        [(job("a", 1, 1), (1, 1.1)), (job("b", 1, 1), (1, 9))],
        [[0, 1], [1, 0]],
    ),
    "equal shares count what a GPU does for the job": Case(
        # b's slow GPUs are worth 1/4 each: one fast GPU for b, then slow ones for a up to 1.
        "max-min",
        {"fast": 1, "slow": 3},
        [(job("a", 1, 8), (1, 2)), (job("b", 1, 8), (1, 4))],
        [[0, 3], [1, 0]],
    ),
    "a job moves to many slow GPUs if they do more than few fast ones": Case(
        # a and b get a fast GPU each; on all 8 slow ones a is twice as fast as on its one.
        "max-min",
        {"fast": 2, "slow": 8},
        [(job("a", 1, 8), (1, 4)), (job("b", 1, 8), (1, 4))],
        [[0, 8], [2, 0]],
        apart=4.0,
    ),
    "a kind is the faster one by its jobs, not by its name": Case(
        "max-min",
        {"slow": 2, "fast": 1},
        [(job("a", 1, 1), (3, 1)), (job("b", 1, 1), (3, 1))],
        [[0, 1], [1, 0]],
    ),
    "a minimum is met from one kind where one has it": Case(
        "afs-l",
        {"fast": 2, "slow": 3},
        [(job("a", 3, 3), (1, 2)), (job("b", 1, 2), (1, 2))],
        [[0, 3], [2, 0]],
    ),
    "else from several": Case(
        "max-min",
        {"fast": 2, "slow": 2},
        [(job("a", 3, 3), (1, 2)), (job("b", 1, 1), (1, 2))],
        [[1, 2], [1, 0]],
    ),
    "no growth on what a minimum needs": Case(
        "max-min",
        {"fast": 3, "slow": 1},
        [(job("a", 1, 8), (1, 9)), (job("b", 1, 8), (1, 9)), (job("c", 2, 2), (1, 9))],
        [[1, 0], [1, 0], [1, 1]],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_gpus_are_dealt_by_kind(case: Case) -> None:
    allocation = policy_from(case.policy)(mixed(case.gpus, case.rows, apart=case.apart))
    assert allocation.by_kind.tolist() == case.want


@pytest.mark.parametrize("name", ["afs-l", "afs-p"])
@given(snapshot=snapshots())
@SETTINGS
def test_by_kind_is_the_plain_rule_where_there_is_one_kind(name: str, snapshot: Snapshot) -> None:
    policy = policy_from(f"{name}:contest=scan")
    assert isinstance(policy, KindPolicy)
    plain_answer, answer = policy(snapshot), policy.by_kind(snapshot)
    assert answer.gpus.tolist() == plain_answer.gpus.tolist()
    assert answer.wake_at_s == plain_answer.wake_at_s


def test_kinds_are_told_apart_where_they_are_known_to_differ_unless_told_otherwise() -> None:
    jobs = [(job("a", 1, 1, left=8), (2, 1)), (job("b", 1, 1, left=80), (8, 1))]
    alike = [(row, (1, 1)) for row, _ in jobs]
    gpus = {"slow": 1, "fast": 1}
    assert policy_from("afs-l")(mixed(gpus, jobs)).shares.ndim == 2
    assert policy_from("afs-l:kinds=ignore")(mixed(gpus, jobs)).shares.ndim == 1
    assert policy_from("afs-l")(mixed(gpus, alike)).shares.ndim == 1


def test_the_names_that_policies_for_kinds_once_had_are_still_read() -> None:
    assert policy_from("afs-p-kinds:lease_h=3") == policy_from("afs-p:lease_h=3")


@st.composite
def mixed_snapshots(draw: st.DrawFn) -> Snapshot:
    """Any small picture on up to three kinds, some of which there may be none of."""
    snapshot = draw(snapshots())
    kinds = draw(st.integers(1, 3))
    sizes = [draw(st.integers(0, 15)) for _ in range(kinds)]
    factors = st.lists(st.floats(0.2, 9.0), min_size=kinds, max_size=kinds)
    rows = [draw(factors) for _ in range(snapshot.jobs.size)]
    nodes = draw(st.floats(1.0, 2.0))
    places = plain(snapshot.jobs.size)._replace(
        kinds=np.array(rows).reshape(-1, kinds),
        nodes=np.tile([[[1.0, 1.0, nodes]]], (snapshot.jobs.size, 1, 1)),
    )
    names = tuple(map(str, range(kinds)))
    return replace(
        snapshot,
        cluster=Cluster(
            tuple(Node(names[kind], sizes[kind], kind) for kind in range(kinds)), names
        ),
        speeds=replace(snapshot.speeds, known_places=places),
    )


@pytest.mark.parametrize("policy", KINDS)
@given(snapshot=mixed_snapshots())
@SETTINGS
def test_what_is_dealt_can_be_carried_out_and_serves_who_fits(
    policy: str, snapshot: Snapshot
) -> None:
    allocation = policy_from(policy)(snapshot)
    check(snapshot, allocation)
    free = snapshot.cluster.gpus_total - allocation.gpus.sum()
    assert not ((allocation.gpus == 0) & (snapshot.jobs.gpus_min <= free)).any()


def test_places_are_of_the_kinds_that_were_dealt() -> None:
    rows = [(job("a", 2, 2), (1, 4)), (job("b", 2, 2), (1, 1.5))]
    snapshot = mixed({"fast": 2, "slow": 2}, rows, held=[{1: 2}, {0: 2}])
    scheduler = Scheduler(policy_from("max-min"), placement=placement_from("consolidate"))
    plan = scheduler.decide(snapshot)
    assert plan.placed is not None
    assert [plan.placed.slots.row(row) for row in range(2)] == [{0: 2}, {1: 2}]


def test_a_pinned_job_keeps_its_kind_and_others_share_what_is_left_of_each() -> None:
    rows = [
        (job("a", 1, 2, holds=2, pinned=True), (1, 9)),
        (job("b", 1, 4), (1, 2)),
        (job("c", 1, 4), (1, 9)),
    ]
    snapshot = mixed({"fast": 3, "slow": 2}, rows, held=[{0: 1, 1: 1}, {}, {}])
    plan = Scheduler(policy_from("max-min")).decide(snapshot)
    assert plan.allocation.by_kind.tolist() == [[1, 1], [1, 1], [1, 0]]


def test_a_protected_job_keeps_its_minimum_where_it_has_most() -> None:
    rows = [
        (job("a", 2, 3, left=1e6, holds=3, started_s=95.0), (1, 1)),
        (job("b", 2, 2, left=1), (1, 1)),
    ]
    snapshot = mixed({"fast": 1, "slow": 2}, rows, held=[{0: 1, 1: 2}, {}], now_s=100.0)
    plan = Scheduler(policy_from("afs-l"), Stability(min_runtime_s=10.0)).decide(snapshot)
    assert plan.allocation.by_kind.tolist() == [[0, 2], [0, 0]]


@pytest.mark.parametrize("policy", ["max-min", "max-min:kinds=ignore"])
def test_a_higher_priority_takes_its_kinds_first(policy: str) -> None:
    rows = [(job("a", 1, 4), (1, 4)), (job("b", 1, 2, priority=1), (1, 4))]
    snapshot = mixed({"fast": 2, "slow": 1}, rows)
    allocation = Scheduler(policy_from(policy)).decide(snapshot).allocation
    assert allocation.gpus.tolist() == [1, 2]
    if policy == "max-min":
        assert allocation.by_kind.tolist() == [[0, 1], [2, 0]]


def test_what_is_kept_for_somebody_is_left_out_by_kind() -> None:
    snapshot = mixed({"fast": 2, "slow": 2}, [(job("a", 1, 4), (1, 4))])
    reserving = replace(snapshot, reserved=np.array([2, 1]))
    allocation = Scheduler(policy_from("max-min")).decide(reserving).allocation
    assert allocation.by_kind.tolist() == [[0, 1]]


BROKEN = {
    "more of a kind than there is": ([[2, 0], [0, 1]], None, "it hands out [2 1] of [1 2]"),
    "less than none of a kind": ([[-1, 2], [1, 0]], None, "job 0 gets less than none of a kind"),
    "mates on unlike GPUs": ([[1, 0], [0, 1]], [1, 0], "hold as many"),
    "a mate that names none": ([[1, 0], [1, 0]], [1, -1], "name the first"),
}


@pytest.mark.parametrize(("shares", "packed_with", "because"), BROKEN.values(), ids=BROKEN.keys())
def test_shares_by_kind_are_checked(
    shares: list[list[int]], packed_with: list[int] | None, because: str
) -> None:
    snapshot = mixed({"fast": 1, "slow": 2}, [(job("a"), (1, 1)), (job("b"), (1, 1))])
    answer = Allocation(
        np.array(shares), packed_with=None if packed_with is None else np.array(packed_with)
    )
    with pytest.raises(InvalidAllocation) as raised:
        check(snapshot, answer)
    assert because in raised.value.because


def test_gpus_that_mates_share_count_once_of_their_kind() -> None:
    snapshot = mixed({"fast": 1, "slow": 2}, [(job("a"), (1, 1)), (job("b"), (1, 1))])
    check(snapshot, Allocation(np.array([[1, 1], [1, 1]]), packed_with=np.array([1, 0])))


@given(
    virtual_nodes=st.integers(1, 7),
    node_s=st.lists(st.floats(0.1, 9.0), min_size=1, max_size=4),
)
@SETTINGS
def test_no_deal_of_virtual_nodes_ends_sooner(virtual_nodes: int, node_s: list[float]) -> None:
    counts = balanced(virtual_nodes, node_s)
    assert counts.sum() == virtual_nodes
    deals = product(range(virtual_nodes + 1), repeat=len(node_s))
    every = [np.array(deal) for deal in deals if sum(deal) == virtual_nodes]
    assert compute_s(counts, node_s) == min(compute_s(deal, node_s) for deal in every)


DEALS = {
    "alike": (8, [1, 1, 1, 1], [2, 2, 2, 2]),
    "in proportion to speed": (12, [1, 2], [8, 4]),
    "a tie goes to the first": (3, [1, 1], [2, 1]),
    "none for one that is too slow": (3, [1, 1, 9], [2, 1, 0]),
}


@pytest.mark.parametrize(("virtual_nodes", "node_s", "want"), DEALS.values(), ids=DEALS.keys())
def test_virtual_nodes_are_dealt(virtual_nodes: int, node_s: list[float], want: list[int]) -> None:
    assert balanced(virtual_nodes, node_s).tolist() == want


def test_an_equal_split_waits_for_the_slowest_device() -> None:
    assert equal(7, 3).tolist() == [3, 2, 2]
    assert compute_s(equal(8, 2), [1, 4]) == 16
    assert compute_s(balanced(8, [1, 4]), [1, 4]) == 7


@given(factors=st.lists(st.floats(0.5, 8.0), min_size=1, max_size=4))
@SETTINGS
def test_with_many_virtual_nodes_the_staircase_meets_the_smooth_form(factors: list[float]) -> None:
    """The simulator's factor for n unlike GPUs, against V virtual nodes on n alike ones."""
    devices, virtual_nodes = len(factors), 10_000
    places = plain(1)._replace(kinds=np.array([factors]))
    cluster = Cluster(tuple(Node(str(kind), 1, kind) for kind in range(devices)))
    slots = Slots.of([dict.fromkeys(range(devices), 1)])
    smooth = slowdowns(places, cluster.columns, np.zeros(1, np.int64), slots, np.array([-1]))[0]
    stairs = compute_s(balanced(virtual_nodes, factors), factors) * devices / virtual_nodes
    assert stairs == pytest.approx(smooth, rel=0.02)
    assert stairs >= smooth * (1 - 1e-9)

"""Themis: finish-time fairness by hand, the auction, and who gets the lease."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coddl.core.allocation import Allocation
from coddl.core.cluster import Cluster
from coddl.core.columns import FloatMatrix
from coddl.core.policies.auction import (
    Bids,
    best_worst_case,
    partial_allocation,
    worst_first,
)
from coddl.core.policies.finish_time import (
    COLUMN,
    apps_of,
    crowd_of,
    fairness_of,
    outlook_of,
    rho_at,
)
from coddl.core.policies.themis import after_payment, call_back
from coddl.core.registry import policy_from
from coddl.core.snapshot import Snapshot
from coddl.core.speed.places import plain
from coddl.testing import job, snapshot_of, twin
from coddl.testing.builders import JobRow

LEASE_S = 1200.0


def bids(values: Sequence[Sequence[float]], held: Sequence[int] = ()) -> Bids:
    """Bidders by what 0, 1, 2, … GPUs are worth to them; a share worth 0 does not fit."""
    table = np.array(values)
    with np.errstate(divide="ignore"):
        log_value = np.log(table)
    fits = (table > 0) & (np.arange(table.shape[1]) > 0)
    return Bids(log_value, fits, np.array(held or [0] * len(table)))


def test_of_two_that_are_alike_each_pays_what_it_takes_from_the_other() -> None:
    worth = [1.0, 2.0, 3.0, 4.0, 5.0]
    shares, keeps = partial_allocation(bids([worth, worth]), 4)
    assert shares.tolist() == [2, 2]
    assert keeps == pytest.approx([worth[2] / worth[4]] * 2)  # V(half) / V(all)


def test_who_takes_nothing_from_anybody_pays_nothing() -> None:
    shares, keeps = partial_allocation(bids([[1, 2, 2, 2], [1, 2, 3, 3]]), 3)
    assert shares.tolist() == [1, 2]
    assert keeps.tolist() == [1.0, 1.0]


# Of what was won, held and kept: what is left after the payment, in whole shares.
PAYMENTS = {
    "whole GPUs, rounded up": ([1, 2, 3, 4, 5], 0, 4, 0.6, 3),
    "only shares that it can use": ([1, 0, 2, 0, 3], 0, 4, 0.6, 2),
    "never less than it can start on": ([1, 0, 2, 0, 3], 0, 2, 0.1, 2),
    "what it held is not for sale": ([1, 2, 3, 4, 5], 3, 4, 0.0, 3),
    "nothing won, nothing paid": ([1, 2, 3, 4, 5], 0, 0, 1.0, 0),
}  # fmt: skip


@pytest.mark.parametrize(("worth", "held", "won", "keeps", "want"), PAYMENTS.values(), ids=PAYMENTS)
def test_payment(worth: list[float], held: int, won: int, keeps: float, want: int) -> None:
    paid = after_payment(bids([worth], [held]), np.array([won]), np.array([keeps]))
    assert paid.tolist() == [want]


@st.composite
def concave_bids(draw: st.DrawFn) -> Bids:
    """Bidders to whom each GPU is worth a smaller factor than the one before."""
    values = []
    for _ in range(draw(st.integers(1, 3))):
        gains = sorted(draw(st.lists(st.floats(0.0, 2.0), min_size=4, max_size=4)), reverse=True)
        values.append(np.exp(np.cumsum([draw(st.floats(-3, 3)), *gains])))
    return bids(values)


def every_outcome(free: int, bidders: int, most: int) -> list[tuple[int, ...]]:
    outcomes = product(range(most + 1), repeat=bidders)
    return [shares for shares in outcomes if sum(shares) <= free]


@given(auction=concave_bids(), free=st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_the_auction_is_proportionally_fair(auction: Bids, free: int) -> None:
    rows = np.arange(len(auction.held))

    def product_of(shares: Sequence[int]) -> float:
        return float(auction.log_value[rows, list(shares)].sum())

    shares, keeps = partial_allocation(auction, free)
    best = max(map(product_of, every_outcome(free, len(rows), 4)))
    assert product_of(shares.tolist()) == pytest.approx(best)
    assert ((keeps > 0) & (keeps <= 1)).all()
    assert twin(partial_allocation)(auction, free)[0].tolist() == shares.tolist()


@given(auction=concave_bids(), free=st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_the_worst_off_is_as_well_off_as_can_be(auction: Bids, free: int) -> None:
    rows = np.arange(len(auction.held))

    def worst_of(shares: Sequence[int]) -> float:
        return float(auction.log_value[rows, list(shares)].min())

    shares = best_worst_case(auction, free)
    assert shares.sum() <= free
    assert worst_of(shares.tolist()) == max(map(worst_of, every_outcome(free, len(rows), 4)))


def test_worst_first_looks_at_what_is_left() -> None:
    # With all 4 the first is worst off; of the 1 that it leaves, the third is.
    table = [[0.1, 0.2, 0.3, 0.3, 0.3], [0.1, 0.5, 0.6, 0.7, 0.9], [0.1, 0.4, 0.8, 0.9, 0.9]]
    values = bids(table)._replace(fits=np.array([[False, True, True, True, False]] * 3))
    assert worst_first(values, 4).tolist() == [3, 0, 1]


def rho_of(snapshot: Snapshot) -> FloatMatrix:
    """rho of every row at every share."""
    outlook = outlook_of(snapshot, apps_of(snapshot), snapshot.memory.copy(), LEASE_S)
    return fairness_of(snapshot, outlook, np.arange(snapshot.jobs.size)).rho


def test_rho_is_the_time_it_takes_over_that_of_an_equal_share() -> None:
    rows = [job("a", left=100, submitted_s=50), job("b", left=100)]
    snapshot = snapshot_of(4, rows, now_s=100.0)
    rho = rho_of(snapshot)
    alone_s = 100 / 2  # half of the cluster each
    want_a = [50 + LEASE_S + 100, 50 + 100, 50 + 100 / 2, 50 + 100 / 3, 50 + 100 / 4]
    assert rho[0] == pytest.approx(np.array(want_a) / alone_s)
    assert rho[1, 1:3] == pytest.approx(np.array([100 + 100, 100 + 50]) / alone_s)


def test_an_equal_share_of_less_than_a_gpu_is_a_part_of_the_time() -> None:
    snapshot = snapshot_of(1, [job("a", left=100), job("b", left=100)])
    rho = rho_of(snapshot)
    assert rho[0, 1] == pytest.approx(100 / 200)


def test_the_crowd_is_the_mean_number_of_apps_during_the_stay() -> None:
    two, memory = snapshot_of(4, [job("a"), job("b")]), np.zeros((2, 6))
    assert crowd_of(two, apps_of(two), memory).tolist() == [2.0, 2.0]
    alone = snapshot_of(4, [job("a")], now_s=10.0)
    rest = memory[:1]
    assert crowd_of(alone, apps_of(alone), rest).tolist() == [2.0]
    later = snapshot_of(4, [job("a"), job("c", submitted_s=30.0)], now_s=30.0)
    memory = np.vstack((rest, np.zeros((1, 6))))
    assert crowd_of(later, apps_of(later), memory) == pytest.approx([(2 * 10 + 1 * 20) / 30, 2.0])


def test_a_job_of_unknown_length_has_as_much_before_it_as_behind_it() -> None:
    rows = [job("a", left=float("nan"), holds=1, executed_s=5000.0)]
    snapshot = snapshot_of(1, rows, now_s=5000.0)
    rho = rho_of(snapshot)
    assert rho[0, 1] == pytest.approx((5000 + 5000) / 10_000)


@dataclass(frozen=True)
class Case:
    gpus: int
    jobs: Sequence[JobRow]
    want: dict[str, int]
    policy: str = "themis"
    leased: Sequence[str] = ()  # whose leases run on
    now_s: float = 0.0


STARVING = [job("a", 1, 1, holds=1, executed_s=9000, left=10_000), job("b", 1, 1)]
CASES = {
    "a lone app grows to its cap": Case(8, [job("a")], {"a": 4}),
    "what was paid goes to others that can use it": Case(8, [job("a"), job("b")], {"a": 4, "b": 4}),
    "what was paid is not left idle": Case(4, [job("a", 1, 8), job("b", 1, 8)], {"a": 2, "b": 2},
                                           "themis:filter=0"),
    "a starving app gets the lease that ends": Case(1, STARVING, {"a": 0, "b": 1}, now_s=9000),
    "nobody grows while an app that has waited long has nothing": Case(
        4, [job("a", left=10), job("b", submitted_s=299_000, left=1e6)], {"a": 1, "b": 3},
        "themis:filter=0", now_s=300_000,
    ),
    "an app that can never run is not asked": Case(
        4, [job("a", 9, 9, left=1), job("b", left=10), job("c", left=1e6)],
        {"a": 0, "b": 4, "c": 0},
    ),
    "a lease holds until it ends": Case(1, STARVING, {"a": 1, "b": 0}, leased="a", now_s=9000),
    "who has a lease may grow": Case(3, [job("a", holds=1)], {"a": 3}, leased="a", now_s=9),
    "of equals the one that came first is asked": Case(
        1, [job("a", 1, 1, left=100), job("b", 1, 1, left=100)], {"a": 1, "b": 0},
    ),
    "only the worst off are asked": Case(
        2, [job("a", 2, 2, left=50), job("b", 2, 2, left=5000), job("c", 2, 2, left=5000)],
        {"a": 2, "b": 0, "c": 0}, "themis:filter=0.8", now_s=1000,
    ),
    "the jobs of a group are one app, which its best job stands for": Case(
        2, [job("a", 1, 1, left=900, group=0), job("b", 1, 1, left=100, group=0),
            job("c", 1, 1, left=500)], {"a": 0, "b": 1, "c": 1}, "themis:filter=0",
    ),
    "what is left serves the other jobs of a group": Case(
        4, [job("a", 1, 1, group=0), job("b", 1, 1, group=0)], {"a": 1, "b": 1}
    ),
    "greedy gives the worst off all it can use": Case(
        4, [job("a", submitted_s=900, left=500), job("b", left=500)], {"a": 0, "b": 4},
        "themis:form=greedy", now_s=1000,
    ),
    "max-min evens out": Case(
        4, [job("a", left=500), job("b", left=500)], {"a": 2, "b": 2}, "themis:form=max-min"
    ),
    "max-min gives more to who came first": Case(
        4, [job("a", submitted_s=900, left=500), job("b", left=500)], {"a": 1, "b": 3},
        "themis:form=max-min", now_s=1000,
    ),
}  # fmt: skip


def decided(case: Case) -> Allocation:
    """What Themis answers, with the leases of the case."""
    snapshot = snapshot_of(case.gpus, case.jobs, now_s=case.now_s)
    memory = snapshot.memory.copy()
    memory[[row.name in case.leased for row in case.jobs], COLUMN.lease_end_s] = case.now_s + 60.0
    return policy_from(case.policy)(replace(snapshot, memory=memory))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_themis(case: Case) -> None:
    shares = decided(case).gpus.tolist()
    assert dict(zip((row.name for row in case.jobs), shares, strict=True)) == case.want


# A lease ends a multiple of 1200 s after 0, 150, …, 1050 s, and is not shorter than 150 s.
@pytest.mark.parametrize(
    ("now_s", "first_s", "second_s"),
    [(0, 1200, 1350), (1049, 1200, 1350), (1050, 2400, 1350), (1150, 2400, 1350)],
)
def test_leases_end_in_lots(now_s: float, first_s: float, second_s: float) -> None:
    case = Case(2, [job("a", 1, 1), job("b", 1, 1), job("c", 1, 1)], {}, now_s=now_s)
    allocation = decided(case)
    assert allocation.memory is not None
    assert allocation.memory[:2, COLUMN.lease_end_s].tolist() == [first_s, second_s]


def test_a_lease_takes_a_lease_in_the_long_run() -> None:
    case = Case(1, STARVING, {})
    first = decided(case).wake_at_s
    assert decided(replace(case, now_s=first)).wake_at_s == first + LEASE_S


@pytest.mark.parametrize(
    ("need", "want"), [(0, [4, 4]), (1, [2, 4]), (2, [2, 4]), (3, [1, 4]), (4, [1, 3]), (9, [1, 1])]
)
def test_loans_are_called_back_down_to_shares_of_use(need: int, want: list[int]) -> None:
    rows = [job("a", step_s=[1.0, 0.5, 0.5, 0.25], holds=4), job("b", holds=4)]
    shares, lent = np.array([4, 4]), np.array([3, 3])
    call_back(snapshot_of(8, rows), np.array([0, 1]), need, shares, lent)
    assert shares.tolist() == want
    assert lent.tolist() == [share - 1 for share in want]


def test_a_newcomer_starts_on_what_was_lent_while_leases_run_on() -> None:
    rows = [job("a", 1, 8, holds=4), job("b", 1, 8, holds=4), job("c", 1, 8, left=10)]
    snapshot = snapshot_of(8, rows, now_s=9.0)
    memory = snapshot.memory.copy()
    memory[:2, COLUMN.lease_end_s], memory[1, COLUMN.lent_gpus] = 60.0, 2
    policy = policy_from("themis")
    assert policy(replace(snapshot, memory=memory)).gpus.tolist() == [4, 3, 1]
    memory[1, COLUMN.lent_gpus] = 0
    assert policy(replace(snapshot, memory=memory)).gpus.tolist() == [4, 4, 0]


def test_a_loan_that_was_cut_since_does_not_cost_what_is_leased() -> None:
    rows = [job("a", 1, 8, holds=2), job("b", 1, 8, holds=2), job("c", 3, 8, left=10)]
    snapshot = snapshot_of(4, rows, now_s=9.0)
    memory = snapshot.memory.copy()
    memory[:2, COLUMN.lease_end_s], memory[:2, COLUMN.lent_gpus] = (
        60.0,
        5,
    )  # all but one of 6 was lent
    shares = policy_from("themis")(replace(snapshot, memory=memory)).gpus
    assert shares.sum() == 4
    assert (shares[:2] >= 1).all()


def test_what_nobody_won_is_lent_but_not_a_minimum() -> None:
    # Of three apps the first is asked, and grows to its cap; the others start, and grow on loan.
    rows = [job("a", 1, 2, left=10), *(job(name, 1, 4, left=1e6) for name in "bc")]
    allocation = policy_from("themis")(snapshot_of(7, rows))
    assert allocation.memory is not None
    assert allocation.gpus.sum() == 7
    assert allocation.memory[:, COLUMN.lent_gpus].tolist() == [0, *(allocation.gpus[1:] - 1)]


def test_an_auction_is_held_when_a_lease_ends() -> None:
    assert decided(CASES["a lease holds until it ends"]).wake_at_s == 9060.0


@pytest.mark.parametrize("gpus", [8, 9])
def test_no_auction_where_all_have_what_they_can_use(gpus: int) -> None:
    allocation = decided(Case(gpus, [job("a"), job("b"), job("c", 10, 10)], {}))
    assert allocation.gpus.tolist() == [4, 4, 0]  # the third can't ever run
    assert allocation.wake_at_s == np.inf


def bid_times_s(sits: dict[int, int], factor: float) -> list[float]:
    """What 1000 GPU-seconds take at 1 to 4 GPUs, on two nodes of 4; more than the fewest cost."""
    nodes = np.ones((1, 9, 3))
    nodes[:, 2:5, 2] = factor
    rows = [job("a", 1, 8, sits=sits)]
    snapshot = snapshot_of(Cluster.of(8, 4), rows, places=plain(1)._replace(nodes=nodes))
    outlook = outlook_of(snapshot, apps_of(snapshot), snapshot.memory.copy(), LEASE_S)
    rho = fairness_of(snapshot, outlook, np.array([0])).rho[0]
    times_s: list[float] = (rho * outlook.alone_s[0])[[1, 2, 3, 4, 8]].tolist()
    return times_s


# A job that grows stays where it sits. At 8 GPUs two nodes are the fewest.
BIDS = {
    "apart": ({0: 1, 1: 1}, [1000, 1000, 2000 / 3, 500, 125]),
    "together": ({0: 2}, [1000, 500, 1000 / 3, 250, 125]),
    "on most of one and a little of another": ({0: 3, 1: 1}, [1000, 500, 1000 / 3, 500, 125]),
    "nowhere": ({}, [1000, 500, 1000 / 3, 250, 125]),
}


@pytest.mark.parametrize(("sits", "want"), BIDS.values(), ids=BIDS.keys())
def test_a_bid_is_for_the_place_that_a_job_would_have(
    sits: dict[int, int], want: list[float]
) -> None:
    assert bid_times_s(sits, 2.0) == pytest.approx(want)


@pytest.mark.parametrize("seed", range(1, 6))
def test_what_nobody_won_goes_to_who_sits_beside_it(seed: int) -> None:
    """The GPU that is free is on the second node; the one that is asked has all it can use."""
    sits = {"a": {0: 2}, "b": {1: 2}, "c": {0: 2}}
    rows = [job(name, 1, 4, sits=at, left=1e6) for name, at in sits.items()]
    rows.append(job("asked", 1, 1, sits={1: 1}, left=1))
    snapshot = snapshot_of(Cluster.of(8, 4), rows, seed=seed, now_s=9.0)
    memory = snapshot.memory.copy()
    memory[:, COLUMN.lease_end_s] = 60.0
    shares = policy_from("themis:filter=1")(replace(snapshot, memory=memory)).gpus
    assert shares.tolist() == [2, 3, 2, 1]


def test_rho_of_what_is_held_is_that_of_the_bids() -> None:
    cluster = Cluster.of(8, 4)
    slow = plain(2)._replace(nodes=np.array([[[1.0, 1.0, 1.5]] * 3, [[1.0, 1.0, 1.2]] * 3]))
    rows = [job("a", sits={0: 1, 1: 1}), job("b", left=70)]
    snapshot = snapshot_of(cluster, rows, now_s=10.0, places=slow)
    outlook = outlook_of(snapshot, apps_of(snapshot), snapshot.memory.copy(), LEASE_S)
    held = np.array([2, 0])
    assert rho_at(snapshot, outlook, held) == pytest.approx(rho_of(snapshot)[[0, 1], held])
    assert rho_of(snapshot)[0, 2] == pytest.approx((10 + 1000 / 2 * 1.5) / (1000 / 4))

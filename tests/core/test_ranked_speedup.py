"""Ranked Speedup: who gets what, against values worked by hand and against a plain scan."""

from dataclasses import replace
from math import isnan, nan

import numpy as np
import pytest
from hypothesis import given

from coddl.core.policies.kinds import KindPolicy
from coddl.core.policies.ranked_speedup import weight_at
from coddl.core.registry import policy_from
from coddl.core.snapshot import Snapshot
from coddl.testing import job, snapshot_of, snapshots
from coddl.testing.builders import JobRow
from coddl.testing.contract import SETTINGS
from tests.core.test_kinds import mixed
from tests.core.test_policies import AFS_L, Case
from tests.oracle_ranked_speedup import damped, worth_in
from tests.oracle_residual import STICKY, Trained, common_hazards, residual_s


def at(*speeds: float) -> list[float]:
    """Step times of a job with these speed-ups at 1, 2, … GPUs, as they count: damped."""
    return [speed ** (-8.0 / 7.0) for speed in speeds]


# With q = 1.5 the longest job counts once, the next (2^1.5 - 1)^(2/3) = 1.495 times, the third
# (3^1.5 - 2^1.5)^(2/3) = 1.776 times; with q = 1 all count the same.
SHORT, LONG = at(1.0, 1.6, 2.0, 2.2), at(1.0, 1.7, 2.2, 2.5)
TWO = [job("a", step_s=SHORT, left=10), job("b", step_s=LONG, left=1000)]
KINK = [job("a", step_s=at(1.0, 1.1, 1.2, 2.6)), job("b", step_s=at(1.0, 1.3, 1.6, 1.9))]
UNKNOWN = [job("a", left=nan, executed_s=400), job("b", left=nan, executed_s=10)]
CROWD = [("a", 9.0), ("b", 5.0), ("c", 7.0)]
HOLDING = [("a", 9.0, 0), ("b", 5.0, 2), ("c", 7.0, 0)]
CASES = {
    "the shorter one counts more": Case(
        # a: 0.897, 0.598, 0.299; b: 0.7, 0.5, 0.3. In order: a, b, a, b, b, a.
        5, TWO, {"a": 3, "b": 2}, "ranked-speedup",
    ),
    "but not more than that": Case(6, TWO, {"a": 3, "b": 3}, "ranked-speedup"),
    "the last GPU goes to the larger gain": Case(7, TWO, {"a": 3, "b": 4}, "ranked-speedup"),
    "with q = 1 the larger gain decides": Case(5, TWO, {"a": 2, "b": 3}, "ranked-speedup:q=1"),
    "a step goes over a kink": Case(
        # a gains 1.6 by three GPUs, b 0.9.
        5, KINK, {"a": 4, "b": 1}, "ranked-speedup:q=1",
    ),
    "a smaller step, where the large one does not fit": Case(
        4, KINK, {"a": 1, "b": 3}, "ranked-speedup:q=1",
    ),
    "what the other can't use is used": Case(
        4, [KINK[0], job("b", 1, 1)], {"a": 3, "b": 1}, "ranked-speedup",
    ),
    "speed-ups are over the minimum": Case(
        # From 2 to 3 GPUs a is 1.5 times as fast, b 1.6 times. Over one GPU, a would gain 1.0.
        4, [job("a", 2, 4), job("b", scales=0.6)], {"a": 2, "b": 2}, "ranked-speedup:q=1",
    ),
    # Three jobs on two GPUs: a GPU that one has delays three others. With one GPU, 1 s an iteration
    # delays all by 1 + 3 s; with two, 0.42 s do by 0.42 (1 + 6) = 2.94 s.
    "where jobs outnumber GPUs the shortest have more, if that delays all less": Case(
        2, [job(name, step_s=(1.0, 0.42), left=left) for name, left in CROWD],
        {"a": 0, "b": 2, "c": 0}, "ranked-speedup",
    ),
    "but not where shares are to be fair": Case(
        2, [job(name, step_s=(1.0, 0.42), left=left) for name, left in CROWD],
        {"a": 0, "b": 1, "c": 1}, "ranked-speedup:rho=1.5",
    ),
    "or for less than a third": Case(
        2, [job(name, step_s=(1.0, 0.52), left=left) for name, left in CROWD],
        {"a": 0, "b": 1, "c": 1}, "ranked-speedup",
    ),
    "and not at less than a third from what they have": Case(
        2, [job(name, step_s=(1.0, 0.52), left=left, holds=holds) for name, left, holds in HOLDING],
        {"a": 0, "b": 2, "c": 0}, "ranked-speedup",
    ),
    "of unknown lengths the one that has had less goes first": Case(
        1, UNKNOWN, {"a": 0, "b": 1}, "ranked-speedup",
    ),
    "and gets the next GPU": Case(3, UNKNOWN, {"a": 1, "b": 2}, "ranked-speedup"),
    "a small difference does not matter": Case(
        1, [job("a", left=nan, executed_s=400), job("b", left=nan, executed_s=390)],
        {"a": 1, "b": 0}, "ranked-speedup",
    ),
    "one that has run for long is guessed to run on": Case(
        1, [job("a", left=nan, executed_s=1e5), job("b", left=1e4)], {"a": 0, "b": 1},
        "ranked-speedup",
    ),
    "one that has just begun is guessed to be short": Case(
        1, [job("a", left=nan), job("b", left=1e4)], {"a": 1, "b": 0}, "ranked-speedup",
    ),
    "lengths that are not asked for do not count": Case(
        1, [job("a", left=9, executed_s=1e5), job("b", left=1e4)], {"a": 0, "b": 1},
        "ranked-speedup:lengths=learned",
    ),
    "a job that runs is not preempted for a small difference": Case(
        1, [job("a", left=nan, executed_s=10), job("b", left=nan, executed_s=20, holds=1)],
        {"a": 0, "b": 1}, "ranked-speedup",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_shares(case: Case) -> None:
    assert case.got == case.want


KNOWN = {name: case for name, case in AFS_L.items() if not any(isnan(j.left) for j in case.jobs)}


@pytest.mark.parametrize("case", KNOWN.values(), ids=KNOWN.keys())
def test_what_holds_for_afs_holds_here(case: Case) -> None:
    assert replace(case, policy="ranked-speedup").got == case.want


def test_shares_are_those_known_to_be_best() -> None:
    # heSRPT: for speed-ups of GPUs^p the i-th longest of n gets (i/n)^q - ((i-1)/n)^q of the GPUs.
    # With p = 1/2, thus q = 2: 1/9, 3/9 and 5/9.
    curve = at(*(gpus**0.5 for gpus in range(1, 65)))
    jobs = [
        job(name, 1, 64, step_s=curve, left=left)
        for name, left in zip("abc", (7, 9, 8), strict=True)
    ]
    assert Case(18, jobs, {}, "ranked-speedup:q=2").got == {"a": 10, "b": 2, "c": 6}


def test_where_there_is_room_for_all_relative_gains_count() -> None:
    # Of logarithms of GPUs^p each gets GPUs in proportion to its weight: 1, 3^0.5 and 5^0.5 of 120
    # are 24, 42 and 54; of 18 there is no room, and more goes to what is ahead.
    curve = at(*(gpus**0.5 for gpus in range(1, 129)))
    jobs = [
        job(name, 1, 128, step_s=curve, left=left)
        for name, left in zip("abc", (7, 9, 8), strict=True)
    ]
    assert Case(120, jobs, {}, "ranked-speedup:q=2").got == {"a": 54, "b": 24, "c": 42}


def test_only_the_order_of_lengths_matters() -> None:
    near, far = ([replace(TWO[0], left=left), TWO[1]] for left in (999.0, 1.0))
    for gpus in range(1, 9):
        near_case, far_case = (Case(gpus, jobs, {}, "ranked-speedup") for jobs in (near, far))
        assert near_case.got == far_case.got


def lengths(snapshot: Snapshot) -> list[tuple[float, int]]:
    """What rows are ranked by, the shortest first."""
    jobs, step_s = snapshot.jobs, snapshot.speeds.step_s
    left_s = snapshot.seconds_left_at(jobs.gpus_min).tolist()
    widest = step_s.shape[1] - 1
    slower = step_s[jobs.curve, jobs.gpus_min]
    request_s = step_s[jobs.curve, np.minimum(jobs.gpus_requested, widest)]
    trained_s = jobs.attained_gpu_s / jobs.gpus_min / slower * request_s
    everyone = [Trained(each, ended=False) for each in trained_s.tolist()]
    common = common_hazards(everyone)
    for row in np.flatnonzero(np.isnan(left_s)).tolist():
        left_s[row] = residual_s(everyone, row, common) * float(slower[row] / request_s[row])
        left_s[row] /= STICKY if jobs.gpus[row] else 1.0
    return list(zip(left_s, range(jobs.size), strict=True))


def worth(snapshot: Snapshot, row: int, share: int, calm: float) -> float:
    """What a row's speed at a share counts, less what it costs to leave the one that it holds."""
    jobs = snapshot.jobs
    step_s, held = snapshot.speeds.step_s[jobs.curve[row]], jobs.gpus[row]
    counts = worth_in(jobs.size, snapshot.cluster.gpus_total)
    speed = counts(float(1.0 / step_s[share]))
    if held in (0, share) or not calm:
        return speed
    left_s = jobs.remaining_iterations[row] * step_s[held]
    within_s = 600.0 if np.isnan(left_s) else max(1.0, min(600.0, left_s))
    lost = max(calm, jobs.pause_s[row] / within_s)
    price = lost
    if counts is damped:
        price *= damped(float(1.0 / step_s[held]))
    return float(speed - price * (1.0 if share > held else 2.0))


def step(snapshot: Snapshot, row: int, share: int, left: int, calm: float) -> tuple[float, int]:
    """The best gain per GPU of a row's next eight useful shares, and the GPUs that it takes."""
    jobs, useful = snapshot.jobs, np.flatnonzero(snapshot.speeds.useful[snapshot.jobs.curve[row]])
    now = worth(snapshot, row, share, calm)
    most, added = 0.0, 0
    for following in useful[useful > share][:8]:
        if following <= min(jobs.gpus_max[row], share + left):
            gain = (worth(snapshot, row, following, calm) - now) / (following - share)
            if gain > most * (1.0 + 1e-12):
                most, added = gain, int(following - share)
    return most, added


def plainly(snapshot: Snapshot, q: float, calm: float) -> list[int]:
    """The rule without a heap: each step is looked for among all rows."""
    jobs, left = snapshot.jobs, snapshot.cluster.gpus_total
    shares, by_length = [0] * jobs.size, lengths(snapshot)
    for row in sorted(range(jobs.size), key=lambda row: by_length[row]):
        if jobs.gpus_min[row] <= left:
            shares[row] = int(jobs.gpus_min[row])
            left -= shares[row]
    learned = bool(np.isnan(jobs.remaining_iterations).any())
    if jobs.size > snapshot.cluster.gpus_total and not learned:
        left = snapshot.cluster.gpus_total
        for row in sorted(np.flatnonzero(shares).tolist(), key=lambda row: by_length[row]):
            shares[row] = in_crowd(snapshot, row, left)
            left -= shares[row]
    served = [row for row in range(jobs.size) if shares[row]]
    largest = {row: largest_share(snapshot, row, shares[row]) for row in served}
    if sum(largest[row] - shares[row] for row in served) <= left:
        return [largest.get(row, 0) for row in range(jobs.size)]  # however little they gain
    longest = sorted(served, key=lambda row: by_length[row], reverse=True)
    if learned:
        q = 1.0 + 0.4 * (q - 1.0)
    weight = {
        row: (float(i) ** q - float(i - 1) ** q) ** (1.0 / q) for i, row in enumerate(longest, 1)
    }
    if 6 * jobs.size >= snapshot.cluster.gpus_total:  # speed-ups are relative to the minimum
        for row in served:
            least_s = snapshot.speeds.step_s[jobs.curve[row], jobs.gpus_min[row]]
            weight[row] /= damped(float(1.0 / least_s))
    while left > 0:
        steps = {row: step(snapshot, row, shares[row], left, calm) for row in served}
        best = max(served, key=lambda row: (steps[row][0] * weight[row], -row), default=None)
        if best is None or steps[best][1] == 0:
            break
        shares[best] += steps[best][1]
        left -= steps[best][1]
    return shares


def in_crowd(snapshot: Snapshot, row: int, left: int) -> int:
    """The share of a row that delays all jobs least; one that it does not have, by a fifth."""
    jobs, gpus = snapshot.jobs, snapshot.cluster.gpus_total
    step_s, useful = (
        each[jobs.curve[row]] for each in (snapshot.speeds.step_s, snapshot.speeds.useful)
    )
    least, present = jobs.gpus_min[row], max(jobs.gpus_min[row], jobs.gpus[row])
    shares = [least, *(x for x in np.flatnonzero(useful) if x > least)][:8]
    fits = [int(x) for x in shares if x <= min(left, jobs.gpus_max[row])]
    delay_s = {x: (1.0 + 2.0 * jobs.size / gpus * x) * step_s[x] for x in fits}
    return min(fits, key=lambda x: delay_s[x] * (1.0 if x == present else 1.2), default=0)


def largest_share(snapshot: Snapshot, row: int, share: int) -> int:
    """The largest share that a row can use."""
    jobs, useful = snapshot.jobs, np.flatnonzero(snapshot.speeds.useful[snapshot.jobs.curve[row]])
    return int(max(share, useful[useful <= jobs.gpus_max[row]].max()))


@pytest.mark.parametrize(("q", "calm"), [(1.0, 0.0), (1.5, 0.05), (3.0, 0.3)])
@given(snapshot=snapshots())
@SETTINGS
def test_shares_equal_a_plain_scan(q: float, calm: float, snapshot: Snapshot) -> None:
    answer = policy_from(f"ranked-speedup:q={q},calm={calm}")(snapshot)
    assert answer.gpus.tolist() == plainly(snapshot, q, calm)


# Without a price the seven GPUs would be dealt 3 and 4, as above; of eight, 4 and 4.
HELD = [replace(TWO[0], holds=4), replace(TWO[1], holds=3)]
CALM = {
    "a job keeps its share where another would gain little more": Case(
        7, HELD, {"a": 4, "b": 3}, "ranked-speedup",
    ),
    "and gives it up without a price": Case(7, HELD, {"a": 3, "b": 4}, "ranked-speedup:calm=0"),
    "or where the other gains much more": Case(
        # b: 0.85 (0.9 less its price), 0.8, 0.7; a: 0.897, 0.598. In order: a, b, b, b.
        6, [HELD[0], replace(TWO[1], holds=1, step_s=tuple(at(1.0, 1.9, 2.7, 3.4)))],
        {"a": 2, "b": 4}, "ranked-speedup",
    ),
    "an idle GPU stays idle where it gains too little": Case(
        2, [job("a", 1, 3, step_s=at(1.0, 1.04, 1.08), holds=1)], {"a": 1}, "ranked-speedup",
    ),
    "a new job has no price": Case(
        2, [job("a", 1, 3, step_s=at(1.0, 1.04, 1.08))], {"a": 2}, "ranked-speedup",
    ),
    "a long pause must pay off within ten minutes": Case(
        # 90 s of 600 s are 15 %.
        2, [job("a", 1, 3, step_s=at(1.0, 1.14, 1.2), holds=1, left=9e9, pause_s=90)],
        {"a": 1}, "ranked-speedup",
    ),
    "and a short one may": Case(
        2, [job("a", 1, 3, step_s=at(1.0, 1.14, 1.2), holds=1, left=9e9, pause_s=60)],
        {"a": 2}, "ranked-speedup",
    ),
    "or before the job ends": Case(
        2, [job("a", 1, 3, step_s=at(1.0, 1.14, 1.2), holds=1, left=100, pause_s=30)],
        {"a": 1}, "ranked-speedup",
    ),
}  # fmt: skip
# Of eight GPUs, an equal share is four. LONG is 1.16 times as fast there as with three.
FAIR = {
    "the shorter one takes all": Case(
        8, [job("a", 1, 7, left=10), job("b", step_s=LONG, left=1000)],
        {"a": 7, "b": 1}, "ranked-speedup",
    ),
    "unless the other would be much slower than with an equal share": Case(
        8, [job("a", 1, 7, left=10), job("b", step_s=LONG, left=1000)],
        {"a": 5, "b": 3}, "ranked-speedup:rho=1.2",
    ),
    "at all": Case(
        8, [job("a", 1, 7, left=10), job("b", step_s=LONG, left=1000)],
        {"a": 4, "b": 4}, "ranked-speedup:rho=1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", [*CALM.values(), *FAIR.values()], ids=[*CALM, *FAIR])
def test_resizes_have_a_price_and_shares_a_floor(case: Case) -> None:
    assert case.got == case.want


@given(snapshot=snapshots())
@SETTINGS
def test_by_kind_is_the_plain_rule_where_there_is_one_kind(snapshot: Snapshot) -> None:
    policy = policy_from("ranked-speedup:calm=0")  # resizes have no price by kind
    assert isinstance(policy, KindPolicy)
    assert policy.by_kind(snapshot).gpus.tolist() == policy(snapshot).gpus.tolist()


KINDS: dict[str, tuple[dict[str, int], list[tuple[JobRow, tuple[float, float]]], list[list[int]]]]
KINDS = {
    "the fast GPU goes to whom it does most for": (
        # a gains 1 - 1/2, damped 0.455, times 1.495 as it is the shorter; b 1 - 1/8, damped 0.838.
        {"slow": 1, "fast": 1},
        [(job("a", 1, 1, left=8), (2, 1)), (job("b", 1, 1, left=80), (8, 1))],
        [[1, 0], [0, 1]],
    ),
    "to the shorter one, if it gains nearly as much": (
        # 1.495 x 0.618 against 0.838.
        {"slow": 1, "fast": 1},
        [(job("a", 1, 1, left=8), (3, 1)), (job("b", 1, 1, left=80), (8, 1))],
        [[0, 1], [1, 0]],
    ),
    "under overload the shortest are served": (
        {"fast": 1, "slow": 1},
        [
            (job("a", 1, 1, left=90), (1, 9)),
            (job("b", 1, 1, left=5), (1, 1)),
            (job("c", 1, 1, left=7), (1, 3)),
        ],
        [[0, 0], [0, 1], [1, 0]],
    ),
    "a step over a kink takes GPUs of one kind": (
        {"fast": 4, "slow": 1},
        [(KINK[0], (1, 4)), (job("b", 1, 1, left=5000), (1, 4))],
        [[4, 0], [0, 1]],
    ),
}


@pytest.mark.parametrize(("gpus", "rows", "want"), KINDS.values(), ids=KINDS.keys())
def test_gpus_of_several_kinds(
    gpus: dict[str, int], rows: list[tuple[JobRow, tuple[float, float]]], want: list[list[int]]
) -> None:
    assert policy_from("ranked-speedup")(mixed(gpus, rows)).by_kind.tolist() == want


def test_a_job_without_gpus_is_told_why() -> None:
    answer = policy_from("ranked-speedup")(snapshot_of(1, [job("a", left=9), job("b", left=5)]))
    why = answer.waiting.of(0)
    assert why is not None
    assert why.sentence == "no GPU is free; jobs with less remaining work hold the GPUs"


@pytest.mark.parametrize("q", [0.5, 1.5, 300.0])
def test_weights_are_those_of_the_formula_for_any_q(q: float) -> None:
    assert weight_at(q, 1) == 1.0
    assert weight_at(q, 3) == pytest.approx((3.0**q - 2.0**q) ** (1.0 / q))
    assert weight_at(q, 1023) >= 1.0 if q >= 1.0 else weight_at(q, 1023) > 0.0

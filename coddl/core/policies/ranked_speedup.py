"""Ranked Speedup: the next GPU where speed-up rises most, weighted by how short the job is.

For jobs that all speed up as GPUs^p, and with no arrivals, the shares with the least mean
completion time depend on the order of remaining lengths alone (heSRPT; Berg, Vesilo,
Harchol-Balter, Performance Evaluation 2020). Handing out GPUs by marginal speed-up gives just these
shares if the i-th longest job counts w_i = (i^q - (i-1)^q)^(1/q) times, with q = 1/(1-p). Here the
same is done on the measured curves, whatever their shape, and speed-ups count to the power of 7/8:
others arrive, so that it pays to have fewer jobs far ahead. While jobs are few and GPUs are many,
their logarithms count, as none of the jobs has to wait for another (ADR 19).

Where jobs outnumber GPUs the shortest go first. One with x GPUs delays itself by its time, and the
others by x times that; it has the share for which the sum of both is least. It has its minimum
where lengths are learned, as their order is uncertain, or where shares are to be fair.

A resize has a price: any share but the one that a job holds counts for less, so that a change is
made only where it gains more.
"""

from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Annotated, Final, Literal

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn
from coddl.core.compiling import ONE, ZERO, kernel, part
from coddl.core.heaps import ValuedRows, make_valued_heap, sink_valued
from coddl.core.jobs import CURVE, GPUS, GPUS_MAX, GPUS_MIN, PAUSE_S
from coddl.core.kernels import (
    SKIP,
    RankedRows,
    empty_ranking,
    fill_in_order,
    grant_minimum,
    grow_all,
    seconds_left,
)
from coddl.core.named import Meaning
from coddl.core.policies.kinds import (
    STEPS_AHEAD,
    TIE,
    WEIGHTED,
    WEIGHTED_LOG,
    GpuKinds,
    KindPolicy,
    Served,
    dealt,
)
from coddl.core.policies.policy import parameters
from coddl.core.policies.residual import guess_lengths, next_level_s
from coddl.core.snapshot import KernelSnapshot, Snapshot

# params, twice: for lengths that are known, and for learned ones. Behind them the weights of the
# first ranks, so that no loop computes powers.
Q, LEARNED, CALM, RHO, WEIGHTS = range(5)
KNOWN_RANKS: Final = 1024
TRUST: Final = 0.4  # part of q - 1 that holds where lengths are learned: their order is uncertain
PAYBACK_S: Final = 600.0  # in which a resize has to make up for its pause, or else until the end
ROOMY: Final = 6  # GPUs per job beyond which there is room for all
DELAYED: Final = 2.0  # jobs that a job delays per job present: as many arrive as are there
CLEARLY: Final = 0.33  # part by which a share must be better under overload: speeds are predictions
SHRINKING: Final = 2.0  # resizes that it takes to shrink for another job: this one and that one's


@part
def known_left_s(snapshot: KernelSnapshot, params: FloatColumn, row: int) -> float:
    """Time left at the minimum as the job says; endless where that is unknown or not asked for."""
    least = snapshot.jobs.ints[GPUS_MIN, row]
    return np.inf if params[LEARNED] > 0.0 else seconds_left(snapshot, row, least)


@part
def rank_rows(snapshot: KernelSnapshot, params: FloatColumn) -> tuple[RankedRows, bool]:
    """Line up all rows, the shortest first: by time left at the minimum, known or learned; tell
    whether that of any is learned.
    """
    size = snapshot.rows.shape[0]
    ranked, unknown = empty_ranking(ONE, size), ZERO
    for k in range(size):
        row = snapshot.rows[k]
        ranked.need[k] = snapshot.jobs.ints[GPUS_MIN, row]
        ranked.holds[k] = snapshot.jobs.ints[GPUS, row] > 0
        ranked.keys[0, k] = known_left_s(snapshot, params, row)
        unknown += int(ranked.keys[0, k] == np.inf)
    if unknown > 0:
        guess_lengths(snapshot, ranked.keys[0])
    return ranked, unknown > 0


@part
def wake_s(snapshot: KernelSnapshot, params: FloatColumn, shares: IntColumn) -> float:
    """When the guess of a length that is unknown may have become another."""
    soonest_s = np.inf
    for k in range(snapshot.rows.shape[0]):
        row = snapshot.rows[k]
        if shares[k] > 0 and known_left_s(snapshot, params, row) == np.inf:
            soonest_s = min(soonest_s, next_level_s(snapshot, row, shares[k]))
    return soonest_s


def weight_at(q: float, rank: int) -> float:
    """What the job of this rank counts; the longest has rank 1."""
    if q == 1.0:
        return 1.0  # without rounding, so that ties stay ties
    part = (rank - 1.0) / rank  # rank**q would be too large for a large q
    return float(rank * (1.0 - part**q) ** (1.0 / q))


weight_part = part(weight_at)


@cache
def first_weights(q: float) -> tuple[float, ...]:
    """What the jobs of the first ranks count."""
    return tuple(weight_at(q, rank) for rank in range(1, KNOWN_RANKS))


@part
def weigh_served(
    ranked: RankedRows, learned: bool, both: FloatColumn, shares: IntColumn
) -> FloatColumn:
    """The weight of each row that has a share, by its rank among these from the longest on."""
    half = both.shape[0] // 2
    params = both[half:] if learned else both[:half]
    size, count = ranked.need.shape[0], ZERO
    weights, longest = np.zeros(size), ValuedRows(np.empty(size), np.empty(size, np.int64))
    for k in range(size):
        if shares[k] > 0:
            # Of equal lengths the one submitted last counts as the longest.
            longest.values[count], longest.rows[count] = ranked.keys[0, k], -k
            count += 1
    make_valued_heap(longest, count)
    for i in range(1, count + 1):
        at, last = WEIGHTS + i - 1, count - i
        known = at < params.shape[0]
        weights[-longest.rows[0]] = params[at] if known else weight_part(params[Q], i)
        longest.values[0], longest.rows[0] = longest.values[last], longest.rows[last]
        sink_valued(longest, ZERO, last)
    return weights


@part
def is_roomy(snapshot: KernelSnapshot) -> bool:
    """Tell whether GPUs are so many that no job has to wait for another."""
    return bool(ROOMY * snapshot.rows.shape[0] < snapshot.gpus)


@part
def resize_price(snapshot: KernelSnapshot, params: FloatColumn, row: int) -> float:
    """What a resize of a row that holds GPUs costs, in what speed-ups count.

    A part of its present speed: `calm`, or, where that is more, what the pause takes of the time in
    which the resize has to pay off.
    """
    jobs, held = snapshot.jobs, snapshot.jobs.ints[GPUS, row]
    step_s = snapshot.step_s[jobs.ints[CURVE, row]]
    if params[CALM] == 0.0 or held == 0:
        return 0.0
    held, within_s = min(held, step_s.shape[0] - 1), PAYBACK_S
    if params[LEARNED] == 0.0:
        within_s = max(1.0, min(PAYBACK_S, seconds_left(snapshot, row, held)))
    lost = max(params[CALM], jobs.floats[PAUSE_S, row] / within_s)
    # A part of a speed is the same difference of logarithms anywhere.
    return float(
        lost if is_roomy(snapshot) else lost * snapshot.steps.power[jobs.ints[CURVE, row], held]
    )


@part
def best_step(
    snapshot: KernelSnapshot, k: int, share: int, left: int, price: float
) -> tuple[int, float]:
    """The share to grow to with at most `left` more GPUs, and what that gains per GPU, less the
    price of a resize; 0 if no share helps.
    """
    row = snapshot.rows[k]
    curve, held = snapshot.jobs.ints[CURVE, row], snapshot.jobs.ints[GPUS, row]
    steps, next_share = snapshot.steps, snapshot.steps.next[curve]
    worth = steps.log[curve] if is_roomy(snapshot) else steps.power[curve]
    now, to, most = worth[share], ZERO, 0.0
    if share != held:
        now -= price if share > held else SHRINKING * price
    limit = min(snapshot.jobs.ints[GPUS_MAX, row], share + left)
    following = share
    for _ in range(STEPS_AHEAD):
        following = next_share[following]
        if following == 0 or following > limit:
            break
        rise, added = worth[following] - now, following - share
        if following != held:
            rise -= price if following > held else SHRINKING * price
        if rise > most * TIE * added:
            to, most = following, rise / added
    return to, most


@part
def grow_towards_equal(snapshot: KernelSnapshot, rho: float, left: int, shares: IntColumn) -> int:
    """Let each row with GPUs grow until a step takes at most `rho` times what it would with an
    equal share; return what is left.
    """
    size = snapshot.rows.shape[0]
    equal = snapshot.gpus // size
    for k in range(size):
        row = snapshot.rows[k]
        curve = snapshot.jobs.ints[CURVE, row]
        step_s, share = snapshot.step_s[curve], shares[k]
        most = min(equal, snapshot.jobs.ints[GPUS_MAX, row], step_s.shape[0] - 1)
        most = snapshot.steps.last[curve, most]
        while 0 < share < most and step_s[share] > rho * step_s[most]:
            share = snapshot.steps.next[curve, share]
        if share - shares[k] <= left:
            left -= share - shares[k]
            shares[k] = share
    return left


@part
def share_in_crowd(
    snapshot: KernelSnapshot, row: int, present: int, delayed: float, most: int
) -> int:
    """The share of at most `most` GPUs at which a job's work delays all jobs least; 0: none fits.

    An iteration takes step_s[x], by which it delays the job itself, and `delayed` others per GPU.
    Another share than the present one must be better by a part.
    """
    curve, share = snapshot.jobs.ints[CURVE, row], snapshot.jobs.ints[GPUS_MIN, row]
    step_s, next_share = snapshot.step_s[curve], snapshot.steps.next[curve]
    to, least_s = ZERO, np.inf
    for _ in range(STEPS_AHEAD):
        if share == 0 or share > most:
            break
        delay_s = (1.0 + delayed * share) * step_s[share]
        if share != present:
            delay_s *= 1.0 + CLEARLY
        if delay_s < least_s:
            to, least_s = share, delay_s
        share = next_share[share]
    return int(to)


@part
def see_content(
    snapshot: KernelSnapshot, delayed: float, shares: IntColumn, content: IntColumn
) -> bool:
    """Find the minimum with which jobs of a curve are content, so that each is not asked, or -1;
    tell whether all rows with GPUs are.
    """
    everyone = True
    for k in range(snapshot.rows.shape[0]):
        if shares[k] > 0:
            row, least = snapshot.rows[k], shares[k]
            curve = snapshot.jobs.ints[CURVE, row]
            if content[curve] == 0:
                best = share_in_crowd(snapshot, row, least, delayed, snapshot.gpus)
                content[curve] = least if best == least else -1
            everyone &= content[curve] == least and snapshot.jobs.ints[GPUS, row] <= least
    return bool(everyone)


@part
def serve_crowd(snapshot: KernelSnapshot, ranked: RankedRows, left: int, shares: IntColumn) -> int:
    """Let the shortest of the rows with GPUs have more than their minimum where that delays all
    less than that the longest of them run; return what is left.
    """
    size, count = snapshot.rows.shape[0], ZERO
    delayed, content = DELAYED * size / snapshot.gpus, np.zeros(snapshot.step_s.shape[0], np.int64)
    if see_content(snapshot, delayed, shares, content):
        return left
    shortest, left = ValuedRows(np.empty(size), np.empty(size, np.int64)), snapshot.gpus
    for k in range(size):
        if shares[k] > 0:
            shortest.values[count], shortest.rows[count] = -ranked.keys[0, k], k
            count += 1
            shares[k] = 0
    make_valued_heap(shortest, count)
    while left > 0 and count > 0:
        k = shortest.rows[0]
        row = snapshot.rows[k]
        least, held = ranked.need[k], snapshot.jobs.ints[GPUS, row]
        if held <= least and content[snapshot.jobs.ints[CURVE, row]] == least:
            shares[k] = least if least <= left else 0
        else:
            most = min(snapshot.jobs.ints[GPUS_MAX, row], left)
            shares[k] = share_in_crowd(snapshot, row, max(held, least), delayed, most)
        left -= shares[k]
        count -= 1
        shortest.values[0], shortest.rows[0] = shortest.values[count], shortest.rows[count]
        sink_valued(shortest, ZERO, count)
    return left


@part
def serve_shortest(
    snapshot: KernelSnapshot, ranked: RankedRows, only_minima: bool, shares: IntColumn
) -> int:
    """Give the shortest what they have before others grow; return what is left."""
    left = fill_in_order(ranked, snapshot.gpus, SKIP, shares)
    if snapshot.rows.shape[0] > snapshot.gpus and not only_minima:
        left = serve_crowd(snapshot, ranked, left, shares)
    return left


@part
def grow_by_weight(
    snapshot: KernelSnapshot,
    params: FloatColumn,
    weights: FloatColumn,
    left: int,
    shares: IntColumn,
) -> None:
    """Hand out `left` GPUs, each where weight times gain is largest, ties to the job submitted
    first.
    """
    size, count, roomy = snapshot.rows.shape[0], ZERO, is_roomy(snapshot)
    ints, floats = np.empty((2, size), np.int64), np.empty((2, size))
    heap, to, price = ValuedRows(floats[0], ints[0]), ints[1], floats[1]
    for k in range(size):
        if shares[k] > 0:
            row = snapshot.rows[k]
            price[k] = resize_price(snapshot, params, row)
            if not roomy:  # speed-ups are relative to the minimum
                least = snapshot.jobs.ints[GPUS_MIN, row]
                weights[k] /= snapshot.steps.power[snapshot.jobs.ints[CURVE, row], least]
            to[k], gain = best_step(snapshot, k, shares[k], left, price[k])
            if to[k] > 0:
                heap.values[count], heap.rows[count] = weights[k] * gain, k
                count += 1
    make_valued_heap(heap, count)
    while left > 0 and count > 0:
        k = heap.rows[0]
        added = to[k] - shares[k]
        if added <= left:  # else it may be content with a smaller step
            shares[k] += added
            left -= added
        to[k], gain = best_step(snapshot, k, shares[k], left, price[k])
        if to[k] > 0:
            heap.values[0] = weights[k] * gain
        else:
            count -= 1
            heap.values[0], heap.rows[0] = heap.values[count], heap.rows[count]
        sink_valued(heap, ZERO, count)


@kernel
def ranked_speedup(
    snapshot: KernelSnapshot, params: FloatColumn, memory: FloatMatrix, shares: IntColumn
) -> float:
    """The shortest get their minimum, then every further GPU goes where it gains most."""
    left = grant_minimum(snapshot, shares)
    if left == 0 or (left > 0 and grow_all(snapshot, left, shares)):
        return np.inf
    crowded = left < 0
    ranked, learned = rank_rows(snapshot, params)
    if crowded:
        left = serve_shortest(snapshot, ranked, learned or params[RHO] > 0.0, shares)
    if left > 0 and params[RHO] > 0.0:
        left = grow_towards_equal(snapshot, params[RHO], left, shares)
    if left > 0 and not grow_all(snapshot, left, shares):
        weights = weigh_served(ranked, learned, params, shares)
        grow_by_weight(snapshot, params, weights, left, shares)
    return wake_s(snapshot, params, shares) if crowded and learned else np.inf


@kernel
def serve_by_rank(snapshot: KernelSnapshot, params: FloatColumn, shares: IntColumn) -> FloatColumn:
    """Give the shortest their claims; return the weights of those that have one."""
    ranked, learned = rank_rows(snapshot, params)
    left = serve_shortest(snapshot, ranked, learned or params[RHO] > 0.0, shares)
    if left > 0 and params[RHO] > 0.0:
        grow_towards_equal(snapshot, params[RHO], left, shares)
    return weigh_served(ranked, learned, params, shares)


@dataclass(frozen=True)
class RankedSpeedup(KindPolicy):
    """Gives the next GPU to the job whose speed-up rises most, where shorter jobs count more by
    their rank; learns lengths that it is not told from the jobs that have ended.

    Partial share · under overload, shortest first with the share that delays all least · cap: the
    model's largest useful share.
    """

    q: Annotated[
        float,
        "above 0",
        Meaning(
            "how much more short jobs count: the i-th longest (i^q - (i-1)^q)^(1/q) times; where "
            "lengths are learned, with 0.4 of q - 1"
        ),
    ] = 1.5
    calm: Annotated[
        float,
        Meaning(
            "least gain in speed for which a running job is resized; 0: any, and resizes cost "
            "nothing"
        ),
    ] = 0.05
    rho: Annotated[
        float,
        Meaning(
            "how much slower than with an equal share a job with GPUs may be, as in 1.2; "
            "0: no limit"
        ),
    ] = 0.0
    lengths: Annotated[
        Literal["known", "learned"],
        Meaning("known: as jobs tell them, learned where they don't; learned: for all jobs"),
    ] = "known"
    kinds: GpuKinds = "auto"

    rule = staticmethod(ranked_speedup)
    why = "jobs with less remaining work hold the GPUs"
    learns = True

    @property
    def parameters(self) -> FloatColumn:
        learned = float(self.lengths == "learned")
        qs = self.q, 1.0 + TRUST * (self.q - 1.0)
        both = ((q, learned, self.calm, self.rho, *first_weights(q)) for q in qs)
        return parameters(*chain.from_iterable(both))

    def by_kind(self, snapshot: Snapshot) -> Allocation:
        """The shortest have a claim, to their minimum unless jobs outnumber GPUs; weighted gains
        decide who gets which GPUs.

        Resizes have no price here: a job may keep its share and change the kinds.
        """
        jobs = snapshot.jobs
        claim = np.zeros(jobs.size, np.int64)
        picture = snapshot.for_kernels(learns=True)
        weights = serve_by_rank(picture, self.parameters, claim)
        everyone = Served(np.arange(jobs.size), claim, np.ones(jobs.size, np.bool_), weights)
        if ROOMY * jobs.size < snapshot.cluster.gpus_total:
            return Allocation(dealt(snapshot, everyone, WEIGHTED_LOG))
        scale = weights / snapshot.speeds.steps.power[jobs.curve, jobs.gpus_min]
        return Allocation(dealt(snapshot, everyone._replace(scale=scale), WEIGHTED))

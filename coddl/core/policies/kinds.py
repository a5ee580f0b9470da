"""Shares by kind of GPU, for policies that know how fast each is: which jobs get the fast ones.

GPUs are dealt kind by kind, the fastest first. A job that is served starts with a claim to its
minimum, as if of the slowest kind. So it competes for a faster kind with what that gains over the
slowest, and for further GPUs with what one more gains, in the same duels. No GPU is dealt that the
claims of others need.

On n GPUs, of which n_k are of kind k, with factor_k on the step time, a job is as fast as the
table says of n, times the mean of 1/factor: its batch is shared in proportion to speed (see
`places.mix`). It lies on as few nodes as can be: two kinds are two nodes at least, which has its
own factor.
"""

from abc import abstractmethod
from math import log
from typing import Annotated, Final, Literal, NamedTuple

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.columns import BoolColumn, FloatColumn, FloatMatrix, IntColumn, IntMatrix
from coddl.core.compiling import ZERO, kernel, kernel_int, part
from coddl.core.kernels import COIN, Contenders, beats, leave
from coddl.core.named import Meaning
from coddl.core.policies.policy import RulePolicy, with_reasons
from coddl.core.snapshot import Snapshot
from coddl.core.speed.places import Places
from coddl.core.speed.table import damped

# Next to LENGTH and COIN: the next GPU goes to the job with least, or where weight x gain is
# largest, the gain in damped speed or in its logarithm.
LEAST, WEIGHTED, WEIGHTED_LOG = 3, 4, 5
STEPS_AHEAD: Final = 8  # useful shares that WEIGHTED looks at, so that no kink in a curve is a wall
TIE: Final = 1.0 + 1e-12  # a larger step must gain more than rounding does
NO_KIND = kernel_int(-1)
PASSES_MAX: Final = 8  # of moves; each makes a job faster and none slower, so few are left to make


class KindShares(NamedTuple):
    """The jobs that GPUs are dealt to, in the order in which they go first where they are equal."""

    shares: IntMatrix  # [jobs, kinds], what they have been dealt
    claim: IntColumn  # GPUs that they are to have and were not dealt yet
    least: IntColumn  # the smallest share that they may have
    limit: IntColumn  # the largest; 0: no more than their claim
    curve: IntColumn
    scale: FloatColumn  # what gains count, where they are weighted
    iterations: FloatColumn  # left to do
    step_s: FloatMatrix
    next_share: IntMatrix
    places: Places
    node_gpus: IntColumn  # by kind, of its largest node


class FreeByKind(NamedTuple):
    """What is left to deal."""

    order: IntColumn  # the kinds that there are, the fastest first
    free: IntColumn  # by kind
    spare: IntColumn  # [0]: GPUs beyond all claims


@part
def worth_of(speed: float, logarithmic: bool) -> float:
    """What a speed counts where gains are weighted."""
    return log(speed) if logarithmic else damped(speed)


@part
def factor(table: KindShares, k: int, kind: int) -> float:
    """How many times as long as the table says a step takes on this kind."""
    kinds = table.places.kinds
    return float(kinds[table.curve[k], min(kind, kinds.shape[1] - 1)])


@part
def effective_gpus(table: KindShares, k: int, kind: int, more: int) -> float:
    """A job's GPUs with `more` GPUs of a kind, counted in GPUs of the table's kind."""
    effective = more / factor(table, k, kind) if more > 0 else 0.0
    for each in range(table.shares.shape[1]):
        effective += table.shares[k, each] / factor(table, k, each)
    return float(effective)


@part
def nodes_for(table: KindShares, kind: int, gpus: int) -> int:
    """The fewest nodes that hold `gpus` GPUs of a kind."""
    return int((gpus + table.node_gpus[kind] - 1) // table.node_gpus[kind]) if gpus > 0 else 0


@part
def speed_at(table: KindShares, k: int, gpus: int, nodes: int, effective: float) -> float:
    """Iterations per second of a job on these GPUs and nodes; `effective` weighs GPUs by kind."""
    curve, factors = table.curve[k], table.places.nodes
    step_s = table.step_s[curve, min(gpus, table.step_s.shape[1] - 1)]
    step_s *= factors[curve, min(gpus, factors.shape[1] - 1), min(nodes, factors.shape[2] - 1)]
    return float(effective / (gpus * step_s)) if gpus > 0 else 0.0


@part
def speed(table: KindShares, k: int, kind: int, more: int) -> float:
    """Iterations per second of a job with `more` GPUs of a kind added."""
    gpus, nodes = ZERO, ZERO
    for each in range(table.shares.shape[1]):
        here = table.shares[k, each] + (more if each == kind else 0)
        gpus += here
        nodes += nodes_for(table, each, here)
    return speed_at(table, k, gpus, nodes, effective_gpus(table, k, kind, more))


@part
def wants(table: KindShares, k: int) -> int:
    """How many GPUs a job's next step takes: its whole claim, or up to its next useful share."""
    if table.claim[k] > 0:
        return int(table.claim[k])
    gpus = table.shares[k].sum()
    following = table.next_share[table.curve[k], min(gpus, table.next_share.shape[1] - 1)]
    return int(following - gpus) if 0 < following <= table.limit[k] and gpus > 0 else 0


@part
def best_step(table: KindShares, free_gpus: FreeByKind, rule: int, k: int, kind: int) -> int:
    """How many GPUs of a kind a job should grow by, for the largest gain per GPU; 0: by none.

    A claim is one step. Only steps that fit are looked at.
    """
    claim, left = table.claim[k], free_gpus.free[kind]
    if claim > 0:
        return int(claim) if claim <= left else 0
    gpus = table.shares[k].sum()
    following, left = gpus, min(left, free_gpus.spare[0])
    now, best_more, most = 0.0, ZERO, 0.0
    if gpus > 0:
        now = worth_of(speed(table, k, kind, ZERO), rule == WEIGHTED_LOG)
    for _ in range(STEPS_AHEAD * (gpus > 0)):
        following = table.next_share[table.curve[k], min(following, table.next_share.shape[1] - 1)]
        if not 0 < following <= min(table.limit[k], gpus + left):
            break
        then = worth_of(speed(table, k, kind, following - gpus), rule == WEIGHTED_LOG)
        gain = (then - now) / (following - gpus)
        if gain > most * TIE:
            best_more, most = following - gpus, gain
    return int(best_more)


@part
def weigh(
    table: KindShares, free_gpus: FreeByKind, them: Contenders, rule: int, x: int, kind: int
) -> bool:
    """Bring entry x up to date for a step with this kind; False if that does not help it."""
    k = them.at[x]
    more = best_step(table, free_gpus, rule, k, kind) if rule >= WEIGHTED else wants(table, k)
    claim, slowest = table.claim[k], free_gpus.order[-1]
    now, then = speed(table, k, slowest, claim), speed(table, k, kind, more)
    if more == 0 or not then > now:
        return False
    them.limit[x] = more
    them.short[x] = (then - now) / now / more
    them.long[x] = (then - now) / then / more
    if rule == LEAST:
        them.length[x] = effective_gpus(table, k, slowest, claim)
    elif rule >= WEIGHTED:
        gain = worth_of(then, rule == WEIGHTED_LOG) - worth_of(now, rule == WEIGHTED_LOG)
        them.length[x] = -gain * table.scale[k] / more
    else:
        left = table.iterations[k]
        them.length[x] = left / now if left >= 0.0 else np.inf
        them.below[x] = left / then if left >= 0.0 else np.inf
    return True


@part
def beats_by_far(them: Contenders, rule: int, x: int, champion: int) -> bool:
    """Return whether x takes the next GPUs from the champion if they may change which ends first.

    The AFS rule supposes that the shorter job ends first, whichever gets them. That is not so where
    a step makes a job ten times as fast. Let l be the seconds left now and r = p'/p. If the longer
    job b would end with them before the shorter one a does without, b should have them first, for
    the least sum of both completion times, if l_a (r_b - 1) > l_b (r_a - 1). Unknown lengths count
    as equal.
    """
    if rule == COIN:
        return bool(them.short[x] > them.short[champion])
    shorter = them.length[x] < them.length[champion]
    a, b = (x, champion) if shorter else (champion, x)
    if them.below[b] < them.length[a]:
        longer_wins = them.short[b] * them.length[a] > them.short[a] * them.length[b]
    else:
        longer_wins = them.long[b] >= them.short[a]
    return bool(longer_wins != shorter)


@part
def best(them: Contenders, rule: int, by_far: bool, count: int) -> int:
    """The row that gets the next GPUs: the champion of a pass of duels, or the first with least."""
    champion = ZERO
    for x in range(1, count):
        if rule >= LEAST:
            wins = them.length[x] < them.length[champion]
        elif by_far:
            wins = beats_by_far(them, rule, x, champion)
        else:
            wins = beats(them, rule, x, champion)
        if wins:
            champion = x
    return int(champion)


@part
def give(table: KindShares, free_gpus: FreeByKind, k: int, kind: int, gpus: int) -> None:
    """Deal GPUs of a kind to a job, towards its claim or beyond."""
    table.shares[k, kind] += gpus
    free_gpus.free[kind] -= gpus
    if table.claim[k] > 0:
        table.claim[k] -= gpus
    else:
        free_gpus.spare[0] -= gpus


@part
def deal_kind(
    table: KindShares, free_gpus: FreeByKind, them: Contenders, rule: int, kind: int, by_far: bool
) -> None:
    """Deal the GPUs of one kind, step by step, to those that it makes faster."""
    count = ZERO
    for k in range(table.claim.shape[0]):
        them.at[count] = k
        if weigh(table, free_gpus, them, rule, count, kind):
            count += 1
    while free_gpus.free[kind] > 0 and count > 0:
        x = best(them, rule, by_far, count)
        k = them.at[x]
        more = them.limit[x]
        fits = more <= free_gpus.free[kind] and (table.claim[k] > 0 or more <= free_gpus.spare[0])
        if fits:
            give(table, free_gpus, k, kind, more)
        # A smaller step, that fits, may gain something too.
        again = fits or rule >= WEIGHTED
        if not (again and weigh(table, free_gpus, them, rule, x, kind)):
            count -= 1
            leave(them, x, count)


@part
def settle(table: KindShares, free_gpus: FreeByKind, k: int) -> None:
    """Give a job what it has a claim to: of the kind that makes it fastest, or of several."""
    chosen, fastest = NO_KIND, -1.0
    for kind in free_gpus.order:
        if free_gpus.free[kind] >= table.claim[k]:
            then = speed(table, k, kind, table.claim[k])
            if then > fastest:
                chosen, fastest = kind, then
    if chosen >= 0:
        give(table, free_gpus, k, chosen, table.claim[k])
    for kind in free_gpus.order:
        some = min(free_gpus.free[kind], table.claim[k])
        if some > 0:
            give(table, free_gpus, k, kind, some)


@part
def move(table: KindShares, free_gpus: FreeByKind, k: int) -> bool:
    """Let a job change all it has for more of a single kind, if that makes it faster."""
    gpus = table.shares[k].sum()
    fastest, to_kind, to_gpus = speed(table, k, free_gpus.order[0], ZERO), NO_KIND, ZERO
    for kind in free_gpus.order:
        at, most = ZERO, min(table.limit[k], free_gpus.free[kind] + table.shares[k, kind])
        while gpus > 0 and (at == 0 or at <= most):
            if at >= table.least[k]:
                nodes = nodes_for(table, kind, at)
                then = speed_at(table, k, at, nodes, at / factor(table, k, kind))
                if then > fastest:
                    fastest, to_kind, to_gpus = then, kind, at
            at = table.next_share[table.curve[k], at]
            if at == 0:
                break
    if to_kind < 0:
        return False
    for kind in free_gpus.order:
        free_gpus.free[kind] += table.shares[k, kind]
        table.shares[k, kind] = 0
    free_gpus.spare[0] += gpus
    give(table, free_gpus, k, to_kind, to_gpus)
    return True


@kernel
def deal(table: KindShares, free_gpus: FreeByKind, rule: int, seed: int) -> None:
    """Deal GPUs: the faster kinds by duels, what claims are left, then growth by duels.

    Then jobs that gain by it move to the GPUs that are left, and what is set free is dealt: no job
    loses by that.
    """
    size = table.claim.shape[0]
    ints, floats = np.zeros((4, size + 1), np.int64), np.zeros((4, size + 1))
    coin = ints[3, :1]
    coin[0] = seed
    them = Contenders(ints[0], ints[1], ints[2], floats[0], floats[1], floats[2], floats[3], coin)
    for kind in free_gpus.order[:-1]:
        deal_kind(table, free_gpus, them, rule, kind, True)
    for k in range(size):
        if table.claim[k] > 0:
            settle(table, free_gpus, k)
    for _ in range(PASSES_MAX):
        for kind in free_gpus.order:
            deal_kind(table, free_gpus, them, rule, kind, False)
        moved = False
        for k in range(size):
            moved |= move(table, free_gpus, k)
        if not moved:
            break


class Served(NamedTuple):
    """The jobs that a policy serves, by position in `order`: least shares, and which may grow."""

    order: IntColumn  # rows, in the order that breaks ties of duels
    claim: IntColumn
    grows: BoolColumn
    scale: FloatColumn | None = None  # what gains count, where they are weighted


def first_come(order: IntColumn, need: IntColumn, gpus: int) -> IntColumn:
    """What rows get that are given all they need in this order; what does not fit is skipped."""
    claim = np.zeros(len(order), np.int64)
    for row in order:
        if need[row] <= gpus:
            claim[row] = need[row]
            gpus -= claim[row]
        if gpus == 0:
            break
    return claim


def dealt(snapshot: Snapshot, served: Served, rule: int) -> IntMatrix:
    """Shares by kind of those that are served."""
    jobs, speeds, gpus = snapshot.jobs, snapshot.speeds, snapshot.cluster.gpus
    order, kinds = served.order, np.flatnonzero(gpus)
    shares = np.zeros((jobs.size, len(gpus)), np.int64)
    if len(kinds) == 0 or jobs.size == 0:
        return shares
    factors = speeds.places.kinds[jobs.curve]
    factors = factors[:, np.minimum(kinds, factors.shape[1] - 1)]
    fastest_first = kinds[np.argsort(np.log(factors).mean(axis=0), kind="stable")]
    columns, node_gpus = snapshot.cluster.columns, np.ones(len(gpus), np.int64)
    np.maximum.at(node_gpus, columns.node_kind, columns.node_gpus)
    claim = served.claim[order]
    table = KindShares(
        shares[order],
        claim,
        jobs.gpus_min[order],
        np.where(served.grows, jobs.gpus_max, 0)[order],
        jobs.curve[order],
        np.ones(jobs.size) if served.scale is None else served.scale[order],
        jobs.remaining_iterations[order],
        speeds.step_s,
        speeds.steps.next,
        speeds.places,
        node_gpus,
    )
    spare = np.array([gpus.sum() - claim.sum()])
    deal(table, FreeByKind(fastest_first, gpus.copy(), spare), rule, snapshot.seed)
    shares[order] = table.shares
    return shares


def served_all(snapshot: Snapshot, order: IntColumn) -> Served:
    """Every job has a claim to its minimum and may grow; where GPUs are too few, the first do."""
    jobs = snapshot.jobs
    claim = first_come(order, jobs.gpus_min, snapshot.cluster.gpus_total)
    return Served(order, claim, np.ones(jobs.size, np.bool_))


GpuKinds = Annotated[
    Literal["auto", "ignore"],
    Meaning("auto: shares by kind of GPU where there are several; ignore: as if all were alike"),
]


class KindPolicy(RulePolicy):
    """A policy with a rule for GPUs of one kind, and another where they differ.

    It tells kinds apart where the cluster has several and it is known what a job gains on each;
    `ignore` leaves it to the placement which ones a job gets.
    """

    kinds: GpuKinds

    def __call__(self, snapshot: Snapshot) -> Allocation:
        """Apply the rule for what the cluster has."""
        if self.kinds == "ignore" or not _differ(snapshot):
            return super().__call__(snapshot)
        return with_reasons(snapshot, self.by_kind(snapshot), self.why)

    @abstractmethod
    def by_kind(self, snapshot: Snapshot) -> Allocation:
        """Decide where GPUs differ."""


def _differ(snapshot: Snapshot) -> bool:
    if len(snapshot.cluster.kinds) == 1:
        return False  # and `places`, which may still have to be worked out, are not asked for
    factors = snapshot.speeds.places.kinds
    return bool((factors != factors[:, :1]).any())

"""Apathetic Future Share (AFS, NSDI '21): shortness and efficiency in balance, GPU by GPU."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn
from coddl.core.compiling import ONE, TWO, kernel, part
from coddl.core.heaps import sort_heap
from coddl.core.jobs import FIRST_START_S, GPUS, GPUS_MIN
from coddl.core.kernels import (
    ANY,
    COIN,
    KEEP,
    LENGTH,
    NO_ROW,
    SKIP,
    RankedRows,
    empty_ranking,
    fill_in_order,
    grant_minimum,
    grow_all,
    grow_by_scan,
    grow_by_tournament,
    seconds_left,
    select_first,
)
from coddl.core.named import Meaning
from coddl.core.policies.kinds import (
    GpuKinds,
    KindPolicy,
    Served,
    dealt,
    first_come,
    served_all,
)
from coddl.core.policies.policy import parameters
from coddl.core.policies.quantum import turn_s, with_short_turns
from coddl.core.snapshot import KernelSnapshot, Snapshot, memory_columns

Contest = Annotated[
    Literal["auto", "scan", "tournament"],
    Meaning(
        "scan: exact, O(GPUs x jobs); tournament: O(GPUs x log jobs), may differ a little; "
        "auto: the scan up to four million pairs"
    ),
]
CONTESTS: Final = ("auto", "scan", "tournament")
SCAN_PAIRS: Final = 4_000_000  # "auto" plays a tournament where a scan would compare more
RULE, CONTEST, LEASE_S = range(3)  # params
# What is remembered of a job.
COLUMN = memory_columns(
    "lease_end_s",
    "rounds",  # leases that it has had
)


@part
def grow(snapshot: KernelSnapshot, params: FloatColumn, left: int, shares: IntColumn) -> None:
    """Hand out what is left by AFS duels, in the chosen form of contest."""
    if left == 0 or grow_all(snapshot, left, shares):
        return
    rule, contest = int(params[RULE]), int(params[CONTEST])
    if contest == 2 or (contest == 0 and left * snapshot.rows.shape[0] > SCAN_PAIRS):
        grow_by_tournament(snapshot, rule, left, shares)
    else:
        grow_by_scan(snapshot, rule, left, shares)


@kernel
def afs_l(
    snapshot: KernelSnapshot, params: FloatColumn, memory: FloatMatrix, shares: IntColumn
) -> float:
    """The shortest get their minimum, then every further GPU goes to the winner of the duels."""
    left = grant_minimum(snapshot, shares)
    if left < 0:
        size = snapshot.rows.shape[0]
        ranked = empty_ranking(ONE, size)
        for k in range(size):
            row = snapshot.rows[k]
            ranked.need[k] = snapshot.jobs.ints[GPUS_MIN, row]
            ranked.holds[k] = snapshot.jobs.ints[GPUS, row] > 0
            ranked.keys[0, k] = seconds_left(snapshot, row, ranked.need[k])
        left = fill_in_order(ranked, snapshot.gpus, SKIP, shares)
    grow(snapshot, params, left, shares)
    return np.inf


@dataclass(frozen=True)
class AfsL(KindPolicy):
    """Favours short jobs and jobs that make good use of more GPUs; needs job lengths, like SRTF.

    Partial share · under overload, shortest first with gpus_min each · cap: the model's largest
    useful share.
    """

    contest: Contest = "auto"
    kinds: GpuKinds = "auto"

    rule = staticmethod(afs_l)
    why = "jobs with less remaining work hold the GPUs"

    @property
    def parameters(self) -> FloatColumn:
        return parameters(LENGTH, CONTESTS.index(self.contest))

    def by_kind(self, snapshot: Snapshot) -> Allocation:
        """The shortest have a claim to their minimum; duels decide which job gets which GPUs."""
        jobs = snapshot.jobs
        left_s = np.nan_to_num(snapshot.seconds_left_at(jobs.gpus_min), nan=np.inf)
        claim = served_all(snapshot, np.lexsort((jobs.id, left_s))).claim
        everyone = Served(np.arange(jobs.size), claim, np.ones(jobs.size, np.bool_))
        return Allocation(dealt(snapshot, everyone, LENGTH))


@part
def grow_in_order(
    snapshot: KernelSnapshot, params: FloatColumn, ranked: RankedRows, left: int, shares: IntColumn
) -> None:
    """Hand out what is left in the line's order: the last of a pass with coins have the edge."""
    size = snapshot.rows.shape[0]
    order, rows = np.empty(size, np.int64), np.empty(size, np.int64)
    select_first(ranked, ANY, NO_ROW, size, order)
    sort_heap(order, size, ranked.keys)
    ordered = np.empty(size, np.int64)
    for i in range(size):
        rows[i], ordered[i] = snapshot.rows[order[i]], shares[order[i]]
    jobs, steps, gpus = snapshot.jobs, snapshot.steps, snapshot.gpus
    now_s, seed, history = snapshot.now_s, snapshot.seed, snapshot.history
    lined_up = KernelSnapshot(jobs, rows, snapshot.step_s, steps, gpus, now_s, seed, history)
    grow(lined_up, params, left, ordered)
    for i in range(size):
        shares[order[i]] = ordered[i]


@kernel
def afs_p(
    snapshot: KernelSnapshot, params: FloatColumn, memory: FloatMatrix, shares: IntColumn
) -> float:
    """Leases in turn, and duels that need no lengths."""
    jobs, size = snapshot.jobs, snapshot.rows.shape[0]
    ranked, kept = empty_ranking(TWO, size), np.zeros(size, np.int64)
    crowded = grant_minimum(snapshot, shares) <= 0
    left = snapshot.gpus
    for k in range(size):
        row = snapshot.rows[k]
        ranked.need[k] = jobs.ints[GPUS_MIN, row]
        ranked.holds[k] = jobs.ints[GPUS, row] > 0
        if crowded and jobs.ints[GPUS, row] > 0:
            if memory[row, COLUMN.lease_end_s] <= snapshot.now_s:
                memory[row, COLUMN.rounds] += 1
            elif jobs.ints[GPUS, row] <= left:
                # Its lease runs on: none takes its share, and it takes no more (it needs more
                # than there is).
                kept[k] = jobs.ints[GPUS, row]
                left -= kept[k]
                ranked.need[k] = snapshot.gpus + 1
        ranked.keys[0, k] = memory[row, COLUMN.rounds]
        ranked.keys[1, k] = jobs.floats[FIRST_START_S, row]
    left = fill_in_order(ranked, left, SKIP, shares)
    if left > 0:
        grow_in_order(snapshot, params, ranked, left, shares)
    wake_at_s = np.inf
    for k in range(size):
        if shares[k] + kept[k] > 0:
            row = snapshot.rows[k]
            if shares[k] > 0:
                memory[row, COLUMN.lease_end_s] = snapshot.now_s + params[LEASE_S]
            shares[k] += kept[k]
            wake_at_s = min(wake_at_s, memory[row, COLUMN.lease_end_s])
    return wake_at_s


@dataclass(frozen=True)
class AfsP(KindPolicy):
    """Favours short jobs and jobs that make good use of more GPUs, without knowing lengths: under
    overload jobs take turns, and a random choice is made where lengths would decide.

    Partial share · under overload, least often served first, gpus_min each for one turn · cap: the
    model's largest useful share.
    """

    lease_h: Annotated[
        float,
        "above 0",
        Meaning("hours that a turn lasts: under overload a share is kept this long"),
    ] = 2.0
    tie: Annotated[
        Literal["coin", "keep"],
        Meaning("what lengths would decide: by a coin, or so as to keep the shares jobs hold"),
    ] = "coin"
    contest: Contest = "auto"
    kinds: GpuKinds = "auto"

    rule = staticmethod(afs_p)
    why = "other jobs hold the GPUs until their turns end"
    memory = COLUMN

    @property
    def parameters(self) -> FloatColumn:
        rule = COIN if self.tie == "coin" else KEEP
        return parameters(rule, CONTESTS.index(self.contest), self.lease_h * 3600.0)

    def parameters_for(self, snapshot: Snapshot) -> FloatColumn:
        """With turns as long as they are now."""
        found = self.parameters
        found[LEASE_S] = self._lease_s(snapshot)
        return found

    def _lease_s(self, snapshot: Snapshot) -> float:
        return turn_s(snapshot.jobs, self.lease_h * 3600.0)

    def __call__(self, snapshot: Snapshot) -> Allocation:
        """Take turns, which may have become shorter since they began."""
        most_s = self.lease_h * 3600.0
        return super().__call__(with_short_turns(snapshot, COLUMN.lease_end_s, most_s))

    def by_kind(self, snapshot: Snapshot) -> Allocation:
        """Leases as above; duels without lengths decide which job gets which GPUs."""
        jobs, now_s, total = snapshot.jobs, snapshot.now_s, snapshot.cluster.gpus_total
        memory, kept = snapshot.memory.copy(), np.zeros(jobs.size, np.int64)
        if jobs.gpus_min.sum() >= total:
            over = memory[:, COLUMN.lease_end_s] <= now_s
            memory[(jobs.gpus > 0) & over, COLUMN.rounds] += 1
            # Whose lease runs on keeps how many it has, though perhaps not of which kinds.
            kept = first_come(np.arange(jobs.size), np.where(over, 0, jobs.gpus), total)
        order = np.lexsort((jobs.id, jobs.first_start_s, memory[:, COLUMN.rounds]))
        waits = np.where(kept > 0, total + 1, jobs.gpus_min)
        claim = kept + first_come(order, waits, total - int(kept.sum()))
        shares = dealt(snapshot, Served(order, claim, kept == 0), COIN)
        runs = shares.sum(axis=1) > 0
        memory[runs & (kept == 0), COLUMN.lease_end_s] = now_s + self._lease_s(snapshot)
        wake_at_s = float(memory[runs, COLUMN.lease_end_s].min(initial=np.inf))
        return Allocation(shares, wake_at_s=wake_at_s, memory=memory)

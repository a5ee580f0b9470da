"""From a snapshot to a plan: the policy, around what may not be touched, then places; checked."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from coddl.core.allocation import Allocation, Reasons, because
from coddl.core.cluster import Cluster, Node
from coddl.core.columns import BoolColumn, IntColumn, IntMatrix
from coddl.core.invariants import check
from coddl.core.placement.placement import Placed, Placement, check_placed, on_one_node
from coddl.core.plan import Plan
from coddl.core.policies.policy import Policy
from coddl.core.snapshot import Snapshot
from coddl.core.waiting import counted

ROUNDS_MAX: Final = 4  # of asking the policy anew without the rows for which there is no place


@dataclass(frozen=True, slots=True)
class Stability:
    """How calmly to schedule, whatever the policy. All zero: the policy alone decides."""

    cool_down_s: float = 0.0  # how long a share stays after it has changed
    min_runtime_s: float = 0.0  # how long a job that was started runs at least
    reserve_s: float = 0.0  # how long what was promised to a job is kept for it


@dataclass(frozen=True, slots=True)
class Scheduler:
    """Decides with one policy, for any driver.

    Some rows keep their share whatever the policy says: those that may not be preempted, those
    whose share changed less than `cool_down_s` ago, and those that still wait for what they were
    promised less than `reserve_s` ago, so that no other job takes what was freed for them. Jobs of
    a higher priority are served before the policy sees the others. A job that has started runs for
    at least `min_runtime_s`, if only on its minimum.

    With a placement it says which GPUs, too. If that finds no place for some rows, the policy is
    asked again without them: what they leave may serve others. Since when a row has had a share and
    no place is remembered, as a placement may relax with that.
    """

    policy: Policy
    stability: Stability = Stability()
    placement: Placement | None = None

    def decide(self, snapshot: Snapshot) -> Plan:
        """Return which job is to hold how many GPUs, which, and what has to change for that."""
        aside = np.zeros(snapshot.jobs.size, np.bool_)
        part, reasons, wake_at_s = snapshot, Reasons(), np.inf
        for _ in range(ROUNDS_MAX):
            rows = np.flatnonzero(~aside)
            allocation = self._shares(part)
            if self.placement is None and allocation.slots is None:
                return Plan(snapshot, allocation)
            placed = self._placed(part, allocation)
            wake_at_s = min(wake_at_s, allocation.wake_at_s, placed.wake_at_s)
            refused = (placed.shares == 0) & (allocation.gpus > 0)
            if not refused.any():
                break
            layers = tuple((_spread(rows, c, aside.size), w) for c, w in placed.waiting.layers)
            covered = _spread(rows, refused, aside.size)
            reasons |= Reasons(tuple((covers & covered, why) for covers, why in layers))
            aside |= covered
            reserved = placed.kept_back(part.reserved)
            part = replace(snapshot.take(np.flatnonzero(~aside)), reserved=reserved)
        whole = placed.cut(allocation)
        if rows.size < aside.size:
            nothing = type(whole)(np.zeros(aside.size, np.int64), memory=snapshot.memory.copy())
            whole, placed = _merged(nothing, whole, rows), placed.take(_positions(rows, aside.size))
        memory = snapshot.remembering(whole.memory, aside)
        waiting = reasons | whole.waiting
        whole = replace(whole, waiting=waiting, wake_at_s=wake_at_s, memory=memory)
        return Plan(snapshot, whole, placed)

    def _placed(self, snapshot: Snapshot, allocation: Allocation) -> Placed:
        """Find places for an allocation, unless the policy has done so itself."""
        if allocation.slots is not None or self.placement is None:
            assert allocation.slots is not None
            placed = Placed(allocation.slots)
        else:
            placed = self.placement(snapshot, allocation)
        placed = on_one_node(snapshot, placed)
        check_placed(snapshot, allocation, placed)
        return placed

    def _shares(self, snapshot: Snapshot) -> Allocation:
        """Ask the policy, around the rows that keep what they have."""
        jobs = snapshot.jobs
        kept = np.where(self._is_pinned(snapshot), jobs.gpus, 0)
        start_s = np.where(np.isfinite(jobs.last_start_s), jobs.last_start_s, -np.inf)
        protected = (jobs.gpus > 0) & (snapshot.now_s < start_s + self.stability.min_runtime_s)
        while True:
            allocation = self._around(kept, snapshot)
            stopped = np.flatnonzero(protected & (allocation.gpus == 0))
            room = snapshot.cluster.gpus_total - int(kept.sum())
            if stopped.size == 0 or jobs.gpus_min[stopped[0]] > room:
                return allocation
            # One at a time: room for the next may come from a job that is not protected.
            kept[stopped[0]] = jobs.gpus_min[stopped[0]]

    def _is_pinned(self, snapshot: Snapshot) -> BoolColumn:
        jobs, total = snapshot.jobs, snapshot.cluster.gpus_total
        # Compared as the time to wake up at is computed, or rounding might wake us too early.
        recent = snapshot.now_s < jobs.changed_s + self.stability.cool_down_s
        recent |= (jobs.settled == 0) & (snapshot.now_s < jobs.changed_s + self.stability.reserve_s)
        fixed = (jobs.preemptible == 0) & (jobs.gpus > 0)
        in_bounds = (jobs.gpus >= jobs.gpus_min) & (
            jobs.gpus <= np.maximum(jobs.gpus_max, jobs.gpus_requested)
        )
        pinned: BoolColumn = fixed | ((jobs.gpus > 0) & recent & in_bounds)
        # When GPUs were lost there may not be room for every promise.
        return fixed if jobs.gpus[pinned].sum() > total else pinned

    def _around(self, kept: IntColumn, snapshot: Snapshot) -> Allocation:
        """Let some rows keep what they hold; the policy sees the others and the other GPUs."""
        jobs, others = snapshot.jobs, np.flatnonzero(kept == 0)
        ranks = np.unique(jobs.priority[others])[::-1]
        all_free = snapshot.reserved is None or not snapshot.reserved.any()
        if others.size == jobs.size and ranks.size <= 1 and all_free:
            return self._checked(snapshot)
        answer: type[Allocation] = getattr(self.policy, "answer", Allocation)
        total = answer(_by_kind(kept, snapshot), memory=snapshot.memory.copy())
        for rank in ranks:
            rows = others[jobs.priority[others] == rank]
            total = _merged(total, self._checked(_left(total, snapshot, rows)), rows)
        return self._explained(total, kept, snapshot)

    def _checked(self, snapshot: Snapshot) -> Allocation:
        if snapshot.cluster.gpus_total == 0:  # no policy need think of that
            nothing = np.zeros(snapshot.jobs.size, np.int64)
            return Allocation(nothing, because(nothing == 0, "Resources", "no GPU is free"))
        allocation = self.policy(snapshot)
        check(snapshot, allocation)
        return allocation

    def _explained(self, allocation: Allocation, kept: IntColumn, snapshot: Snapshot) -> Allocation:
        """Return the allocation with reasons for rows that wait because of a pin or a priority."""
        jobs, shares = snapshot.jobs, allocation.gpus
        need = np.minimum(jobs.gpus_min, jobs.gpus_requested)
        without, reasons = shares == 0, Reasons()
        for rank in np.unique(jobs.priority[without]):
            above = int(shares[jobs.priority > rank].sum())
            if above:
                rows = without & (jobs.priority == rank)
                holders = f"jobs with a priority above {rank} hold {counted(above, 'GPU')}"
                reasons |= because(rows & (need <= above), "Priority", holders)
        wake_at_s, cool_s = allocation.wake_at_s, self.stability.cool_down_s
        cooling = (kept > 0) & (snapshot.now_s < jobs.changed_s + cool_s)
        if cooling.any():
            held = int(kept[cooling].sum())
            wake_at_s = min(wake_at_s, float((jobs.changed_s[cooling] + cool_s).min()))
            were = "was" if held == 1 else "were"
            why = f"{counted(held, 'GPU')} {were} reassigned less than {cool_s:g} s ago (cool-down)"
            reasons |= because(without & (need <= held), "CoolDown", why)
        promised = (kept > 0) & (jobs.settled == 0)
        if promised.any():
            end_s = float((jobs.changed_s[promised] + self.stability.reserve_s).min())
            wake_at_s = min(wake_at_s, end_s) if end_s > snapshot.now_s else wake_at_s
        # The policy sees only what is left: to it these rows ask for more than there is at all.
        total, held = snapshot.cluster.gpus_total, int(kept.sum())
        holders = f"jobs that cannot be stopped now hold {held} of {counted(total, 'GPU')}"
        reasons |= because(without & (total - held < need) & (need <= total), "Resources", holders)
        return replace(allocation, waiting=reasons | allocation.waiting, wake_at_s=wake_at_s)


def _by_kind(kept: IntColumn, snapshot: Snapshot) -> IntColumn | IntMatrix:
    """Of which kinds the GPUs are that rows keep: a column where there is one kind."""
    cluster, slots = snapshot.cluster, snapshot.slots
    if len(cluster.kinds) == 1:
        return kept.copy()
    out = np.zeros((kept.size, len(cluster.kinds)), np.int64)
    if slots is not None:
        out = np.where(kept[:, None] > 0, slots.by_kind(cluster.columns, len(cluster.kinds)), 0)
    for row in np.flatnonzero(out.sum(axis=1) > kept):  # few: rows cut to their minimum
        for kind in np.argsort(out[row], kind="stable"):
            out[row, kind] -= min(out[row, kind], out[row].sum() - kept[row])
    # What has no place yet will find it where most GPUs are.
    out[:, int(np.argmax(cluster.gpus))] += kept - out.sum(axis=1)
    return out


def _left(taken: Allocation, snapshot: Snapshot, rows: IntColumn) -> Snapshot:
    """What the policy sees for some rows, without what is taken."""
    # Where the GPUs are that are left is not the policy's concern then.
    cluster = _free(taken, snapshot)
    return replace(snapshot.take(rows), cluster=cluster, slots=None, taken=taken)


def _free(taken: Allocation, snapshot: Snapshot) -> Cluster:
    """The GPUs, by kind, that are neither taken nor kept for a job; all cores."""
    cluster, reserved = snapshot.cluster, snapshot.reserved
    free = cluster.gpus.copy()
    if reserved is not None:
        np.subtract.at(free, cluster.columns.node_kind[cluster.columns.island_node], reserved)
    if taken.shares.ndim == 2:
        free -= taken.exclusive.sum(axis=0)
    else:  # kinds were not decided: only the sum counts
        left = max(0, int(free.sum() - taken.exclusive_gpus.sum()))
        free = np.diff(np.minimum(np.cumsum(free), left), prepend=0)
    cpus = np.bincount(cluster.columns.node_kind, cluster.columns.node_cpus, free.size).astype(int)
    nodes = (
        Node(name, int(max(0, free[kind])), kind, cpus=int(cpus[kind]))
        for kind, name in enumerate(cluster.kinds)
    )
    return Cluster(tuple(nodes), cluster.kinds)


def _merged(whole: Allocation, part: Allocation, rows: IntColumn) -> Allocation:
    """Add the answer for some rows to that for all."""
    jobs = len(whole.shares)
    memory, packed_with = whole.memory, whole.packed_with
    # A policy that distinguishes kinds, and rows that get nothing, leave kinds as they are.
    by_kind = part.shares.ndim == 2 or (whole.shares.ndim == 2 and not part.shares.any())
    shares = (whole.by_kind if by_kind else whole.gpus).copy()
    shares[rows] = part.by_kind if by_kind else part.shares
    if part.memory is not None and memory is not None:
        memory[rows] = part.memory
    if part.packed_with is not None:
        packed_with = np.full(jobs, -1) if packed_with is None else packed_with.copy()
        packed_with[rows] = np.where(part.packed_with >= 0, rows[part.packed_with], -1)
    layers = tuple((_spread(rows, covers, jobs), why) for covers, why in part.waiting.layers)
    answer = type(part) if isinstance(part, type(whole)) else type(whole)
    return answer(
        shares,
        whole.waiting | Reasons(layers),
        min(whole.wake_at_s, part.wake_at_s),
        memory,
        packed_with=packed_with,
    )


def _positions(rows: IntColumn, jobs: int) -> IntColumn:
    """Where each of all rows is among `rows`, or -1."""
    out = np.full(jobs, -1)
    out[rows] = np.arange(rows.size)
    return out


def _spread(rows: IntColumn, covers: BoolColumn, jobs: int) -> BoolColumn:
    """Which of all rows are covered, given which of `rows` are."""
    out = np.zeros(jobs, np.bool_)
    out[rows] = covers
    return out

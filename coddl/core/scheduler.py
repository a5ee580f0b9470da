"""From a picture to a plan: the policy, around what may not be touched, checked."""

from dataclasses import dataclass, replace

import numpy as np

from coddl.core.allocation import Allocation, Reasons, because
from coddl.core.cluster import Cluster
from coddl.core.columns import BoolColumn, IntColumn
from coddl.core.invariants import check
from coddl.core.plan import Plan
from coddl.core.policies.policy import Policy
from coddl.core.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Rules:
    """How calmly to schedule, whatever the policy. All zero: the policy alone decides."""

    cool_down_s: float = 0.0  # how long a share stays after it has changed
    min_runtime_s: float = 0.0  # how long a job that was started runs at least
    reserve_s: float = 0.0  # how long what was promised to a job is kept for it


@dataclass(frozen=True, slots=True)
class Scheduler:
    """Decides with one policy, for whoever drives it.

    Some rows keep their share whatever the policy says: those that may not be preempted, those
    whose share changed less than `cool_down_s` ago, and those that still wait for what they were
    promised less than `reserve_s` ago, so that nobody takes what was freed for them. Jobs of a
    higher priority are served before the policy sees the others. A job that has started runs for
    at least `min_runtime_s`, if only on its minimum.
    """

    policy: Policy
    rules: Rules = Rules()

    def decide(self, snapshot: Snapshot) -> Plan:
        """Say who shall hold how many GPUs, and what has to change for that."""
        jobs = snapshot.jobs
        kept = np.where(self._is_pinned(snapshot), jobs.gpus, 0)
        start_s = np.where(np.isfinite(jobs.last_start_s), jobs.last_start_s, -np.inf)
        protected = (jobs.gpus > 0) & (snapshot.now_s < start_s + self.rules.min_runtime_s)
        while True:
            allocation = self._around(kept, snapshot)
            stopped = np.flatnonzero(protected & (allocation.gpus == 0))
            room = snapshot.cluster.gpus_total - int(kept.sum())
            if stopped.size == 0 or jobs.gpus_min[stopped[0]] > room:
                return Plan(snapshot, allocation)
            # One at a time: room for the next may come from a job that is not protected.
            kept[stopped[0]] = jobs.gpus_min[stopped[0]]

    def _is_pinned(self, snapshot: Snapshot) -> BoolColumn:
        jobs, total = snapshot.jobs, snapshot.cluster.gpus_total
        # Compared as the time to wake up at is computed, or rounding might wake us too early.
        recent = snapshot.now_s < jobs.changed_s + self.rules.cool_down_s
        recent |= (jobs.settled == 0) & (snapshot.now_s < jobs.changed_s + self.rules.reserve_s)
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
        if others.size == jobs.size and ranks.size <= 1:
            return self._checked(snapshot)
        assert len(snapshot.cluster.kinds) == 1, "what a pinned job holds is of one kind"
        total = Allocation(kept.copy(), memory=snapshot.memory.copy())
        for rank in ranks:
            rows = others[jobs.priority[others] == rank]
            free = max(0, snapshot.cluster.gpus_total - int(total.gpus.sum()))
            part = self._checked(
                replace(
                    snapshot,
                    cluster=Cluster.of(free),
                    jobs=jobs.take(rows),
                    memory=snapshot.memory[rows],
                )
            )
            total = _merged(total, part, rows)
        return self._explained(total, kept, snapshot)

    def _checked(self, snapshot: Snapshot) -> Allocation:
        allocation = self.policy(snapshot)
        check(snapshot, allocation)
        return allocation

    def _explained(self, allocation: Allocation, kept: IntColumn, snapshot: Snapshot) -> Allocation:
        """Say where not the policy but a pin or a priority is why a row waits, and until when."""
        jobs, shares = snapshot.jobs, allocation.gpus
        need = np.minimum(jobs.gpus_min, jobs.gpus_requested)
        without, reasons = shares == 0, Reasons()
        for rank in np.unique(jobs.priority[without]):
            above = int(shares[jobs.priority > rank].sum())
            if above:
                rows = without & (jobs.priority == rank)
                who = f"jobs of a higher priority than {rank} hold {above} GPUs"
                reasons |= because(rows & (need <= above), "Priority", who)
        wake_at_s, cool_s = allocation.wake_at_s, self.rules.cool_down_s
        cooling = (kept > 0) & (snapshot.now_s < jobs.changed_s + cool_s)
        if cooling.any():
            held = int(kept[cooling].sum())
            wake_at_s = min(wake_at_s, float((jobs.changed_s[cooling] + cool_s).min()))
            who = f"{held} GPUs changed hands less than {cool_s:g} s ago and stay there"
            reasons |= because(without & (need <= held), "CoolDown", who)
        promised = (kept > 0) & (jobs.settled == 0)
        if promised.any():
            end_s = float((jobs.changed_s[promised] + self.rules.reserve_s).min())
            wake_at_s = min(wake_at_s, end_s) if end_s > snapshot.now_s else wake_at_s
        # The policy sees only what is left: to it these rows ask for more than there is at all.
        total, held = snapshot.cluster.gpus_total, int(kept.sum())
        who = f"jobs that may not be stopped now hold {held} of {total} GPUs"
        reasons |= because(without & (total - held < need) & (need <= total), "Resources", who)
        return replace(allocation, waiting=reasons | allocation.waiting, wake_at_s=wake_at_s)


def _merged(whole: Allocation, part: Allocation, rows: IntColumn) -> Allocation:
    """Add the answer for some rows to that for all."""
    jobs = len(whole.shares)
    shares, memory, servers = whole.gpus.copy(), whole.memory, whole.servers
    shares[rows] = part.gpus
    if part.memory is not None and memory is not None:
        memory[rows] = part.memory
    if part.servers is not None:
        servers = np.zeros(jobs, np.int64) if servers is None else servers.copy()
        servers[rows] = part.servers
    layers = tuple((_spread(rows, covers, jobs), why) for covers, why in part.waiting.layers)
    return Allocation(
        shares,
        whole.waiting | Reasons(layers),
        min(whole.wake_at_s, part.wake_at_s),
        memory,
        servers,
        whole.seats + tuple(seat._replace(row=int(rows[seat.row])) for seat in part.seats),
    )


def _spread(rows: IntColumn, covers: BoolColumn, jobs: int) -> BoolColumn:
    """Which of all rows are covered, given which of `rows` are."""
    out = np.zeros(jobs, np.bool_)
    out[rows] = covers
    return out

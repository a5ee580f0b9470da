"""From a picture to a plan: the policy, around what may not be touched, checked."""

from dataclasses import dataclass, replace

import numpy as np

from coddl.core.allocation import Allocation, Reasons
from coddl.core.cluster import Cluster
from coddl.core.columns import BoolColumn, IntColumn
from coddl.core.invariants import check
from coddl.core.plan import Plan
from coddl.core.policies.policy import Policy
from coddl.core.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Scheduler:
    """Decides with one policy, for whoever drives it."""

    policy: Policy

    def decide(self, snapshot: Snapshot) -> Plan:
        """Say who shall hold how many GPUs, and what has to change for that."""
        jobs = snapshot.jobs
        pinned = (jobs.preemptible == 0) & (jobs.gpus > 0)
        if pinned.any():
            return Plan(snapshot, self._around(pinned, snapshot))
        return Plan(snapshot, self._checked(snapshot))

    def _checked(self, snapshot: Snapshot) -> Allocation:
        allocation = self.policy(snapshot)
        check(snapshot, allocation)
        return allocation

    def _around(self, pinned: BoolColumn, snapshot: Snapshot) -> Allocation:
        """Let pinned rows keep what they hold; the policy sees the others and the other GPUs."""
        assert len(snapshot.cluster.kinds) == 1, "what a pinned job holds is of one kind"
        jobs, rows = snapshot.jobs, np.flatnonzero(~pinned)
        free = max(0, snapshot.cluster.gpus_total - int(jobs.gpus[pinned].sum()))
        others = replace(
            snapshot, cluster=Cluster.of(free), jobs=jobs.take(rows), memory=snapshot.memory[rows]
        )
        rest = self._checked(others)
        shares, memory, servers = jobs.gpus.copy(), snapshot.memory.copy(), None
        shares[rows] = rest.gpus
        if rest.memory is not None:
            memory[rows] = rest.memory
        if rest.servers is not None:
            servers = np.zeros(jobs.size, np.int64)
            servers[rows] = rest.servers
        return Allocation(
            shares,
            Reasons(
                tuple(
                    (_spread(rows, covers, jobs.size), why) for covers, why in rest.waiting.layers
                )
            ),
            rest.wake_at_s,
            memory,
            servers,
            tuple(seat._replace(row=int(rows[seat.row])) for seat in rest.seats),
        )


def _spread(rows: IntColumn, covers: BoolColumn, jobs: int) -> BoolColumn:
    """Which of all rows are covered, given which of `rows` are."""
    out = np.zeros(jobs, np.bool_)
    out[rows] = covers
    return out

"""From a picture to a plan: the policy, around what may not be touched, checked."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from coddl.core.allocation import Allocation, Reasons
from coddl.core.cluster import Cluster
from coddl.core.columns import BoolColumn
from coddl.core.invariants import check
from coddl.core.plan import Plan
from coddl.core.policies.policy import Policy
from coddl.core.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Scheduler:
    """Decides with one policy. The simulator and the live pool both go through here."""

    policy: Policy

    def decide(self, snapshot: Snapshot) -> Plan:
        """Say who shall hold how many GPUs, and what has to change for that."""
        jobs = snapshot.jobs
        pinned = (jobs.preemptible == 0) & (jobs.gpus > 0)
        decide = partial(self._around, pinned) if pinned.any() else self.policy
        allocation = decide(snapshot)
        check(snapshot, allocation)
        return Plan(snapshot, allocation)

    def _around(self, pinned: BoolColumn, snapshot: Snapshot) -> Allocation:
        """Let pinned rows keep what they hold, and the policy decide on the others and on the rest
        of the GPUs.
        """
        jobs = snapshot.jobs
        rows = np.flatnonzero(~pinned)
        rest = self.policy(
            replace(
                snapshot,
                cluster=Cluster.of(snapshot.cluster.gpus_total - int(jobs.gpus[pinned].sum())),
                jobs=jobs.take(rows),
                memory=snapshot.memory[rows],
            )
        )
        shares, memory = jobs.gpus.copy(), snapshot.memory.copy()
        shares[rows] = rest.gpus
        if rest.memory is not None:
            memory[rows] = rest.memory
        layers = []
        for covers, why in rest.waiting.layers:
            covers_all = np.zeros(jobs.size, np.bool_)
            covers_all[rows] = covers
            layers.append((covers_all, why))
        return replace(rest, shares=shares, memory=memory, waiting=Reasons(tuple(layers)))

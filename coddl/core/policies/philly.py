"""Philly's queues: each has GPUs of its own, which others may borrow while it does not need them.

(Jeon et al., ATC '19; the rules are those of YARN's fair scheduler.)
"""

from dataclasses import dataclass

import numpy as np

from coddl.core.allocation import Allocation, because
from coddl.core.columns import BoolColumn, IntColumn
from coddl.core.compiling import kernel, part
from coddl.core.named import Part
from coddl.core.snapshot import Snapshot


@part
def take_back(lent: BoolColumn, line: IntColumn, shares: IntColumn) -> int:
    """Stop the newest borrower, the last in `line` of those who run; return what it held."""
    for k in range(line.shape[0] - 1, -1, -1):
        row = line[k]
        if lent[row] and shares[row] > 0:
            freed, shares[row] = shares[row], 0
            return int(freed)
    return 0


@kernel
def serve(
    need: IntColumn,
    queue: IntColumn,
    quota: IntColumn,
    line: IntColumn,
    runs: BoolColumn,
    gpus: int,
    reclaim_at: float,
) -> tuple[IntColumn, IntColumn]:
    """The shares, and what each queue has of its own. `line`: who runs first, in order of start."""
    shares, own, free = np.zeros_like(need), np.zeros_like(quota), gpus
    used, lent = np.zeros_like(quota), np.zeros(need.shape[0], np.bool_)
    borrowed = 0
    for row in line:  # who runs stays; what is beyond its queue's quota is borrowed
        if runs[row] and need[row] <= free:
            shares[row], free = need[row], free - need[row]
            if own[queue[row]] + need[row] <= quota[queue[row]]:
                own[queue[row]] += need[row]
            else:
                lent[row], borrowed = True, borrowed + need[row]
    for row in line:  # a claim within the quota
        if shares[row] > 0 or lent[row] or own[queue[row]] + need[row] > quota[queue[row]]:
            continue
        if gpus - free >= reclaim_at * gpus and need[row] <= free + borrowed:
            while free < need[row]:
                freed = take_back(lent, line, shares)
                free, borrowed = free + freed, borrowed - freed
        if need[row] <= free:
            shares[row], free = need[row], free - need[row]
            own[queue[row]] += need[row]
    for row in line:
        used[queue[row]] += shares[row]
    while True:  # lend what is left, to the queue that has least for its quota
        best, least = -1, np.inf
        for row in line:
            part_used = used[queue[row]] / max(quota[queue[row]], 1)
            if shares[row] == 0 and need[row] <= free and part_used < least:
                best, least = row, part_used
        if best < 0:
            return shares, own
        shares[best], free = need[best], free - need[best]
        used[queue[best]] += need[best]


@dataclass(frozen=True)
class Philly:
    """Gives each queue its quota in order of submission and lends what is idle; a queue takes its
    GPUs back when the cluster is nearly full, from the newest borrower first.

    Rigid request · backfill: a job that does not fit is skipped, later ones may start · no cap but
    the request.
    """

    reclaim_at: Part = 0.9  # part of the GPUs that is busy when lent ones are taken back

    def __call__(self, snapshot: Snapshot) -> Allocation:
        jobs, total = snapshot.jobs, snapshot.cluster.gpus_total
        need, runs, (queue, quota) = jobs.gpus_requested, jobs.gpus > 0, _queues(snapshot)
        came_s = np.where(runs, jobs.last_start_s, jobs.submitted_s)
        line = np.lexsort((jobs.id, came_s, ~runs))
        shares, own = serve(need, queue, quota, line, runs, total, self.reclaim_at)
        without, free = shares == 0, total - int(shares.sum())
        has = own[queue] + need <= quota[queue]
        beyond = "its queue has its quota, and fewer GPUs than it asks for are idle to be lent"
        lent = "it is within its queue's quota, but the cluster is not full enough to take back"
        lent += f" what is lent, and only {free} GPUs are free"
        waiting = (
            because(without & (need > total), "Infeasible", f"it needs more than all {total} GPUs")
            | because(without & ~has & (snapshot.quota_gpus.size > 0), "QueueQuota", beyond)
            | because(without & has & (snapshot.quota_gpus.size > 0), "Resources", lent)
            | because(without, "Resources", f"it needs more than the {free} free")
        )
        return Allocation(shares, waiting)


def _queues(snapshot: Snapshot) -> tuple[IntColumn, IntColumn]:
    """The queue of each job, and what each queue is entitled to; without quotas, one owns all."""
    queue, quota = snapshot.jobs.queue, snapshot.quota_gpus
    if quota.size == 0:
        return np.zeros_like(queue), np.array([snapshot.cluster.gpus_total])
    missing = max(0, int(queue.max(initial=-1)) + 1 - quota.size)
    return queue, np.concatenate((quota, np.zeros(missing, np.int64)))

"""Philly's queues: each has GPUs of its own, which others may borrow while it does not need them.

(Jeon et al., ATC '19; the rules are those of YARN's fair scheduler.)
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np

from coddl.core.allocation import Allocation, because
from coddl.core.columns import BoolColumn, IntColumn
from coddl.core.compiling import kernel, part
from coddl.core.named import Meaning, Part
from coddl.core.policies.policy import only_free
from coddl.core.snapshot import Snapshot
from coddl.core.waiting import counted


class QueueAccounts(NamedTuple):
    """What jobs need, what queues are entitled to, and the shares so far."""

    need: IntColumn
    queue: IntColumn
    quota: IntColumn  # of each queue
    line: IntColumn  # rows: running ones first, in order of start
    shares: IntColumn
    own: IntColumn  # of each queue: what it has of its quota
    lent: BoolColumn  # which rows are beyond their queue's quota


@part
def take_back(accounts: QueueAccounts) -> int:
    """Stop the newest borrower, the last in line of those that run; return what it held."""
    for k in range(accounts.line.shape[0] - 1, -1, -1):
        row = accounts.line[k]
        if accounts.lent[row] and accounts.shares[row] > 0:
            freed, accounts.shares[row] = accounts.shares[row], 0
            return int(freed)
    return 0


@part
def grant(accounts: QueueAccounts, gpus: int, reclaim_at: float) -> bool:
    """Serve the first claim within a quota that can be served; return whether there was one."""
    free, borrowed = gpus - accounts.shares.sum(), accounts.shares[accounts.lent].sum()
    takes_back = gpus - free >= reclaim_at * gpus
    for row in accounts.line:
        need, queue = accounts.need[row], accounts.queue[row]
        if accounts.shares[row] > 0 or accounts.own[queue] + need > accounts.quota[queue]:
            continue
        if need <= free or (takes_back and need <= free + borrowed):
            while free < need:
                free += take_back(accounts)
            accounts.shares[row] = need
            accounts.own[queue] += need
            return True
    return False


@part
def lend(accounts: QueueAccounts, gpus: int) -> None:
    """Lend what is free, to the queue that has least for its quota."""
    used, free = np.zeros_like(accounts.quota), gpus - accounts.shares.sum()
    for row in accounts.line:
        used[accounts.queue[row]] += accounts.shares[row]
    while True:
        best, least = -1, np.inf
        for row in accounts.line:
            queue = accounts.queue[row]
            part_used = used[queue] / max(accounts.quota[queue], 1)
            if accounts.shares[row] == 0 and accounts.need[row] <= free and part_used < least:
                best, least = row, part_used
        if best < 0:
            return
        accounts.shares[best], accounts.lent[best] = accounts.need[best], True
        used[accounts.queue[best]] += accounts.need[best]
        free -= accounts.need[best]


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
    """The shares, and each queue's own part. `line`: running rows first, in order of start."""
    shares, own, lent = np.zeros_like(need), np.zeros_like(quota), np.zeros(need.shape[0], np.bool_)
    accounts, free = QueueAccounts(need, queue, quota, line, shares, own, lent), gpus
    for row in line:  # a running row stays; what is beyond its queue's quota is borrowed
        if runs[row] and need[row] <= free:
            shares[row], free = need[row], free - need[row]
            if own[queue[row]] + need[row] <= quota[queue[row]]:
                own[queue[row]] += need[row]
            else:
                lent[row] = True
    some = True
    while some:  # what is lent may fill the cluster, so that more can be taken back
        while grant(accounts, gpus, reclaim_at):
            pass
        lend(accounts, gpus)
        some = grant(accounts, gpus, reclaim_at)
    return shares, own


@dataclass(frozen=True)
class Philly:
    """Gives each queue its quota in order of submission and lends what is idle; a queue takes its
    GPUs back when the cluster is nearly full, from the newest borrower first.

    Rigid request · backfill: a job that does not fit is skipped, later ones may start · no cap but
    the request.
    """

    reclaim_at: Annotated[
        Part, Meaning("part of the GPUs that is busy when lent ones are taken back")
    ] = 0.9

    rigid = True

    def __call__(self, snapshot: Snapshot) -> Allocation:
        jobs, total = snapshot.jobs, snapshot.cluster.gpus_total
        need, runs, (queue, quota) = jobs.gpus_requested, jobs.gpus > 0, _queues(snapshot)
        came_s = np.where(runs, jobs.last_start_s, jobs.submitted_s)
        line = np.lexsort((jobs.id, came_s, ~runs))
        shares, own = serve(need, queue, quota, line, runs, total, self.reclaim_at)
        without, free, queues = shares == 0, total - int(shares.sum()), snapshot.quota_gpus.size > 0
        has, left = own[queue] + need <= quota[queue], total - int(own.sum())
        beyond = "its queue's quota is used up, and fewer GPUs than it needs are idle"
        within = "its queue's quota allows it, but"
        are = "is" if left == 1 else "are"
        short = f"{within} only {counted(left, 'GPU')} {are} free or on loan to other queues"
        early = f"{within} GPUs on loan are taken back only when the cluster is fuller"
        early += f", and {only_free(free)}"
        waiting = (
            because(
                without & (need > total),
                "Infeasible",
                f"it needs more GPUs than the {total} in the cluster",
            )
            | because(without & ~has & queues, "QueueQuota", beyond)
            | because(without & (need > left) & queues, "Resources", short)
            | because(without & queues, "Resources", early)
            | because(without, "Resources", only_free(free))
        )
        return Allocation(shares, waiting)


def _queues(snapshot: Snapshot) -> tuple[IntColumn, IntColumn]:
    """The queue of each job, and what each queue is entitled to; without quotas, one owns all."""
    queue, quota = snapshot.jobs.queue, snapshot.quota_gpus
    if quota.size == 0:
        return np.zeros_like(queue), np.array([snapshot.cluster.gpus_total])
    missing = max(0, int(queue.max(initial=-1)) + 1 - quota.size)
    return queue, np.concatenate((quota, np.zeros(missing, np.int64)))

"""Themis (NSDI '20): GPUs on lease, auctioned among the apps that sharing has hurt most."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.columns import BoolColumn, FloatColumn, IntColumn
from coddl.core.named import Meaning, Part
from coddl.core.policies.auction import (
    Bids,
    best_worst_case,
    in_turn,
    partial_allocation,
    worst_first,
)
from coddl.core.policies.finish_time import (
    COLUMN,
    Outlook,
    apps_of,
    fairness_of,
    outlook_of,
    rho_at,
)
from coddl.core.policies.policy import with_reasons
from coddl.core.policies.quantum import turn_s, with_short_turns
from coddl.core.snapshot import Snapshot

Form = Annotated[
    Literal["auction", "greedy", "max-min"],
    Meaning(
        "auction: with payments; greedy: the worst off takes all it can use; "
        "max-min: the worst finish-time fairness as good as can be"
    ),
]

WHY: Final = "apps with a worse finish-time fairness hold the GPUs until their turns end"
# What a start is worth in an auction, in any case more than growth: without GPUs an app would never
# end, so its rho has no bound. What it has waited already must not make a start look worthless.
LOG_START: Final = 100.0
LOTS: Final = 8  # in which leases end, one after the other


def after_payment(bids: Bids, won: IntColumn, keeps: FloatColumn) -> IntColumn:
    """What bidders get of what they won: whole GPUs, and never less than they can start on."""
    kept = bids.held + np.ceil((won - bids.held) * keeps - 1e-9).astype(np.int64)
    fits, shares = bids.fits.copy(), np.arange(bids.fits.shape[1])
    least = np.where(bids.held > 0, bids.held, np.argmax(fits, axis=1))
    fits &= (shares >= least[:, None]) & (shares <= np.maximum(kept, least)[:, None])
    largest = shares[-1] - np.argmax(fits[:, ::-1], axis=1)
    return np.where(won > bids.held, np.where(fits.any(axis=1), largest, bids.held), bids.held)


def largest_shares(snapshot: Snapshot) -> IntColumn:
    """What each row would hold if it were alone; 0 if it could not run even then."""
    jobs, last, total = snapshot.jobs, snapshot.speeds.steps.last, snapshot.cluster.gpus_total
    most = np.minimum(jobs.gpus_max, min(last.shape[1] - 1, total))
    largest = np.maximum(last[jobs.curve, most], jobs.gpus_min)
    return np.where(jobs.gpus_min <= total, largest, 0)


def call_back(
    snapshot: Snapshot, lenders: IntColumn, need: int, shares: IntColumn, lent: IntColumn
) -> None:
    """Take back `need` of the GPUs that were lent, if there are as many: in `shares` and `lent`."""
    last, curves = snapshot.speeds.steps.last, snapshot.jobs.curve
    for row in lenders:
        if need <= 0:
            return
        own, enough = shares[row] - lent[row], shares[row] - min(need, int(lent[row]))
        kept = max(own, last[curves[row], enough])  # a share that it can use
        need -= shares[row] - kept
        shares[row], lent[row] = kept, kept - own


def lease_ends_s(snapshot: Snapshot, lease_s: float) -> FloatColumn:
    """When a lease that begins now ends, by row: a row's leases end `lease_s` after each other.

    They end in lots. So an auction has much to hand out, and the next one is never far. The
    first lease of a row is shorter or longer, from 1 to LOTS + 1 parts of LOTS. Leases that are
    shorter because a switch costs little need no lots: the next auction is never far anyway.
    """
    if (short_s := turn_s(snapshot.jobs, lease_s)) < lease_s:
        return np.full(snapshot.jobs.size, snapshot.now_s + short_s)
    since_s = lease_s * (snapshot.jobs.id % LOTS) / LOTS
    begin_s = snapshot.now_s + lease_s / LOTS - since_s
    return since_s + lease_s * (np.floor(begin_s / lease_s + 1e-9) + 1.0)


def auctioned(
    snapshot: Snapshot, outlook: Outlook, asked: IntColumn, shares: IntColumn, form: Form
) -> IntColumn:
    """Shares after the auction of what is free among the apps that are asked."""
    free, won = snapshot.cluster.gpus_total - int(shares.sum()), shares.copy()
    if free == 0 or asked.size == 0:
        return won
    fairness = fairness_of(snapshot, outlook, asked)
    bids = Bids(-np.log(fairness.rho), fairness.fits, shares[asked])  # a value of 1 / rho
    if form == "auction":
        at_least = bids.log_value[np.arange(asked.size), snapshot.jobs.gpus_min[asked]]
        bids.log_value[:, 0] = at_least - LOG_START
        won[asked] = after_payment(bids, *partial_allocation(bids, free))
    elif form == "greedy":
        won[asked] = worst_first(bids, free)
    else:
        won[asked] = best_worst_case(bids, free)
    return won


def is_near(snapshot: Snapshot, won: IntColumn) -> BoolColumn:
    """Which rows sit on nodes that have GPUs no row has won, their own among them."""
    slots, columns = snapshot.slots, snapshot.cluster.columns
    if slots is None:
        return snapshot.jobs.gpus > 0
    free = columns.island_gpus - slots.take(np.flatnonzero(won)).in_use(columns)
    of_node = np.bincount(columns.island_node, free, columns.node_gpus.size)
    row = np.repeat(np.arange(slots.rows), np.diff(slots.first))
    return np.bincount(row, of_node[columns.island_node[slots.island]], slots.rows) > 0


@dataclass(frozen=True)
class Themis:
    """Gives GPUs to the apps that sharing slows down most, by an auction that rewards the truth.

    Partial share · under overload, worst finish-time fairness first, for a turn each · cap: the
    model's largest useful share.

    A turn covers what an app has won, or what it started on. What it holds beyond that is lent: it
    goes back as soon as an app that is asked has no GPUs. Where all have what they can use there is
    no auction, and no turns.
    """

    lease_s: Annotated[float, "above 0", Meaning("seconds that what was won is kept")] = 1200.0
    filter: Annotated[Part, Meaning("part of the apps, the best off, that is not asked")] = 0.8
    form: Form = "auction"

    memory = COLUMN

    def __call__(self, snapshot: Snapshot) -> Allocation:
        snapshot = with_short_turns(snapshot, COLUMN.lease_end_s, self.lease_s)
        jobs, memory, total = snapshot.jobs, snapshot.memory.copy(), snapshot.cluster.gpus_total
        apps = apps_of(snapshot)
        outlook = outlook_of(snapshot, apps, memory, turn_s(jobs, self.lease_s))
        largest = largest_shares(snapshot)
        if largest.sum() <= total:  # no row wants what another has: no lease binds it
            memory[:, [COLUMN.lease_end_s, COLUMN.lent_gpus]] = 0.0
            return with_reasons(snapshot, Allocation(largest, memory=memory), WHY)
        leased = self._leased(snapshot)
        shares = np.where(leased, jobs.gpus, 0)
        lent = memory[:, COLUMN.lent_gpus].astype(np.int64)
        lent = np.minimum(lent, np.maximum(shares - jobs.gpus_min, 0))  # a place may have cut it
        asked = self._asked(snapshot, outlook, apps.leads & (largest > 0), (shares, lent))
        won = auctioned(snapshot, outlook, asked, shares, self.form)
        shares = won.copy()
        # What no row won is lent: to start rows not asked, then to those that can use it in place.
        chance = np.random.default_rng(snapshot.seed).permutation(jobs.size)
        unasked = ~np.isin(np.arange(jobs.size), asked)
        order = np.lexsort((chance, ~is_near(snapshot, won), won > 0, ~unasked, ~apps.leads))
        in_turn(snapshot.for_kernels(), order, total - int(won.sum()), shares)
        memory[:, COLUMN.lent_gpus] = lent + np.maximum(0, shares - np.maximum(won, jobs.gpus_min))
        memory[~leased, COLUMN.lease_end_s] = lease_ends_s(snapshot, self.lease_s)[~leased]
        wake_at_s = float(memory[shares > 0, COLUMN.lease_end_s].min(initial=np.inf))
        return with_reasons(snapshot, Allocation(shares, wake_at_s=wake_at_s, memory=memory), WHY)

    def _leased(self, snapshot: Snapshot) -> BoolColumn:
        """Which rows have a lease that runs on. All leases end when GPUs were lost."""
        held, ends_s = snapshot.jobs.gpus, snapshot.memory[:, COLUMN.lease_end_s]
        leased: BoolColumn = (held > 0) & (ends_s > snapshot.now_s)
        leased &= held < snapshot.speeds.step_s.shape[1]
        keeps = self.form == "auction" and held[leased].sum() <= snapshot.cluster.gpus_total
        return leased & keeps

    def _asked(
        self,
        snapshot: Snapshot,
        outlook: Outlook,
        leads: BoolColumn,
        held: tuple[IntColumn, IntColumn],
    ) -> IntColumn:
        """The apps that take part, worst off first. For those without GPUs, loans are called back:
        in what is `held`, the shares and what was lent of them.
        """
        rows, (shares, lent), jobs = np.flatnonzero(leads), held, snapshot.jobs
        if self.form != "auction":
            return rows
        rho = rho_at(snapshot, outlook, shares)
        count = int(np.ceil((1.0 - min(self.filter, 1.0)) * rows.size - 1e-9))
        asked = rows[np.lexsort((jobs.id[rows], -rho[rows]))[: max(count, 1)]]
        need = jobs.gpus_min[asked][shares[asked] == 0].sum() + shares.sum()
        lenders = np.flatnonzero(lent)
        lenders = lenders[np.lexsort((jobs.id[lenders], rho[lenders]))]  # the best off first
        call_back(snapshot, lenders, int(need) - snapshot.cluster.gpus_total, shares, lent)
        return asked

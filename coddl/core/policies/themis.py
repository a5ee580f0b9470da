"""Themis (NSDI '20): GPUs on lease, auctioned among the apps that sharing has hurt most."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.columns import BoolColumn, FloatColumn, IntColumn
from coddl.core.policies.auction import (
    Bids,
    best_worst_case,
    in_turn,
    partial_allocation,
    worst_first,
)
from coddl.core.policies.finish_time import (
    LEASE_END_S,
    Outlook,
    apps_of,
    fairness_of,
    outlook_of,
    rho_at,
)
from coddl.core.policies.policy import told
from coddl.core.snapshot import Snapshot

WHY: Final = "apps that are worse off hold the GPUs on lease"
INSTANTS_PER_LEASE: Final = 4  # at which leases may end, common to all


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


@dataclass(frozen=True)
class Themis:
    """Leases GPUs to the apps that sharing slows down most, by an auction that rewards the truth.

    Partial share · under overload, worst finish-time fairness first, for a lease each · cap: the
    model's largest useful share.
    """

    lease_s: Annotated[float, "above 0"] = 1200.0
    filter: float = 0.8  # f: this part of the apps, the best off, is not asked
    form: Literal["auction", "greedy", "max-min"] = "auction"

    def __call__(self, snapshot: Snapshot) -> Allocation:
        jobs, memory, total = snapshot.jobs, snapshot.memory.copy(), snapshot.cluster.gpus_total
        apps = apps_of(snapshot)
        outlook = outlook_of(snapshot, apps, memory, self.lease_s)
        largest = largest_shares(snapshot)
        if largest.sum() <= total:  # nobody wants what another one has: no lease binds it
            memory[:, LEASE_END_S] = 0.0
            return told(snapshot, Allocation(largest, memory=memory), WHY)
        leased = self._leased(snapshot)
        shares = np.where(leased, jobs.gpus, 0)
        if total > shares.sum():
            asked = self._auction(snapshot, outlook, apps.leads, shares)
            # What is left goes to who was not asked, first to those that can grow where they are.
            chance = np.random.default_rng(snapshot.seed).permutation(jobs.size)
            order = np.lexsort((chance, jobs.gpus == 0, asked, ~apps.leads))
            in_turn(snapshot.picture(), order, total - int(shares.sum()), shares)
        memory[~leased & (shares > 0), LEASE_END_S] = self._lease_end_s(snapshot.now_s)
        wake_at_s = float(memory[shares > 0, LEASE_END_S].min(initial=np.inf))
        allocation = Allocation(shares, wake_at_s=wake_at_s, memory=memory)
        return told(snapshot, allocation, WHY)

    def _lease_end_s(self, now_s: float) -> float:
        """When a lease ends that begins now: at the last common instant within its time.

        So GPUs come back together, for an auction with something to choose from.
        """
        apart_s = self.lease_s / INSTANTS_PER_LEASE
        return float(np.floor((now_s + self.lease_s) / apart_s + 1e-9) * apart_s)

    def _leased(self, snapshot: Snapshot) -> BoolColumn:
        """Which rows have a lease that runs on. All leases end when GPUs were lost."""
        held, ends_s = snapshot.jobs.gpus, snapshot.memory[:, LEASE_END_S]
        leased: BoolColumn = (held > 0) & (ends_s > snapshot.now_s)
        leased &= held < snapshot.speeds.step_s.shape[1]
        keeps = self.form == "auction" and held[leased].sum() <= snapshot.cluster.gpus_total
        return leased & keeps

    def _auction(
        self, snapshot: Snapshot, outlook: Outlook, leads: BoolColumn, shares: IntColumn
    ) -> BoolColumn:
        """Hand out free GPUs to the apps that are asked, in `shares`; tell which they are."""
        free, rows = snapshot.cluster.gpus_total - int(shares.sum()), np.flatnonzero(leads)
        asked = np.zeros(leads.size, np.bool_)
        if self.form == "auction":
            rho = rho_at(snapshot, outlook, shares)[rows]
            count = int(np.ceil((1.0 - min(self.filter, 1.0)) * rows.size - 1e-9))
            rows = rows[np.lexsort((snapshot.jobs.id[rows], -rho))[: max(count, 1)]]
        fairness = fairness_of(snapshot, outlook, rows)
        bids = Bids(-np.log(fairness.rho), fairness.fits, shares[rows])  # a value of 1 / rho
        if self.form == "auction":
            shares[rows] = after_payment(bids, *partial_allocation(bids, free))
        elif self.form == "greedy":
            shares[rows] = worst_first(bids, free)
        else:
            shares[rows] = best_worst_case(bids, free)
        asked[rows] = True
        return asked

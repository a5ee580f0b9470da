"""Themis (NSDI '20): GPUs on lease, auctioned among the apps that sharing has hurt most."""

from dataclasses import dataclass
from typing import Annotated, Literal

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
from coddl.core.policies.finish_time import LEASE_END_S, Fairness, apps_of, fairness_of
from coddl.core.policies.policy import told
from coddl.core.snapshot import Snapshot


def bids_of(fairness: Fairness, rows: IntColumn, held: IntColumn) -> Bids:
    """What shares are worth to these rows: 1 / rho."""
    fits = np.ascontiguousarray(fairness.fits[rows])
    return Bids(-np.log(fairness.rho[rows]), fits, held[rows])


def after_payment(bids: Bids, won: IntColumn, keeps: FloatColumn) -> IntColumn:
    """What bidders get of what they won: whole GPUs, and never less than they can start on."""
    kept = bids.held + np.ceil((won - bids.held) * keeps - 1e-9).astype(np.int64)
    fits, shares = bids.fits.copy(), np.arange(bids.fits.shape[1])
    least = np.where(bids.held > 0, bids.held, np.argmax(fits, axis=1))
    fits &= (shares >= least[:, None]) & (shares <= np.maximum(kept, least)[:, None])
    largest = shares[-1] - np.argmax(fits[:, ::-1], axis=1)
    return np.where(won > bids.held, np.where(fits.any(axis=1), largest, bids.held), bids.held)


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
        jobs, memory = snapshot.jobs, snapshot.memory.copy()
        apps = apps_of(snapshot)
        fairness = fairness_of(snapshot, apps, memory, self.lease_s)
        shares = np.where(self._leased(snapshot, fairness), jobs.gpus, 0)
        leased = shares > 0
        asked = self._auction(snapshot, fairness, apps.leads, shares)
        free = snapshot.cluster.gpus_total - int(shares.sum())
        # What is left goes to who was not asked, first to those that can grow where they are.
        chance = np.random.default_rng(snapshot.seed).permutation(jobs.size)
        order = np.lexsort((chance, jobs.gpus == 0, asked, ~apps.leads))
        in_turn(snapshot.picture(), order, free, shares)
        memory[~leased & (shares > 0), LEASE_END_S] = snapshot.now_s + self.lease_s
        ends_s = memory[shares > 0, LEASE_END_S]
        wake_at_s = float(ends_s.min(initial=np.inf))
        allocation = Allocation(shares, wake_at_s=wake_at_s, memory=memory)
        return told(snapshot, allocation, "apps that are worse off hold the GPUs on lease")

    def _leased(self, snapshot: Snapshot, fairness: Fairness) -> BoolColumn:
        """Which rows have a lease that runs on. All leases end when GPUs were lost."""
        held, ends_s = snapshot.jobs.gpus, snapshot.memory[:, LEASE_END_S]
        leased: BoolColumn = (held > 0) & (held < fairness.rho.shape[1]) & (ends_s > snapshot.now_s)
        keeps = self.form == "auction" and held[leased].sum() <= snapshot.cluster.gpus_total
        return leased & keeps

    def _auction(
        self, snapshot: Snapshot, fairness: Fairness, leads: BoolColumn, shares: IntColumn
    ) -> BoolColumn:
        """Hand out free GPUs to the apps that are asked, in `shares`; tell which they are."""
        free, rows = snapshot.cluster.gpus_total - int(shares.sum()), np.flatnonzero(leads)
        asked = np.zeros(leads.size, np.bool_)
        if self.form == "auction":
            rho = fairness.rho[rows, np.minimum(shares[rows], fairness.rho.shape[1] - 1)]
            count = int(np.ceil((1.0 - min(self.filter, 1.0)) * rows.size - 1e-9))
            rows = rows[np.lexsort((snapshot.jobs.id[rows], -rho))[: max(count, 1)]]
        bids = bids_of(fairness, rows, shares)
        if self.form == "auction":
            shares[rows] = after_payment(bids, *partial_allocation(bids, free))
        elif self.form == "greedy":
            shares[rows] = worst_first(bids, free)
        else:
            shares[rows] = best_worst_case(bids, free)
        asked[rows] = True
        return asked

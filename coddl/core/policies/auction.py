"""Auctions of GPUs: partial allocation, worst first, and the smallest worst case.

All work on the value of each share to each bidder, and hand out what is free on top of what bidders
hold already.
"""

from typing import NamedTuple

import numpy as np

from coddl.core.columns import BoolMatrix, FloatColumn, FloatMatrix, IntColumn
from coddl.core.compiling import kernel, kernel_int, part
from coddl.core.jobs import GPUS_MIN
from coddl.core.kernels import next_share
from coddl.core.snapshot import KernelSnapshot

NO_ROW = kernel_int(-1)


class Bids(NamedTuple):
    """What shares are worth, one row a bidder."""

    log_value: FloatMatrix  # [bidders, shares]
    fits: BoolMatrix  # [bidders, shares]: shares it may hold, 0 apart
    held: IntColumn  # what it holds whatever the outcome


class BidSteps(NamedTuple):
    """Steps from share to share of all bidders, the one that gains most per GPU first."""

    bidder: IntColumn
    before: IntColumn
    after: IntColumn


@part
def concave(bids: Bids, bidder: int, free: int, corners: IntColumn) -> int:
    """Note the corners of a bidder's concave hull, up to what is free; return how many."""
    value, size = bids.log_value[bidder], 1
    corners[0] = bids.held[bidder]
    for share in range(corners[0] + 1, min(corners[0] + free + 1, value.shape[0])):
        if not bids.fits[bidder, share] or value[share] <= value[corners[size - 1]]:
            continue
        while size > 1:
            last, before = corners[size - 1], corners[size - 2]
            rise = (value[last] - value[before]) * (share - last)
            # Corners on a straight line stay: a small step fits where a large one does not.
            if rise >= (value[share] - value[last]) * (last - before) * (1.0 - 1e-9):
                break
            size -= 1
        corners[size] = share
        size += 1
    return size


@part
def steps_of(bids: Bids, free: int) -> BidSteps:
    """The steps along the hull of every row. On one hull they gain less and less: in order, too."""
    bidders, shares = bids.log_value.shape
    bidders_of, before, after = np.empty((3, bidders * shares), np.int64)
    gain, corners, size = np.empty(bidders * shares), np.empty(shares, np.int64), 0
    for bidder in range(bidders):
        for i in range(1, concave(bids, bidder, free, corners)):
            low, high = corners[i - 1], corners[i]
            bidders_of[size], before[size], after[size] = bidder, low, high
            rise = bids.log_value[bidder, high] - bids.log_value[bidder, low]
            gain[size] = -rise / (high - low)
            size += 1
    order = np.argsort(gain[:size], kind="mergesort")
    return BidSteps(bidders_of[order], before[order], after[order])


@part
def best_without(bids: Bids, steps: BidSteps, free: int, absent: int) -> IntColumn:
    """Shares that maximise the product of values if one bidder were not there (-1: all are)."""
    shares = bids.held.copy()
    for i in range(steps.bidder.shape[0]):
        if free == 0:
            break
        bidder, need = steps.bidder[i], steps.after[i] - steps.before[i]
        if bidder != absent and shares[bidder] == steps.before[i] and need <= free:
            shares[bidder] = steps.after[i]
            free -= need
    return shares


@kernel
def partial_allocation(bids: Bids, free: int) -> tuple[IntColumn, FloatColumn]:
    """Proportionally fair shares, and the part of what is new that each bidder may keep.

    The shares maximise the product of all values: exactly where a bidder's log-value is concave,
    else up to the last step that fits. Bidder i keeps c_i, the product of the others' values over
    what it would be without i: what its presence costs them is its payment, which makes it useless
    to exaggerate (Cole, Gkatzelis, Goel, EC '13).
    """
    steps = steps_of(bids, free)
    shares = best_without(bids, steps, free, NO_ROW)
    keeps = np.ones(shares.shape[0])
    for bidder in range(shares.shape[0]):
        if shares[bidder] == bids.held[bidder]:
            continue
        others, log_keeps = best_without(bids, steps, free, bidder), 0.0
        for other in range(shares.shape[0]):
            if other != bidder:
                log_keeps += bids.log_value[other, shares[other]]
                log_keeps -= bids.log_value[other, others[other]]
        keeps[bidder] = min(1.0, np.exp(log_keeps))
    return shares, keeps


@kernel
def worst_first(bids: Bids, free: int) -> IntColumn:
    """Give the app that would be worst off all it can use, then the next (PCS, OSDI '24)."""
    shares, done = bids.held.copy(), np.zeros(bids.held.shape[0], np.bool_)
    for _ in range(shares.shape[0]):
        worst, share_of_worst = NO_ROW, 0
        for bidder in range(shares.shape[0]):
            most = min(free, bids.fits.shape[1] - 1)
            while most > 0 and not bids.fits[bidder, most]:
                most -= 1
            if done[bidder] or most == 0:
                continue
            value = bids.log_value[bidder, most]
            if worst < 0 or value < bids.log_value[worst, share_of_worst]:
                worst, share_of_worst = bidder, most
        if worst < 0:
            break
        shares[worst], done[worst] = share_of_worst, True
        free -= share_of_worst
    return shares


@part
def needs_at(bids: Bids, floor: float, shares: IntColumn) -> int:
    """Note the smallest share worth `floor` to each bidder, else its best; return their sum."""
    total = 0
    for bidder in range(shares.shape[0]):
        best = 0
        for share in range(1, bids.fits.shape[1]):
            if bids.log_value[bidder, best] >= floor:
                break
            if (
                bids.fits[bidder, share]
                and bids.log_value[bidder, share] > bids.log_value[bidder, best]
            ):
                best = share
        shares[bidder] = best
        total += best
    return total


@kernel
def best_worst_case(bids: Bids, free: int) -> IntColumn:
    """Shares with which the lowest value is as high as can be, by bisection; no more than that."""
    bidders, width = bids.fits.shape
    floors, size = np.empty(bidders * width), 0
    for bidder in range(bidders):
        for share in range(width):
            if share == 0 or bids.fits[bidder, share]:
                floors[size] = bids.log_value[bidder, share]
                size += 1
    floors = np.sort(floors[:size])
    shares, low, high = np.zeros(bidders, np.int64), 0, size  # floors[low] can be had
    while high - low > 1:
        middle = (low + high) // 2
        if needs_at(bids, floors[middle], shares) <= free:
            low = middle
        else:
            high = middle
    if size > 0:
        needs_at(bids, floors[low], shares)
    return shares


@kernel
def in_turn(snapshot: KernelSnapshot, order: IntColumn, free: int, shares: IntColumn) -> None:
    """Hand out what is free in turn: the minimum, then a step at a time, until no row wants it."""
    before = free + 1
    while 0 < free < before:
        before = free
        for k in order:
            least = snapshot.jobs.ints[GPUS_MIN, snapshot.rows[k]]
            following = next_share(snapshot, k, shares[k]) if shares[k] > 0 else least
            if shares[k] < following <= shares[k] + free:
                free -= following - shares[k]
                shares[k] = following

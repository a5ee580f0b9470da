"""What a placement is: shares and a cluster in, seats out; and what holds for all of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

import numpy as np

from coddl.core.allocation import Allocation, Reasons, because
from coddl.core.columns import IntColumn
from coddl.core.invariants import InvalidAllocation
from coddl.core.seats import Seats
from coddl.core.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Placed:
    """Where jobs go.

    A strategy may give a row less than its share, or nothing, if no place will do; then it says
    why. It may keep GPUs for a row that waits.
    """

    seats: Seats
    waiting: Reasons = field(default_factory=Reasons)  # for rows that get nothing here
    wake_at_s: float = np.inf  # ask again then, if nothing happens before
    servers: Seats | None = None  # of the parameter servers, which take no GPUs
    reserved: IntColumn | None = None  # by island: GPUs kept for rows that wait
    why: Mapping[int, str] = field(default_factory=dict)  # row -> why it moves

    def kept_back(self, before: IntColumn | None) -> IntColumn | None:
        """By island, GPUs kept for rows that wait, those that were kept before included."""
        if before is None or self.reserved is None:
            return self.reserved if before is None else before
        return before + self.reserved

    @property
    def shares(self) -> IntColumn:
        """GPUs of each row."""
        return self.seats.totals


# A snapshot whose rows sit somewhere (`snapshot.seats`), and what they shall have.
Placement: TypeAlias = Callable[[Snapshot, Allocation], Placed]


class NamedPlacement(Protocol):
    """A placement as a class: its parameters are the class's fields."""

    def __call__(self, snapshot: Snapshot, allocation: Allocation) -> Placed:
        """Find places."""


def on_one_node(snapshot: Snapshot, placed: Placed) -> Placed:
    """The same, without the rows that a strategy has put on several nodes and that can't span."""
    ground, seats = snapshot.cluster.ground, placed.seats
    lone = np.flatnonzero((snapshot.jobs.spans == 0) & (np.diff(seats.first) > 1))
    apart = [row for row in lone.tolist() if len(seats.nodes(row, ground)) > 1]
    if not apart:
        return placed
    rows = np.arange(seats.rows)
    rows[apart] = -1
    why = "its GPUs must be on one node, and no node has as many free"
    reasons = because(rows < 0, "Topology", why) | placed.waiting
    return replace(placed, seats=seats.take(rows), waiting=reasons)


def check_placed(snapshot: Snapshot, allocation: Allocation, placed: Placed) -> None:
    """Raise InvalidAllocation unless what was placed can be carried out and explains itself."""
    if (because := _wrong(snapshot, allocation, placed)) is not None:
        raise InvalidAllocation(
            f"the placement at t={snapshot.now_s:.1f}s cannot be carried out",
            because,
            "coddl.testing.PlacementContract on the placement: it finds the smallest such case",
        )


def _wrong(snapshot: Snapshot, allocation: Allocation, placed: Placed) -> str | None:
    ground, jobs, seats = snapshot.cluster.ground, snapshot.jobs, placed.seats
    if seats.rows != jobs.size:
        return f"it seats {seats.rows} rows of {jobs.size}"
    islands = len(ground.island_gpus)
    if ((seats.island < 0) | (seats.island >= islands)).any():
        return f"it names an island that is none of the {islands}"
    if (seats.gpus < 1).any():
        return "it names an island without taking a GPU of it"
    used = _exclusive(seats, allocation).in_use(ground)
    used += 0 if placed.reserved is None else placed.reserved
    used += 0 if snapshot.reserved is None else snapshot.reserved
    if (used > ground.island_gpus).any():
        at = int(np.argmax(used - ground.island_gpus))
        return f"island {at} has {ground.island_gpus[at]} GPUs, and {used[at]} are taken"
    shares, wanted = placed.shares, allocation.gpus
    cut = (shares > wanted) | ((shares > 0) & (shares < jobs.gpus_min))
    if cut.any():
        row = int(np.argmax(cut))
        return f"job {jobs.id[row]} shall have {wanted[row]} GPUs and is given {shares[row]}"
    if allocation.shares.ndim == 2:
        given, kinds = seats.by_kind(ground, allocation.shares.shape[1]), allocation.shares
        if (given > kinds).any():
            row = int(np.argmax((given > kinds).any(axis=1)))
            return f"job {jobs.id[row]} shall have {kinds[row]} of each kind, not {given[row]}"
    silent = (shares == 0) & (wanted > 0) & ~placed.waiting.covered(jobs.size)
    if silent.any():
        return f"job {jobs.id[np.argmax(silent)]} is not placed and not told why"
    return None


def _exclusive(seats: Seats, allocation: Allocation) -> Seats:
    """The seats, those that two rows share counted once."""
    if allocation.mates is None:
        return seats
    rows = np.arange(seats.rows)
    second = (allocation.mates >= 0) & (allocation.mates < rows)
    return seats.take(np.where(second, -1, rows))

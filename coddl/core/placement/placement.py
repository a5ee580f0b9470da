"""What a placement is: shares and a cluster in, seats out; and what holds for all of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, Self, TypeAlias

import numpy as np

from coddl.core.allocation import Allocation, Reasons, because
from coddl.core.columns import IntColumn
from coddl.core.invariants import InvalidAllocation
from coddl.core.slots import Slots
from coddl.core.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Placed:
    """Where jobs go.

    A strategy may give a row less than its share, or nothing, if no place will do; then it says
    why. It may keep GPUs for a row that waits.
    """

    slots: Slots
    waiting: Reasons = field(default_factory=Reasons)  # for rows that get nothing here
    wake_at_s: float = np.inf  # ask again then, if nothing happens before
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
        return self.slots.totals

    def cut(self, allocation: Allocation) -> Allocation:
        """What is left of an allocation: that for which there are places."""
        return replace(allocation, shares=self.shares, slots=None)

    def take(self, rows: IntColumn) -> Self:
        """The same for a table of these rows; -1: one that was not placed."""
        why = {int(np.argmax(rows == row)): sentence for row, sentence in self.why.items()}
        return replace(self, slots=self.slots.take(rows), why=why)


# A snapshot whose rows sit somewhere (`snapshot.seats`), and what they are to have.
Placement: TypeAlias = Callable[[Snapshot, Allocation], Placed]


class NamedPlacement(Protocol):
    """A placement as a class: its parameters are the class's fields."""

    def __call__(self, snapshot: Snapshot, allocation: Allocation) -> Placed:
        """Find places."""


def on_one_node(snapshot: Snapshot, placed: Placed) -> Placed:
    """The same, without the rows that a strategy has put on several nodes and that can't span."""
    columns, slots = snapshot.cluster.columns, placed.slots
    lone = np.flatnonzero((snapshot.jobs.spans == 0) & (np.diff(slots.first) > 1))
    apart = [row for row in lone.tolist() if len(slots.nodes(row, columns)) > 1]
    if not apart:
        return placed
    rows = np.arange(slots.rows)
    rows[apart] = -1
    why = "its GPUs must be on one node, and no node has enough free"
    reasons = because(rows < 0, "Topology", why) | placed.waiting
    return replace(placed, slots=slots.take(rows), waiting=reasons)


def check_placed(snapshot: Snapshot, allocation: Allocation, placed: Placed) -> None:
    """Raise InvalidAllocation unless what was placed can be carried out and explains itself."""
    if (because := _wrong(snapshot, allocation, placed)) is not None:
        raise InvalidAllocation(
            f"the placement at t={snapshot.now_s:.1f}s cannot be carried out",
            because,
            "coddl.testing.PlacementContract on the placement: it finds the smallest such case",
        )


def _wrong(snapshot: Snapshot, allocation: Allocation, placed: Placed) -> str | None:
    columns, jobs, slots = snapshot.cluster.columns, snapshot.jobs, placed.slots
    if slots.rows != jobs.size:
        return f"it seats {slots.rows} rows of {jobs.size}"
    islands = len(columns.island_gpus)
    if ((slots.island < 0) | (slots.island >= islands)).any():
        return f"it names an island that is none of the {islands}"
    if (slots.gpus < 1).any():
        return "it names an island without taking a GPU of it"
    used = _exclusive(slots, allocation).in_use(columns)
    used += 0 if placed.reserved is None else placed.reserved
    used += 0 if snapshot.reserved is None else snapshot.reserved
    if (used > columns.island_gpus).any():
        at = int(np.argmax(used - columns.island_gpus))
        return f"island {at} has {columns.island_gpus[at]} GPUs, and {used[at]} are taken"
    shares, wanted = placed.shares, allocation.gpus
    cut = (shares > wanted) | ((shares > 0) & (shares < jobs.gpus_min))
    if cut.any():
        row = int(np.argmax(cut))
        return f"job {jobs.id[row]} is to have {wanted[row]} GPUs and is given {shares[row]}"
    if allocation.shares.ndim == 2:
        given, kinds = slots.by_kind(columns, allocation.shares.shape[1]), allocation.shares
        if (given > kinds).any():
            row = int(np.argmax((given > kinds).any(axis=1)))
            return f"job {jobs.id[row]} is to have {kinds[row]} of each kind, not {given[row]}"
    silent = (shares == 0) & (wanted > 0) & ~placed.waiting.covered(jobs.size)
    if silent.any():
        return f"job {jobs.id[np.argmax(silent)]} is not placed and has no reason"
    return None


def _exclusive(slots: Slots, allocation: Allocation) -> Slots:
    """The seats, those that rows share counted once."""
    if allocation.packed_with is None:
        return slots
    rows = np.arange(slots.rows)
    second = (allocation.packed_with >= 0) & (allocation.packed_with < rows)
    return slots.take(np.where(second, -1, rows))

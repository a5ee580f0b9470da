"""What a policy answers: the share of each job, and why a job without GPUs waits."""

from dataclasses import dataclass

import numpy as np

from coddl.core.columns import BoolColumn, FloatMatrix, IntColumn, IntMatrix
from coddl.core.slots import Slots
from coddl.core.waiting import Waiting, WaitingCode


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why each row waits, as (rows, reason) layers; the first that covers a row holds."""

    layers: tuple[tuple[BoolColumn, Waiting], ...] = ()

    def of(self, row: int) -> Waiting | None:
        """Why this row waits; None without a reason."""
        return next((why for covers, why in self.layers if covers[row]), None)

    def covered(self, jobs: int) -> BoolColumn:
        """Which rows have a reason."""
        out = np.zeros(jobs, np.bool_)
        for covers, _ in self.layers:
            out |= covers
        return out

    def __or__(self, other: "Reasons") -> "Reasons":
        return Reasons(self.layers + other.layers)


def because(rows: BoolColumn, code: WaitingCode, sentence: str) -> Reasons:
    """The same reason for all of these rows."""
    return Reasons(((rows, Waiting(code, sentence)),))


@dataclass(frozen=True, slots=True)
class Allocation:
    """How many GPUs each row gets.

    A policy for GPUs of one kind gives a column of shares; `by_kind` is always [jobs, kinds].
    """

    shares: IntColumn | IntMatrix
    waiting: Reasons = Reasons()
    wake_at_s: float = np.inf  # ask again then, if nothing happens before
    memory: FloatMatrix | None = None  # None: as it was
    slots: Slots | None = None  # where the jobs go, of a policy that places them itself
    # A row that holds the same GPUs, or -1. In a group, the first row names another, which names
    # the first, as do all others.
    packed_with: IntColumn | None = None

    @property
    def by_kind(self) -> IntMatrix:
        """Shares per kind of GPU."""
        return self.shares if self.shares.ndim == 2 else self.shares.reshape(-1, 1)

    @property
    def gpus(self) -> IntColumn:
        """GPUs of all kinds together."""
        return self.shares if self.shares.ndim == 1 else self.shares.sum(axis=1)

    @property
    def exclusive(self) -> IntMatrix:
        """Shares per kind of GPU, those that rows share counted for the first of them."""
        if self.packed_with is None:
            return self.by_kind
        second = (self.packed_with >= 0) & (self.packed_with < np.arange(len(self.packed_with)))
        return np.where(second[:, None], 0, self.by_kind)

    @property
    def exclusive_gpus(self) -> IntColumn:
        """The same, of all kinds together."""
        return self.gpus if self.packed_with is None else self.exclusive.sum(axis=1)


def group_firsts(packed_with: IntColumn) -> IntColumn:
    """The first row of each row's group; itself for a row that shares its GPUs with none."""
    rows = np.arange(len(packed_with))
    return np.where(packed_with < 0, rows, np.minimum(rows, packed_with))


def group_sizes(packed_with: IntColumn) -> IntColumn:
    """How many rows hold the same GPUs as each row, itself counted."""
    firsts = group_firsts(packed_with)
    sizes: IntColumn = np.bincount(firsts, minlength=len(firsts))[firsts]
    return sizes


def packed_with_of(firsts: IntColumn) -> IntColumn:
    """The column that an allocation has, given the first row of each row's group."""
    rows = np.arange(len(firsts))
    followers = np.flatnonzero(firsts != rows)
    out = np.full(len(firsts), -1)
    out[followers] = firsts[followers]
    out[firsts[followers][::-1]] = followers[::-1]  # the first follower is written last
    return out

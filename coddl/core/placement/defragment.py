"""Moves that gather scattered jobs: now and then, few at a time, and only if they pay.

Placements keep jobs where they are, so free GPUs come to lie in small pieces and jobs that start or
grow are scattered over them. A round of defragmenting looks at the job that would gain most by
lying closer together, and moves it if the time saved exceeds the pauses; smaller jobs may have to
make room.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Final, NamedTuple, Self

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.columns import BoolColumn, FloatColumn, IntColumn
from coddl.core.named import Meaning
from coddl.core.placement.close import PlacementRequest, kept_back, leaders_of, place_close
from coddl.core.placement.placement import Placed, Placement
from coddl.core.plan import differs
from coddl.core.slots import Slots
from coddl.core.snapshot import Snapshot
from coddl.core.speed.places import slowdowns

UNKNOWN_S: Final = 3600.0  # of a job that does not say how much is left, so much counts
TRIES: Final = 4  # jobs that are looked at, for each that may be moved
LATE_S: Final = 1.0  # a driver that lives in real time wakes up late by less

# Parameters of the placements that offer it.
DefragmentEvery = Annotated[
    float,
    Meaning(
        "interval in hours at which scattered jobs that gain more than a move costs are "
        "gathered; 0: never"
    ),
]
MovesMax = Annotated[int, Meaning("jobs that such a round may move")]


@dataclass(frozen=True)
class Defragmenting:
    """A placement that also moves up to `moves` jobs every `period_s` seconds.

    A round is held at each multiple of the period, and by a caller that asks within a second of it.
    """

    placement: Placement
    period_s: float
    moves: int

    def __call__(self, snapshot: Snapshot, allocation: Allocation) -> Placed:
        placed = self.placement(snapshot, allocation)
        if np.diff(placed.slots.first).max(initial=0) < 2:
            return placed  # no job is scattered
        last_s = np.floor(snapshot.now_s / self.period_s) * self.period_s
        if snapshot.now_s - last_s < LATE_S and snapshot.now_s >= self.period_s:
            placed = gathered(placed, snapshot, allocation, self.moves)
        next_s = last_s + self.period_s
        if next_s <= snapshot.now_s:  # rounding
            next_s += self.period_s
        return replace(placed, wake_at_s=min(placed.wake_at_s, float(next_s)))


def defragmenting(placement: Placement, every_h: float, moves: int) -> Placement:
    """The same placement, with a round of moves every `every_h` hours; 0: never."""
    return Defragmenting(placement, every_h * 3600.0, moves) if every_h > 0.0 else placement


class Scatter(NamedTuple):
    """Where all jobs are, what that costs, and which may be moved."""

    snapshot: Snapshot
    allocation: Allocation
    slots: Slots
    slowdown: FloatColumn
    left_s: FloatColumn  # what each row would still take where it is
    movable: BoolColumn

    @classmethod
    def of(cls, placed: Placed, snapshot: Snapshot, allocation: Allocation) -> Self:
        """What a placement has left."""
        assert snapshot.slots is not None
        jobs, shares, slots = snapshot.jobs, placed.shares, placed.slots
        stays = (shares == jobs.gpus) & ~differs(snapshot.slots, slots)
        alone = allocation.packed_with < 0 if allocation.packed_with is not None else np.bool_(True)
        movable = stays & alone & (shares > 0) & (jobs.preemptible > 0) & (jobs.settled > 0)
        slowdown = _slowdowns(snapshot, allocation, slots)
        left_s = np.nan_to_num(snapshot.seconds_left_at(shares) * slowdown, nan=UNKNOWN_S)
        return cls(snapshot, allocation, slots, slowdown, left_s, movable)

    def scattered(self) -> list[int]:
        """Rows that could gain by a better place, the largest gain first."""
        best = self._best_slowdown()
        worth_s = self.left_s * (1.0 - best / self.slowdown) - self.snapshot.jobs.pause_s
        rows = np.flatnonzero(self.movable & (self.slowdown > best) & (worth_s > 0.0))
        order = np.lexsort((rows, -worth_s[rows]))
        return [int(row) for row in rows[order]]

    def _best_slowdown(self) -> FloatColumn:
        """What each row's place would cost at best: 1, or less if it has GPUs of a faster kind."""
        columns, jobs, slots = self.snapshot.cluster.columns, self.snapshot.jobs, self.slots
        kinds, best = self.snapshot.speeds.places.kinds, np.ones(slots.rows)
        rows = np.repeat(np.arange(slots.rows), np.diff(slots.first))
        of_kind = np.minimum(
            columns.node_kind[columns.island_node[slots.island]], kinds.shape[1] - 1
        )
        np.minimum.at(best, rows, kinds[jobs.curve[rows], of_kind])
        return best

    def without(self, rows: list[int]) -> Slots:
        """The seats of all but these."""
        keep = np.arange(self.slots.rows)
        keep[rows] = -1
        return self.slots.take(keep)

    def trials(self, row: int) -> Iterator[list[int]]:
        """Rows to move for a row's sake: itself; or first itself and then those on one node."""
        yield [row]
        columns, gpus = self.snapshot.cluster.columns, self.slots.totals
        lone = np.flatnonzero(self.movable & (gpus < gpus[row]) & (np.diff(self.slots.first) == 1))
        home = columns.island_node[self.slots.island[self.slots.first[lone]]]
        leads = self._leaders == np.arange(self.slots.rows)
        others = self.without([row, *np.flatnonzero(~leads).tolist()])
        used = others.in_use(columns) + kept_back(self.snapshot)
        free = columns.node_gpus.copy()
        np.subtract.at(free, columns.island_node, used)
        order = np.lexsort((lone, -gpus[lone], home))  # by node, the largest first
        lone, home = lone[order], home[order]
        begin, left = np.searchsorted(home, home), np.cumsum(gpus[lone])
        left += free[home] - left[begin] + gpus[lone[begin]]  # free once it and those before leave
        enough = np.flatnonzero(left >= gpus[row])
        if enough.size:
            last = enough[np.argmin(enough - begin[enough])]  # the fewest
            yield [row, *lone[begin[last] : last + 1].tolist()]

    def moved(self, rows: list[int]) -> Slots:
        """Seats after these rows are placed anew, in this order, around all others."""
        jobs, leaders = self.snapshot.jobs, self._leaders
        columns, reserved = self.snapshot.cluster.columns, kept_back(self.snapshot)
        order: IntColumn = np.array(rows)
        shares = np.where(leaders == np.arange(self.slots.rows), self.slots.totals, 0)
        request = PlacementRequest(shares.reshape(-1, 1), order, jobs.spans, jobs.preferred_node)
        return place_close(columns, self.without(rows), request, reserved).take(leaders)

    @property
    def _leaders(self) -> IntColumn:
        """Whose place each row has: of rows that share GPUs, one stands for all."""
        return leaders_of(self.slots, self.allocation)

    def saved_s(self, slots: Slots) -> tuple[float, FloatColumn]:
        """Time that all jobs together would save with these seats, pauses paid; slowdowns then."""
        after = _slowdowns(self.snapshot, self.allocation, slots)
        saved_s = self.left_s * (1.0 - after / self.slowdown)
        paused = differs(self.slots, slots)
        return float(saved_s.sum() - self.snapshot.jobs.pause_s[paused].sum()), after


def _slowdowns(snapshot: Snapshot, allocation: Allocation, slots: Slots) -> FloatColumn:
    packed_with = (
        np.full(slots.rows, -1) if allocation.packed_with is None else allocation.packed_with
    )
    places, columns = snapshot.speeds.places, snapshot.cluster.columns
    return slowdowns(places, columns, snapshot.jobs.curve, slots, packed_with)


def gathered(placed: Placed, snapshot: Snapshot, allocation: Allocation, moves: int) -> Placed:
    """One round: the same places, after up to `moves` moves that pay. Each says what it gains."""
    if allocation.shares.ndim == 2:
        return placed  # what a job has of each kind was decided
    snapshot = replace(snapshot, reserved=placed.kept_back(snapshot.reserved))
    now, why = Scatter.of(placed, snapshot, allocation), dict[int, str]()
    for row in now.scattered()[: TRIES * max(0, moves)]:
        for rows in now.trials(row):
            if len(why) + len(rows) > moves or not now.movable[rows].all():
                continue
            slots = now.moved(rows)
            saved_s, after = now.saved_s(slots)
            if saved_s > 0.0 and (slots.totals == now.slots.totals).all():
                moved = np.flatnonzero(differs(now.slots, slots)).tolist()
                why |= dict.fromkeys(moved, f"to make room for job {snapshot.jobs.id[row]}")
                why[row] = _sentence(now, slots, row, now.slowdown[row] / after[row], saved_s)
                movable = now.movable.copy()
                movable[moved] = False
                left_s = now.left_s * after / now.slowdown
                now = now._replace(slots=slots, slowdown=after, left_s=left_s, movable=movable)
                break
    return replace(placed, slots=now.slots, why={**placed.why, **why})


def _sentence(now: Scatter, slots: Slots, row: int, faster: float, saved_s: float) -> str:
    columns = now.snapshot.cluster.columns
    before, after = (len(each.nodes(row, columns)) for each in (now.slots, slots))
    unknown = np.isnan(now.snapshot.jobs.remaining_iterations[row])
    return (
        f"from {before} node{'s' * (before > 1)} to {after}: steps {faster:.2f}x faster, "
        f"{saved_s:.0f} s saved" + " if an hour is left" * bool(unknown)
    )

"""What has to change for a decision to hold: the fewest changes from what runs now, each with its
reason.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.columns import BoolColumn, FloatMatrix, IntColumn
from coddl.core.compiling import kernel
from coddl.core.placement.placement import Placed
from coddl.core.slots import Slots
from coddl.core.snapshot import Snapshot
from coddl.core.waiting import Waiting, counted

Action = Literal["start", "resume", "resize", "migrate", "suspend"]


class Change(NamedTuple):
    """One change of one job."""

    job: int  # id
    action: Action
    gpus_before: int
    gpus: int
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision, together with the snapshot it was made on."""

    snapshot: Snapshot
    allocation: Allocation
    placed: Placed | None = None  # None: GPUs are not placed

    @property
    def shares(self) -> IntColumn:
        """GPUs of each row from now on."""
        return self.allocation.gpus

    @property
    def memory(self) -> FloatMatrix:
        """What to carry over to the next decision."""
        memory = self.allocation.memory
        return self.snapshot.memory if memory is None else memory

    @property
    def moved(self) -> BoolColumn:
        """Which rows keep their share and change their GPUs."""
        if self.placed is None or self.snapshot.slots is None:
            return np.zeros(len(self.shares), np.bool_)
        same = (self.shares == self.snapshot.jobs.gpus) & (self.shares > 0)
        moved: BoolColumn = same & differs(self.snapshot.slots, self.placed.slots)
        return moved

    @property
    def changes(self) -> tuple[Change, ...]:
        """What to do, in order of job id. A job whose share and GPUs stay is left alone."""
        rows = np.flatnonzero((self.shares != self.snapshot.jobs.gpus) | self.moved)
        return tuple(self._change(int(row)) for row in rows)

    def waiting(self, row: int) -> Waiting | None:
        """Why this row has no GPUs; None if it has some."""
        return None if self.shares[row] > 0 else self.allocation.waiting.of(row)

    def reason(self, row: int, cause: str = "") -> str:
        """Why this row has what it has from now on; `cause` is what made us decide."""
        after = f" ({cause})" if cause else ""
        if (why := self.waiting(row)) is not None:
            return f"{why.code}: {why.sentence}{after}"
        total = self.snapshot.cluster.gpus_total
        # The cause comes first: a narrow terminal cuts the rest.
        reason = f"{self.shares[row]} of {counted(total, 'GPU')}{after}"
        place = self.placed.why.get(row) if self.placed is not None else None
        return "; ".join(filter(None, [reason, place]))

    def _change(self, row: int) -> Change:
        jobs = self.snapshot.jobs
        before, gpus = int(jobs.gpus[row]), int(self.shares[row])
        action: Action = "resume" if jobs.starts[row] > 0 else "start"
        if before > 0:
            action = "resize" if gpus > 0 else "suspend"
        if before == gpus:
            why = self.placed.why.get(row, "") if self.placed is not None else ""
            reason = f"moves to other GPUs, still {gpus}" + f": {why}" * bool(why)
            return Change(int(jobs.id[row]), "migrate", before, gpus, reason)
        return Change(int(jobs.id[row]), action, before, gpus, self.reason(row))


@kernel
def differs(before: Slots, after: Slots) -> BoolColumn:
    """Return which rows sit elsewhere than before."""
    rows = before.first.shape[0] - 1
    out = np.zeros(rows, np.bool_)
    for row in range(rows):
        old, new = before.first[row], after.first[row]
        size = before.first[row + 1] - old
        out[row] = after.first[row + 1] - new != size
        for i in range(0 if out[row] else size):
            out[row] |= before.island[old + i] != after.island[new + i]
            out[row] |= before.gpus[old + i] != after.gpus[new + i]
    return out

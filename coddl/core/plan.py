"""What has to change for a decision to hold: the fewest changes from what runs now, each with its
reason.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from coddl.core.allocation import Allocation, Waiting
from coddl.core.columns import FloatMatrix, IntColumn
from coddl.core.snapshot import Snapshot

Action = Literal["start", "resume", "resize", "migrate", "suspend", "stop", "share-gpu"]


class Change(NamedTuple):
    """One change of one job."""

    job: int  # id
    action: Action
    gpus_before: int
    gpus: int
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision, together with the picture it was made on."""

    snapshot: Snapshot
    allocation: Allocation

    @property
    def shares(self) -> IntColumn:
        """GPUs of each row from now on."""
        return self.allocation.gpus

    @property
    def memory(self) -> FloatMatrix:
        """What the policy wants to remember."""
        memory = self.allocation.memory
        return self.snapshot.memory if memory is None else memory

    @property
    def changes(self) -> tuple[Change, ...]:
        """What to do, in order of job id. A job whose share stays is left alone."""
        rows = np.flatnonzero(self.shares != self.snapshot.jobs.gpus)
        return tuple(self._change(int(row)) for row in rows)

    def waiting(self, row: int) -> Waiting | None:
        """Why this row has no GPUs; None if it has some."""
        return None if self.shares[row] > 0 else self.allocation.waiting.of(row)

    def reason(self, row: int) -> str:
        """Why this row has what it has from now on."""
        if (why := self.waiting(row)) is not None:
            return f"{why.code}: {why.sentence}"
        rivals = int(np.count_nonzero(self.shares > 0)) - 1
        beside = f"{rivals} other job{'' if rivals == 1 else 's'}" if rivals else "nobody"
        total = self.snapshot.cluster.gpus_total
        return f"{self.shares[row]} of {total} GPUs are its share beside {beside}"

    def _change(self, row: int) -> Change:
        jobs = self.snapshot.jobs
        before, gpus = int(jobs.gpus[row]), int(self.shares[row])
        action: Action = "resume" if jobs.starts[row] > 0 else "start"
        if before > 0:
            action = "resize" if gpus > 0 else "suspend"
        return Change(int(jobs.id[row]), action, before, gpus, self.reason(row))

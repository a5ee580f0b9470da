"""A workload: jobs as columns, and how fast their models train."""

from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np

from coddl.core.columns import BoolColumn, FloatColumn, IntColumn
from coddl.core.errors import UserError
from coddl.core.speed.table import Speeds

Oversize = Literal["error", "skip", "clamp"]  # what becomes of a job that asks for more than there is


@dataclass(frozen=True, eq=False)
class Trace:
    """Jobs in order of submission. Row i of every column is job i."""

    name: str
    speeds: Speeds
    submitted_s: FloatColumn
    curve: IntColumn  # the job's model: its row in `speeds`
    iterations: FloatColumn
    gpus_requested: IntColumn
    gpus_min: IntColumn
    gpus_max: IntColumn
    queue: IntColumn  # index into `queues`
    user: IntColumn  # index into `users`
    queues: tuple[str, ...] = ("",)
    users: tuple[str, ...] = ("",)

    @property
    def size(self) -> int:
        """How many jobs there are."""
        return len(self.submitted_s)

    def rows(self, keep: BoolColumn) -> Self:
        """The same trace with only these jobs."""
        columns = ("submitted_s", "curve", "iterations", "gpus_requested", "gpus_min", "gpus_max")
        return replace(
            self, **{name: getattr(self, name)[keep] for name in (*columns, "queue", "user")}
        )

    def of_queue(self, name: str) -> Self:
        """The jobs of one queue (virtual cluster)."""
        if name not in self.queues:
            raise UserError(
                f'queue "{name}" cannot be simulated',
                f"no job of {self.name} is in it",
                f"one of {', '.join(self.queues)}, or all",
            )
        return self.rows(self.queue == self.queues.index(name))

    def at_load(self, load: float) -> Self:
        """The same jobs, arriving `load` times as fast."""
        return replace(self, submitted_s=self.submitted_s / load)

    def fitted_to(self, gpus: int, oversize: Oversize) -> Self:
        """The trace as a cluster of `gpus` can run it: too large jobs refused, left out or cut down."""
        too_large = np.maximum(self.gpus_requested, self.gpus_min) > gpus
        if too_large.any() and oversize == "error":
            row = int(np.argmax(too_large))
            need = max(self.gpus_requested[row], self.gpus_min[row])
            raise UserError(
                f"{self.name} cannot run on {gpus} GPUs",
                f"job {row} needs {need} GPUs, as {int(too_large.sum()) - 1} others need too many",
                f"--gpus {int(np.maximum(self.gpus_requested, self.gpus_min).max())}, "
                "or --oversize skip, or --oversize clamp",
            )
        fitting = self.rows(~too_large) if oversize == "skip" else self
        return replace(
            fitting,
            gpus_requested=np.minimum(fitting.gpus_requested, gpus),
            gpus_min=np.minimum(fitting.gpus_min, gpus),
            gpus_max=np.minimum(fitting.gpus_max, gpus),
        )

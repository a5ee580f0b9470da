"""A workload: jobs as columns, and how fast their models train."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, Self

import numpy as np

from coddl.core.columns import BoolColumn, FloatColumn, IntColumn
from coddl.core.errors import UserError
from coddl.core.speed.table import Speeds

Oversize = Literal["error", "skip", "clamp"]  # what to do with a job that asks for too much
OVERSIZE_TRY: Final[dict[Oversize, str]] = {
    "error": ", or --oversize skip, or --oversize clamp",
    "clamp": ", or --oversize skip",
    "skip": "",
}


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
    line: IntColumn | None = None  # where in its file each job stands
    group: IntColumn | None = None  # the search a job is part of: index into `groups`, -1: none
    groups: tuple[str, ...] = ()
    weight: FloatColumn | None = None  # slices of time that a job's turn lasts; None: 1 each
    priority: IntColumn | None = None  # jobs of a higher one are served first; None: all alike
    preemptible: IntColumn | None = None  # 0: a job that runs is not stopped; None: all may be

    def __post_init__(self) -> None:
        widest = self.speeds.step_s.shape[1] - 1
        checks = {
            "submitted_s is not a number of seconds, at least 0": (self.submitted_s >= 0)
            & np.isfinite(self.submitted_s),
            "iterations is not a number above 0": (self.iterations > 0)
            & np.isfinite(self.iterations),
            "its model is not in the speed table": (self.curve >= 0)
            & (self.curve < len(self.speeds.names)),
            "gpus_min is not within 1..gpus_max, or not in the speed table": (self.gpus_min >= 1)
            & (self.gpus_min <= np.minimum(self.gpus_max, widest)),
            "gpus_requested is less than gpus_min": self.gpus_requested >= self.gpus_min,
            "weight is not a number above 0": np.isfinite(self.weight) & (self.weight > 0)
            if self.weight is not None
            else np.ones(self.size, np.bool_),
            "it was submitted before the previous job": np.diff(self.submitted_s, prepend=0.0) >= 0,
        }
        for because, holds in checks.items():
            if not holds.all():
                raise UserError(
                    f"trace {self.name} cannot be simulated",
                    f"job {int(np.argmin(holds))}: {because}",
                    "coddl.traces.trace.trace_of, which sorts jobs and fills in defaults",
                )

    @property
    def size(self) -> int:
        """How many jobs there are."""
        return len(self.submitted_s)

    @property
    def length_s(self) -> FloatColumn:
        """How long each job trains on the GPUs it asks for."""
        column = np.minimum(self.gpus_requested, self.speeds.step_s.shape[1] - 1)
        length_s: FloatColumn = self.iterations * self.speeds.step_s[self.curve, column]
        return length_s

    @property
    def cohort(self) -> IntColumn:
        """Jobs by number of what similar ones have in common: queue, user and request."""
        alike = np.stack((self.queue, self.user, self.gpus_requested))
        cohort: IntColumn = np.unique(alike, axis=1, return_inverse=True)[1].ravel()
        return cohort

    def rows(self, keep: BoolColumn) -> Self:
        """The same trace with only these jobs."""
        columns = ("submitted_s", "curve", "iterations", "gpus_requested", "gpus_min", "gpus_max")
        kept = {name: getattr(self, name)[keep] for name in (*columns, "queue", "user")}
        optional = ("line", "group", "weight", "priority", "preemptible")
        options = {name: getattr(self, name) for name in optional}
        kept |= {name: None if cells is None else cells[keep] for name, cells in options.items()}
        return replace(self, **kept)

    def of_queue(self, name: str) -> Self:
        """The jobs of one queue (virtual cluster)."""
        if name not in self.queues:
            raise UserError(
                f'queue "{name}" cannot be simulated',
                f"no job of {self.name} is in it",
                f"one of {', '.join(filter(None, self.queues))}, or all"
                if any(self.queues)
                else "a trace with a column vc or queue; this one has none",
            )
        return self.rows(self.queue == self.queues.index(name))

    def at_load(self, load: float) -> Self:
        """The same jobs, arriving `load` times as fast."""
        if not 0 < load < np.inf:
            raise UserError(
                f"{self.name} cannot be simulated at load {load:g}",
                "a load is a number above 0",
                "--load 1",
            )
        return replace(self, submitted_s=self.submitted_s / load)

    def fitted_to(self, gpus: int, oversize: Oversize) -> Self:
        """The trace on a cluster of `gpus`: jobs too large for it refused, left out or cut down."""
        need = np.maximum(self.gpus_requested, self.gpus_min)
        if oversize == "clamp":  # a request can be cut down, but not below what the model runs on
            need = smallest_shares(self.speeds)[self.curve]
        too_large = need > gpus
        others = int(too_large.sum()) - 1
        if too_large.any() and (oversize != "skip" or too_large.all()):
            row = int(np.argmax(too_large))
            raise UserError(
                f"{self.name} cannot run on {gpus} GPUs",
                (
                    f"the job submitted at {self.submitted_s[row]:g} s"
                    if self.line is None
                    else f"line {self.line[row]}"
                )
                + f" requests {need[row]} GPUs"
                + f", and {others} more jobs request too many" * (others > 0),
                f"--gpus {need.max()}" + OVERSIZE_TRY[oversize],
            )
        fitting = self.rows(~too_large) if oversize == "skip" else self
        return replace(
            fitting,
            gpus_requested=np.minimum(fitting.gpus_requested, gpus),
            gpus_min=np.minimum(fitting.gpus_min, gpus),
            gpus_max=np.minimum(fitting.gpus_max, gpus),
        )


def smallest_shares(speeds: Speeds) -> IntColumn:
    """The smallest share that each curve runs on."""
    smallest: IntColumn = np.argmax(np.isfinite(speeds.step_s), axis=1).astype(np.int64)
    return smallest


def trace_of(
    name: str,
    speeds: Speeds,
    *,
    submitted_s: FloatColumn,
    curve: IntColumn,
    iterations: FloatColumn,
    gpus_requested: IntColumn,
    gpus_min: IntColumn | None = None,
    gpus_max: IntColumn | None = None,
    queue: Sequence[str] | None = None,
    user: Sequence[str] | None = None,
    group: Sequence[str] | None = None,
    weight: FloatColumn | None = None,
    line: IntColumn | None = None,
) -> Trace:
    """A trace of jobs in any order; those submitted at one time stay in the order given.

    A job may hold its model's smallest to largest useful share where nothing else is given. Queues,
    users and groups are given by name, one a job, and numbered in the order of their names; a job
    whose group is "" is on its own.
    """
    gpus_min = smallest_shares(speeds)[curve] if gpus_min is None else gpus_min
    gpus_max = speeds.gpus_max[curve] if gpus_max is None else gpus_max
    queue_index, queues = _numbered(queue, len(curve))
    user_index, users = _numbered(user, len(curve))
    group_index, groups = _numbered(group, len(curve))
    if groups[:1] == ("",):
        group_index, groups = group_index - 1, groups[1:]
    order = np.argsort(submitted_s, kind="stable")
    return Trace(
        name=name,
        speeds=speeds,
        submitted_s=submitted_s[order],
        curve=curve[order],
        iterations=iterations[order],
        gpus_requested=gpus_requested[order],
        gpus_min=gpus_min[order],
        gpus_max=gpus_max[order],
        queue=queue_index[order],
        user=user_index[order],
        queues=queues,
        users=users,
        line=None if line is None else line[order],
        group=group_index[order] if groups else None,
        groups=groups,
        weight=None if weight is None else weight[order],
    )


def _numbered(names: Sequence[str] | None, size: int) -> tuple[IntColumn, tuple[str, ...]]:
    if names is None:
        return np.zeros(size, np.int64), ("",)
    distinct = tuple(sorted(set(names)))
    place = {name: at for at, name in enumerate(distinct)}
    return np.fromiter(map(place.__getitem__, names), np.int64, size), distinct

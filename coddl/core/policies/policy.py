"""What a policy is, and how one with a compiled rule answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, Protocol, TypeAlias

import numpy as np

from coddl.core.allocation import Allocation, Reasons, because
from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn
from coddl.core.snapshot import KernelSnapshot, Snapshot
from coddl.core.waiting import counted

Policy: TypeAlias = Callable[[Snapshot], Allocation]

# (snapshot, parameters, memory by row, shares by position) -> when to ask again. Fills in both.
Rule: TypeAlias = Callable[[KernelSnapshot, FloatColumn, FloatMatrix, IntColumn], float]


class NamedPolicy(Protocol):
    """A policy as a class: its parameters are the class's fields.

    One that remembers something of each job names the columns in `memory`, by `memory_columns`. One
    whose answers are of a class of their own names that in `answer`. One that says which GPUs, too,
    names in `own_placement` the placement that does so in its place where it decides on a part of
    the cluster only. One that gives a job its request or nothing says so: `rigid = True`. One whose
    jobs take turns where there are more of them than GPUs names in `turn_s` how long a turn lasts:
    in a pool, jobs that it gives nothing then share the GPU of a job that has one. It sees those as
    jobs without GPUs, whose `in_turns` is 1.
    """

    def __call__(self, snapshot: Snapshot) -> Allocation:
        """Decide."""


class RulePolicy(ABC):
    """A policy whose arithmetic is a kernel, which the simulator's compiled loop calls too."""

    why: ClassVar[str]  # which jobs hold the GPUs that a job without any would need
    rigid: ClassVar[bool] = False  # it gives a job its request or nothing, not its minimum or more
    memory: ClassVar[tuple[int, ...]] = ()  # the columns that it keeps of each job
    learns: ClassVar[bool] = False  # from the jobs that have ended

    @property
    @abstractmethod
    def rule(self) -> Rule:
        """The kernel."""

    @property
    def parameters(self) -> FloatColumn:
        """Its parameters, as numbers."""
        return parameters()

    def parameters_for(self, snapshot: Snapshot) -> FloatColumn:  # noqa: ARG002 - for others
        """The same for one decision, where some depend on what is known by then."""
        return self.parameters

    def __call__(self, snapshot: Snapshot) -> Allocation:
        """Apply the rule to a snapshot."""
        jobs = snapshot.jobs
        shares, memory = np.zeros(jobs.size, np.int64), snapshot.memory.copy()
        picture = snapshot.for_kernels(learns=self.learns)
        wake_at_s = self.rule(picture, self.parameters_for(snapshot), memory, shares)
        need = jobs.gpus_requested if self.rigid else jobs.gpus_min
        return with_reasons(
            snapshot, Allocation(shares, Reasons(), wake_at_s, memory), self.why, need
        )


def with_reasons(
    snapshot: Snapshot, allocation: Allocation, why: str, need: IntColumn | None = None
) -> Allocation:
    """Add a reason to rows that get nothing: which jobs hold the GPUs they need (default: minimum).

    Reasons that the allocation gives already hold before these.
    """
    gpus, total = allocation.gpus, snapshot.cluster.gpus_total
    without = gpus == 0
    if not without.any():
        return allocation
    need = snapshot.jobs.gpus_min if need is None else need
    free = total - int(gpus.sum())
    too_few = f"{only_free(free)}; {why}"
    waiting = (
        because(
            without & (need > total),
            "Infeasible",
            f"it needs more GPUs than the {total} in the cluster",
        )
        | because(without & (need > free), "Resources", too_few)
        | because(without, "Priority", why)
    )
    return replace(allocation, waiting=allocation.waiting | waiting)


def only_free(gpus: int) -> str:
    """Return a sentence: how many GPUs are free for a job that needs more."""
    return f"only {counted(gpus, 'GPU')} free" if gpus else "no GPU is free"


def parameters(*values: float) -> FloatColumn:
    """Pack parameters for a rule."""
    return np.array(values, np.float64)

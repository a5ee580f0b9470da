"""What holds for every allocation of every policy, ours or anyone's."""

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.columns import IntColumn, IntMatrix
from coddl.core.compiling import kernel
from coddl.core.errors import UserError
from coddl.core.jobs import GPUS_MAX, GPUS_MIN, GPUS_REQUESTED
from coddl.core.snapshot import Snapshot


class InvalidAllocation(UserError):
    """A policy's answer can't be carried out."""


@kernel
def first_misfit(shares: IntColumn, ints: IntMatrix) -> int:
    """The first row whose share is neither 0 nor within what its job can run on; -1 if there is
    none.
    """
    for row in range(shares.shape[0]):
        most = max(ints[GPUS_MAX, row], ints[GPUS_REQUESTED, row])
        if shares[row] != 0 and not ints[GPUS_MIN, row] <= shares[row] <= most:
            return row
    return -1


def check(snapshot: Snapshot, allocation: Allocation) -> None:
    """Raise InvalidAllocation unless the allocation can be carried out and explains itself."""
    if (because := _malformed(snapshot, allocation)) is not None:
        raise _invalid(snapshot, because)
    jobs, gpus, cluster = snapshot.jobs, allocation.gpus, snapshot.cluster
    if (total := int(allocation.exclusive_gpus.sum())) > cluster.gpus_total:
        raise _invalid(snapshot, f"it hands out {total} GPUs and there are {cluster.gpus_total}")
    if (row := first_misfit(gpus, jobs.ints)) >= 0:
        raise _invalid(
            snapshot,
            f"job {jobs.id[row]} gets {gpus[row]} GPUs and can run on "
            f"{jobs.gpus_min[row]}..{max(jobs.gpus_max[row], jobs.gpus_requested[row])}",
        )
    silent = (gpus == 0) & ~allocation.waiting.covered(jobs.size)
    if silent.any():
        raise _invalid(snapshot, f"job {jobs.id[np.argmax(silent)]} gets no GPUs and no reason")


def _malformed(snapshot: Snapshot, allocation: object) -> str | None:
    """What is wrong with the form of an answer: a plug-in's may be anything, whatever types say."""
    jobs, kinds = snapshot.jobs.size, len(snapshot.cluster.kinds)
    if not isinstance(allocation, Allocation):
        return f"it is a {type(allocation).__name__}, not an Allocation"
    shares: object = allocation.shares
    if not isinstance(shares, np.ndarray) or shares.dtype != np.int64:
        kind = shares.dtype if isinstance(shares, np.ndarray) else type(shares).__name__
        return f"its shares are {kind}, not an int64 array"
    if shares.shape != (jobs,) and shares.shape != (jobs, kinds):
        return f"its shares have the shape {shares.shape} for {jobs} jobs and {kinds} kinds of GPU"
    if allocation.packed_with is not None and not _mutual(
        allocation.packed_with, allocation.by_kind
    ):
        return "rows that share GPUs must name the first of them and hold as many"
    if shares.ndim == 2 and (shares < 0).any():
        return (
            f"job {snapshot.jobs.id[np.argmin(shares.min(axis=1))]} gets less than none of a kind"
        )
    if shares.ndim == 2 and (allocation.exclusive.sum(axis=0) > snapshot.cluster.gpus).any():
        return f"it hands out {allocation.exclusive.sum(axis=0)} of {snapshot.cluster.gpus}"
    if any(covers.shape != (jobs,) for covers, _ in allocation.waiting.layers):
        return f"its reasons are not for {jobs} jobs"
    if allocation.memory is not None and allocation.memory.shape != snapshot.memory.shape:
        return f"its memory has the shape {allocation.memory.shape}, not {snapshot.memory.shape}"
    if not allocation.wake_at_s > snapshot.now_s:
        return f"it asks to be woken at {allocation.wake_at_s}, which is not later than now"
    return None


def _mutual(packed_with: IntColumn, by_kind: IntMatrix) -> bool:
    """Return whether rows that share GPUs agree on it."""
    if packed_with.shape != by_kind.shape[:1]:
        return False
    rows = np.flatnonzero(packed_with >= 0)
    others = packed_with[rows]
    return bool(
        (others != rows).all()
        and np.where(others < rows, packed_with[others] > others, packed_with[others] == rows).all()
        and (by_kind[others] == by_kind[rows]).all()
    )


def _invalid(snapshot: Snapshot, because: str) -> InvalidAllocation:
    return InvalidAllocation(
        f"the policy's answer at t={snapshot.now_s:.1f}s cannot be carried out",
        because,
        "coddl.testing.PolicyContract on the policy: it finds the smallest such case",
    )

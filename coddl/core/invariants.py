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
def first_misfit(shares: IntColumn, whole: IntMatrix) -> int:
    """The first row whose share is neither 0 nor within what its job can run on; -1 if there is
    none.
    """
    for row in range(shares.shape[0]):
        most = max(whole[GPUS_MAX, row], whole[GPUS_REQUESTED, row])
        if shares[row] != 0 and not whole[GPUS_MIN, row] <= shares[row] <= most:
            return row
    return -1


def check(snapshot: Snapshot, allocation: Allocation) -> None:
    """Raise InvalidAllocation unless the allocation can be carried out and explains itself."""
    jobs, shares = snapshot.jobs, allocation.shares
    if getattr(shares, "dtype", None) != np.int64:  # a plug-in's, whatever its types promise
        raise _invalid(snapshot, f"its shares are {type(shares).__name__}, not an int64 array")
    if shares.shape[0] != jobs.size:
        raise _invalid(snapshot, f"it has {shares.shape[0]} shares for {jobs.size} jobs")
    gpus = allocation.gpus
    if shares.ndim == 2 and (shares.sum(axis=0) > snapshot.cluster.gpus).any():
        raise _invalid(snapshot, f"it hands out {shares.sum(axis=0)} of {snapshot.cluster.gpus}")
    if (total := int(gpus.sum())) > snapshot.cluster.gpus_total:
        raise _invalid(
            snapshot, f"it hands out {total} GPUs and there are {snapshot.cluster.gpus_total}"
        )
    if (row := first_misfit(gpus, jobs.whole)) >= 0:
        raise _invalid(
            snapshot,
            f"job {jobs.id[row]} gets {gpus[row]} GPUs and can run on "
            f"{jobs.gpus_min[row]}..{max(jobs.gpus_max[row], jobs.gpus_requested[row])}",
        )
    silent = (gpus == 0) & ~allocation.waiting.covered(jobs.size)
    if silent.any():
        raise _invalid(
            snapshot, f"job {jobs.id[np.argmax(silent)]} gets no GPUs and is not told why"
        )


def _invalid(snapshot: Snapshot, because: str) -> InvalidAllocation:
    return InvalidAllocation(
        f"the policy's answer at t={snapshot.now_s:.1f}s cannot be carried out",
        because,
        "coddl.testing.PolicyContract on the policy: it finds the smallest such case",
    )

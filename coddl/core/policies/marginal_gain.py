"""The next GPU where it gains most: in remaining time (Optimus) or in speed-up (Max-Speedup)."""

from dataclasses import dataclass

import numpy as np

from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn
from coddl.core.compiling import kernel
from coddl.core.kernels import (
    REMAINING_TIME,
    SPEEDUP,
    grant_minimum,
    grant_minimum_as_submitted,
    grow_all,
    grow_by_gain,
)
from coddl.core.policies.policy import RulePolicy, parameters
from coddl.core.snapshot import KernelSnapshot


@kernel
def marginal_gain(
    snapshot: KernelSnapshot, params: FloatColumn, memory: FloatMatrix, shares: IntColumn
) -> float:
    """Everyone's minimum in order of submission, then one step at a time by gain. params: [which
    gain].
    """
    left = grant_minimum(snapshot, shares)
    if left < 0:
        left = grant_minimum_as_submitted(snapshot, shares)
    if left > 0 and not grow_all(snapshot, left, shares):
        grow_by_gain(snapshot, int(params[0]), left, shares)
    return np.inf


@dataclass(frozen=True)
class Optimus(RulePolicy):
    """Gives the next GPU to the job whose remaining time drops most (EuroSys '18, share form).

    Partial share · under overload, first come first served with gpus_min each · cap: the model's
    largest useful share.
    """

    rule = staticmethod(marginal_gain)
    why = "jobs submitted earlier hold the GPUs"

    @property
    def parameters(self) -> FloatColumn:
        return parameters(REMAINING_TIME)


@dataclass(frozen=True)
class MaxSpeedup(RulePolicy):
    """Gives the next GPU to the job whose speed-up over its smallest share rises most; length plays
    no part.

    Partial share · under overload, first come first served with gpus_min each · cap: the model's
    largest useful share.
    """

    rule = staticmethod(marginal_gain)
    why = "jobs submitted earlier hold the GPUs"

    @property
    def parameters(self) -> FloatColumn:
        return parameters(SPEEDUP)

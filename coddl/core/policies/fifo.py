"""First in, first out."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn
from coddl.core.compiling import kernel, kernel_int
from coddl.core.jobs import GPUS_REQUESTED
from coddl.core.kernels import SKIP, STRICT, serve_running_first
from coddl.core.named import Meaning
from coddl.core.policies.policy import RulePolicy, parameters
from coddl.core.snapshot import KernelSnapshot

REQUEST = kernel_int(GPUS_REQUESTED)


@kernel
def fifo(
    snapshot: KernelSnapshot, params: FloatColumn, memory: FloatMatrix, shares: IntColumn
) -> float:
    """Running jobs first, in order of their start; then the others as they came. params:
    [backfill].
    """
    strict = SKIP if params[0] != 0.0 else STRICT
    serve_running_first(snapshot, REQUEST, strict, shares)
    return np.inf


@dataclass(frozen=True)
class Fifo(RulePolicy):
    """Jobs run in order of submission on the GPUs they asked for, all or none, and are never
    preempted.

    Rigid request · strict order with head-of-line blocking, unless `backfill` · no cap but the
    request.
    """

    backfill: Annotated[bool, Meaning("true: start later jobs past one that does not fit")] = False

    rule = staticmethod(fifo)
    why = "jobs submitted earlier are ahead of it"
    rigid = True

    @property
    def parameters(self) -> FloatColumn:
        return parameters(self.backfill)

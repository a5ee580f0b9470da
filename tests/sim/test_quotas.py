"""What each queue is entitled to, as users write it."""

from collections.abc import Sequence

import numpy as np
import pytest

from coddl.core.errors import UserError
from coddl.core.registry import policy_from
from coddl.sim.quotas import quotas_from
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, run_case
from coddl.testing.builders import speeds_from
from coddl.traces.trace import Trace, trace_of


def trace(*jobs: tuple[str, float, int, float]) -> Trace:
    """Jobs as (queue, when, GPUs, seconds)."""
    queue, submitted_s, gpus, length_s = zip(*jobs, strict=True)
    return trace_of(
        "told",
        speeds_from([[1.0] * 8]),
        submitted_s=np.array(submitted_s, float),
        curve=np.zeros(len(jobs), np.int64),
        iterations=np.array(length_s, float),
        gpus_requested=np.array(gpus, np.int64),
        queue=list(queue),
    )


JOBS = trace(("a", 0.0, 1, 100.0), ("b", 0.0, 4, 50.0), ("c", 0.0, 2, 50.0))


@pytest.mark.parametrize(
    ("spec", "gpus", "want"),
    [
        ("none", 8, []),
        ("equal", 9, [3, 3, 3]),
        ("equal", 8, [3, 3, 2]),
        ("demand", 8, [2, 4, 2]),
        ("demand", 9, [2, 5, 2]),  # of 2.25, 4.5 and 2.25
        ("b=5", 8, [0, 5, 0]),
        ("c=1,a=7", 8, [7, 0, 1]),
    ],
)
def test_quotas_as_they_are_written(spec: str, gpus: int, want: Sequence[int]) -> None:
    assert quotas_from(spec, JOBS, gpus).tolist() == want


@pytest.mark.parametrize(
    "spec", ["fair", "a", "a=", "a=x", "a=-1", "=3", "d=3", "a=1,a=2", "a=5,b=4", "a=1,,b=1"]
)
def test_quotas_that_make_no_sense_are_refused(spec: str) -> None:
    with pytest.raises(UserError):
        quotas_from(spec, JOBS, 8)


def test_a_queue_gets_its_gpus_back_from_who_borrowed_them() -> None:
    # Queue b borrows all eight; a claims its four at 10 s, and the second job of b stops for it.
    jobs = trace(("b", 0.0, 4, 100.0), ("b", 1.0, 4, 100.0), ("a", 10.0, 4, 50.0))
    case = Case(
        RunKey("philly", 8), policy_from("philly"), jobs, quota_gpus=quotas_from("equal", jobs, 8)
    )
    assert run_case(case).finish_s == pytest.approx([100.0, 151.0, 60.0])
    without = Case(RunKey("philly", 8), policy_from("philly"), jobs)
    assert run_case(without).finish_s == pytest.approx([100.0, 101.0, 150.0])

"""The real Philly trace and the full speed tables, where they are at hand."""

from pathlib import Path

import numpy as np
import pytest

from coddl.traces.files import packaged_speeds, read_speeds, read_trace
from coddl.traces.philly import AFS_MODELS

PHILLY = Path(__file__).parents[2] / "../shared/data/philly"
pytestmark = pytest.mark.skipif(
    not PHILLY.is_dir(), reason="the Philly trace is not at ../shared/data/philly"
)


def test_the_packaged_points_give_back_the_full_tables() -> None:
    full, packaged = read_speeds(PHILLY / "step_times.csv"), packaged_speeds(*AFS_MODELS)
    assert packaged.names == full.names == AFS_MODELS
    assert packaged_speeds().names == (*AFS_MODELS, "facenet")
    assert np.array_equal(packaged.gpus_max, full.gpus_max)
    assert np.allclose(packaged.step_s, full.step_s, rtol=0, atol=2e-6)


def test_the_whole_trace_is_read() -> None:
    trace = read_trace(PHILLY / "jobs.csv.gz")
    assert (trace.size, len(trace.queues)) == (109_532, 12)
    assert trace.of_queue("ed69ec").size == 1400
    assert trace.speeds.names == AFS_MODELS  # of the table beside it, not the packaged one
    assert (np.diff(trace.submitted_s) >= 0).all()
    assert (trace.gpus_requested <= trace.gpus_max).all()


def test_models_were_drawn_as_we_draw_them() -> None:
    """This cluster lost no job for being too short, so every draw is there."""
    trace = read_trace(PHILLY / "jobs.csv.gz").of_queue("0e4a51")
    chance = np.random.RandomState(0)
    for curve, gpus in zip(trace.curve, trace.gpus_requested, strict=True):
        pool = np.flatnonzero(trace.speeds.gpus_max >= gpus)
        assert pool[chance.randint(0, len(pool))] == curve

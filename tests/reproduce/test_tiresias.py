"""Tiresias against FIFO on the virtual clusters of a trace."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from coddl.reproduce import tiresias_philly
from coddl.reproduce.experiment import Finding, Inputs
from coddl.reproduce.tiresias_philly import GPUS, gains, queues_of
from coddl.testing.builders import speeds_from
from coddl.traces.trace import trace_of

HOUR_S = 3600.0
STEP_S = [1.0] * 64  # whatever the share


def test_load_is_the_work_over_what_the_gpus_do_while_jobs_come() -> None:
    # Three jobs for all GPUs, the second for more than there are: an hour each, within two hours.
    jobs = trace_of(
        "three",
        speeds_from([STEP_S]),
        submitted_s=np.array([0.0, HOUR_S, 2 * HOUR_S]),
        curve=np.zeros(3, np.int64),
        iterations=np.full(3, HOUR_S),
        gpus_requested=np.array([GPUS, 64, GPUS]),
        queue=["a"] * 3,
    )
    [queue] = queues_of(jobs)
    assert queue.trace.gpus_requested.tolist() == [GPUS] * 3
    assert queue.load == pytest.approx(1.5)
    assert not queue.is_busy  # its queue grows
    [alone] = queues_of(jobs.rows(np.arange(3) < 1))
    assert alone.load == np.inf


@pytest.fixture(scope="module")
def finding(tmp_path_factory: pytest.TempPathFactory) -> Finding:
    """What is found where one cluster is held up by large jobs, and one has no queue."""
    folder = tmp_path_factory.mktemp("data") / "philly"
    folder.mkdir()
    large = [f"held,{600 * at},m,{HOUR_S},40" for at in range(6)]
    small = [f"held,{600 * at + 60},m,{HOUR_S / 6},1" for at in range(36)]
    late = [f"held,{6 * HOUR_S},m,60,1"]
    idle = [f"idle,{at * HOUR_S},m,600,1" for at in range(3)]
    lines = ["vc,submitted_s,model,iterations,gpus_requested", *large, *small, *late, *idle]
    (folder / "jobs.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    speeds = ["model,global_batch,gpus,step_s", "m,64,1,1.0", "m,64,64,1.0"]
    (folder / "step_times.csv").write_text("\n".join(speeds))
    return tiresias_philly.against_fifo(Inputs(Path(folder.parent)))


def test_figures_are_of_busy_clusters_and_details_of_all(finding: Finding) -> None:
    assert "held" in finding.figures[0].what
    assert "idle" not in finding.figures[0].what
    assert {figure.published for figure in finding.figures[:2]} == {"up to 5.5x"}
    assert finding.plot.categories == ["held (43 jobs)"]
    assert finding.details is not None
    assert [row[0] for row in finding.details.rows] == ["idle (3 jobs)", "held (43 jobs)"]
    assert {len(row) for row in finding.details.rows} == {len(finding.details.head)}


def test_small_jobs_pass_large_ones_that_do_not_fit(finding: Finding) -> None:
    assert finding.details is not None
    idle, held = finding.details.rows
    assert idle[-1] == "1.00x"
    assert float(held[-1].rstrip("x")) > 1.5
    hours = {name: values[0] for name, values in finding.plot.bars.items()}
    assert hours["FIFO"] > hours["FIFO with backfill"] >= hours["SRSF"]
    assert gains([hours["FIFO, placed"]], [hours["Tiresias-L, placed"]])[0] > 1.5

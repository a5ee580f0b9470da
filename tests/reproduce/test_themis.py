"""The workload of Themis' experiments, and how figures over several workloads are written."""

import numpy as np
import pytest

from coddl.reproduce import themis
from coddl.reproduce.experiment import Inputs


@pytest.mark.parametrize("seed", [0, 1])
def test_every_job_takes_an_hour_however_many_gpus_it_has(seed: int) -> None:
    trace = themis.workload(seed)
    assert trace.size == themis.JOBS
    for step_s in trace.speeds.step_s.T[1 : themis.GPUS + 1]:
        assert not (trace.iterations * step_s[trace.curve] < themis.LEAST_S * (1 - 1e-9)).any()


@pytest.mark.parametrize("seed", [0, 1])
def test_a_workload_has_the_load_that_is_stated(seed: int) -> None:
    trace = themis.workload(seed)
    assert trace.submitted_s[0] == 0.0
    offered = trace.gpus_requested @ trace.length_s / trace.submitted_s[-1] / themis.GPUS
    assert offered == pytest.approx(themis.LOAD)


def test_workloads_of_a_seed_differ() -> None:
    runs = themis.runs_of(Inputs(seeds=1), ("max-min",))["max-min"]
    assert len(runs) == themis.WORKLOADS_PER_SEED
    assert len({float(run.rho.max()) for run in runs}) == len(runs)


def test_a_figure_has_its_interval() -> None:
    assert themis.mean_and_interval([1.0, 1.0, 1.0]) == "1.00 ± 0.00"
    assert themis.mean_and_interval([1.0, 2.0]) == "1.50 ± 6.35"


def test_jains_index_is_one_where_all_are_equal() -> None:
    assert themis.jain(np.full(4, 3.0)) == pytest.approx(1.0)
    assert themis.jain(np.array([1.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)

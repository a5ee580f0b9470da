"""Optimus on measured speeds: curves that saturate, and what MXNet's assignment costs."""

import numpy as np
import pytest

from coddl.reproduce.experiment import Inputs
from coddl.reproduce.optimus_testbed import (
    BLOCKS,
    EXPERIMENTS,
    least_s,
    measured_jobs,
    measured_speeds,
    outcomes,
    with_default_assignment,
)


def test_measured_models_gain_nothing_past_a_few_workers_and_servers() -> None:
    speeds = measured_speeds()
    best = speeds.step_s[:, 1:].argmin(axis=1) + 1  # with as many servers as workers
    assert ((best >= 2) & (best <= 7)).all()
    assert (speeds.step_s[:, 16] > 1.05 * speeds.step_s.min(axis=1)).all()


def test_an_uneven_assignment_only_slows_down_the_models_whose_blocks_are_known() -> None:
    even = measured_speeds()
    uneven = with_default_assignment(even)
    slower = uneven.servers.step_s[:, 1:, 1:] - even.servers.step_s[:, 1:, 1:]
    known = np.isin(even.names, list(BLOCKS))
    assert (slower[known] >= -1e-12).all()
    assert (slower[known][:, :, 1:].max(axis=(1, 2)) > 0.0).all()
    assert (slower[~known] == 0.0).all()
    assert slower[:, :, 0] == pytest.approx(0.0)  # a single server has all parameters


def test_no_system_does_better_than_every_job_on_its_best_tasks_at_once() -> None:
    speeds, of = measured_speeds(), outcomes(1)
    least_h = least_s(measured_jobs(0, speeds), speeds) / 3600.0
    assert all(each.jct_h > least_h for each in of.values())
    assert of["Optimus"].jct_h < min(each.jct_h for name, each in of.items() if name != "Optimus")
    assert of["DRF"].jct_h >= of["DRF with PAA"].jct_h


def test_the_finding_says_what_is_missing() -> None:
    [experiment] = EXPERIMENTS
    finding = experiment.run(Inputs(seeds=1))
    assert any("Not reached" in note and "139 %" in note for note in finding.notes)
    assert finding.figures[0].published == "2.39"

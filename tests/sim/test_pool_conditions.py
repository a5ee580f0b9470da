"""What happens in a simulated pool whatever is decided: capacity, users, starts."""

from dataclasses import replace

import numpy as np
import pytest

from coddl.core.pool.timeline import Capacity
from coddl.core.registry import policy_from
from coddl.sim.pool_conditions import PoolConditions, UserAction
from coddl.sim.run import Run
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, run_case
from coddl.sim.world import SHARE, Reconfigure
from coddl.testing.builders import speeds_from
from coddl.traces.trace import Trace, trace_of

LINEAR = [1.0, 0.5, 1 / 3, 0.25]


def trace(*work: float, every_s: float = 0.0) -> Trace:
    """Jobs for up to four GPUs, with so many steps each, of a second on one GPU."""
    count = len(work)
    return trace_of(
        "jobs",
        speeds_from([LINEAR]),
        submitted_s=np.array([at * every_s for at in range(count)]),
        curve=np.zeros(count, np.int64),
        iterations=np.array(work),
        gpus_requested=np.full(count, 4),
        gpus_min=np.ones(count, np.int64),
        gpus_max=np.full(count, 4),
    )


def run(
    jobs: Trace,
    capacity: tuple[tuple[float, int], ...] = ((0.0, 4),),
    actions: tuple[UserAction, ...] = (),
    *,
    start_s: float = 0.0,
    small_s: float = 0.0,
) -> Run:
    conditions = PoolConditions(
        start_s=np.full(jobs.size, start_s),
        small_s=np.full(jobs.size, small_s),
        tells_length=np.ones(jobs.size, np.bool_),
        capacity=[Capacity(*each) for each in capacity],
        actions=actions,
    )
    case = Case(
        RunKey("max-min", 4),
        policy_from("max-min"),
        jobs,
        reconfigure=Reconfigure("concurrent"),
        conditions=conditions,
        keep_events=True,
    )
    return run_case(case)


def shares(found: Run, job: int = 0) -> list[tuple[float, int]]:
    """The shares that a job was given, and when."""
    assert found.events is not None
    told = zip(*(column.tolist() for column in found.events), strict=True)
    return [(at_s, gpus) for at_s, kind, row, gpus in told if kind == SHARE and row == job]


def test_gpus_come_and_go() -> None:
    found = run(trace(100.0), ((0.0, 1), (20.0, 4), (30.0, 2)))
    assert shares(found) == [(0.0, 1), (20.0, 4), (30.0, 2)]
    assert found.finish_s[0] == pytest.approx(30.0 + (100 - 20 - 40) / 2)


def test_without_gpus_jobs_wait_for_some() -> None:
    found = run(trace(10.0), ((0.0, 0), (50.0, 2)))
    assert found.finish_s[0] == pytest.approx(55.0)


def test_two_jobs_give_way_at_once_when_gpus_are_lost() -> None:
    found = run(trace(100.0, 100.0), ((0.0, 4), (10.0, 2)))
    assert found.finish_s.tolist() == pytest.approx([90.0, 90.0])


def test_a_suspended_job_leaves_its_gpus_to_others_until_it_is_resumed() -> None:
    actions = (UserAction(10.0, 0, "suspend"), UserAction(50.0, 0, "resume"))
    found = run(trace(100.0, 400.0), actions=actions)
    assert shares(found, 0) == [(0.0, 2), (10.0, 0), (50.0, 2)]
    assert (10.0, 4) in shares(found, 1)


def test_a_job_that_is_suspended_before_it_starts_waits() -> None:
    found = run(trace(40.0), actions=(UserAction(0.0, 0, "suspend"), UserAction(9.0, 0, "resume")))
    assert shares(found) == [(9.0, 4)]


def test_bounds_and_priorities_change() -> None:
    actions = (UserAction(10.0, 0, "bounds", (1, 1, 1)), UserAction(20.0, 1, "priority", (5,)))
    found = run(trace(100.0, 400.0), actions=actions)
    assert shares(found, 0)[:3] == [(0.0, 2), (10.0, 1), (20.0, 0)]


def test_a_job_takes_its_time_to_start_and_stays_small_until_it_was_measured() -> None:
    found = run(trace(100.0), start_s=5.0, small_s=15.0)
    assert shares(found) == [(0.0, 1), (15.0, 4)]
    assert found.finish_s[0] == pytest.approx(15.0 + (100 - 10) / 4)


def test_a_job_that_starts_is_not_stopped() -> None:
    """The second one has a higher priority."""
    jobs = replace(trace(100.0, 10.0, every_s=5.0), priority=np.array([0, 1]))
    assert shares(run(jobs, ((0.0, 1),)))[1] == (5.0, 0)
    assert shares(run(jobs, ((0.0, 1),), start_s=8.0)) == [(0.0, 1)]


def test_a_job_that_is_not_preemptible_keeps_what_it_has() -> None:
    jobs = replace(trace(100.0, 10.0, every_s=5.0), priority=np.array([0, 1]))
    jobs = replace(jobs, preemptible=np.array([0, 1]))
    assert shares(run(jobs, ((0.0, 1),))) == [(0.0, 1)]


def test_what_happens_after_the_last_job_is_not_waited_for() -> None:
    assert run(trace(10.0), ((0.0, 1), (1e6, 4))).end_s == 10.0

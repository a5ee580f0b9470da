"""Failures: what they cost a job, and how many the published rates give."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from coddl.core.cluster import Cluster
from coddl.core.columns import BoolColumn
from coddl.core.errors import UserError
from coddl.core.registry import placement_from, policy_from
from coddl.sim.failures import PRERUN_S, Faults, PhillyFailures, TraceWithFaults, failures_from
from coddl.sim.run import Losses, Run
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, run_case
from coddl.sim.world import FAIL, MODES, Reconfigure, ReconfigureMode
from coddl.testing.builders import speeds_from
from coddl.traces.generators import poisson
from coddl.traces.trace import Trace, trace_of

NEVER = np.inf


@dataclass(frozen=True)
class Told:
    """Misfortunes as a test gives them: levels at which the tries of job 0 fail."""

    fails_at: Sequence[float] = ()
    ends_at: float = 0.0
    checkpoint_s: float = NEVER
    given_up: bool = True  # after the last of them

    def draw(self, trace: Trace, seed: int) -> TraceWithFaults:  # noqa: ARG002 (a test draws nothing)
        levels = np.zeros((len(self.fails_at) + 1, trace.size))
        levels[:-1, 0] = self.fails_at
        levels[-1, 0] = np.inf if self.given_up and self.fails_at else 0.0
        ends_at = np.zeros(trace.size)
        ends_at[0] = self.ends_at
        return TraceWithFaults(trace, Faults(levels, ends_at, self.checkpoint_s))


def trace(*rows: tuple[float, float], gpus: int = 1) -> Trace:
    """Jobs that come at a time and do so many iterations, a second each on one GPU."""
    submitted_s, iterations = np.array(rows).T
    curve = np.zeros(len(rows), np.int64)
    return trace_of(
        "told",
        speeds_from([[1.0, 0.5]]),
        submitted_s=submitted_s,
        curve=curve,
        iterations=iterations,
        gpus_requested=curve + gpus,
    )


def run(told: Told, jobs: Trace, policy: str = "fifo", gpus: int = 1) -> tuple[Run, Losses]:
    case = Case(RunKey(policy, gpus), policy_from(policy), jobs, failures=told, keep_events=True)
    made = run_case(case)
    assert made.losses is not None
    return made, made.losses


@dataclass(frozen=True)
class Story:
    told: Told
    finish_s: float
    lost_gpu_s: float = 0.0
    failures: int = 0
    ends: str = "succeeded"


# One job of 100 s on one GPU.
STORIES = {
    "nothing happens": Story(Told(), 100.0),
    "without a checkpoint it begins anew": Story(Told([45.0], given_up=False), 155.0, 55.0, 1),
    "what was done since the checkpoint is done again": Story(
        Told([45.0], checkpoint_s=30.0, given_up=False), 125.0, 25.0, 1
    ),
    "a second failure costs what the first did": Story(
        Told([45.0, 44.0], checkpoint_s=30.0, given_up=False), 151.0, 51.0, 2
    ),
    "an error strikes at every try until the job is given up": Story(
        Told([90.0, 90.0, 90.0]), 30.0, 30.0, 3, "failed"
    ),
    "all that a failed job had is lost, whatever its checkpoints": Story(
        Told([50.0], checkpoint_s=10.0), 50.0, 50.0, 1, "failed"
    ),
    "its user stops it": Story(Told(ends_at=40.0), 60.0, 0.0, 0, "killed"),
    "it fails before its user stops it": Story(
        Told([70.0], ends_at=40.0, given_up=False), 90.0, 30.0, 1, "killed"
    ),
    "its user stops it before it fails": Story(Told([30.0], ends_at=40.0), 60.0, 0.0, 0, "killed"),
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_what_a_failure_costs_one_job(story: Story) -> None:
    made, losses = run(story.told, trace((0.0, 100.0)))
    ends = {"succeeded": made.succeeded, "failed": losses.failed, "killed": losses.killed}
    assert made.finish_s[0] == pytest.approx(story.finish_s)
    assert losses.lost_gpu_s[0] == pytest.approx(story.lost_gpu_s)
    assert losses.failures[0] == story.failures
    assert [name for name, holds in ends.items() if holds[0]] == [story.ends]
    assert made.attained_gpu_s[0] == pytest.approx(story.finish_s)


def test_a_job_that_fails_leaves_its_gpu_to_the_next_in_line() -> None:
    made, _ = run(Told([90.0], given_up=False), trace((0.0, 100.0), (1.0, 20.0)), policy="srtf")
    # Job 1 is shorter and comes at 1 s: until 21 s it trains, then job 0 with 99 left. That fails
    # 9 s later and, with no checkpoint but that of its suspension, goes on with 99 left.
    assert made.finish_s == pytest.approx([129.0, 21.0])


def test_a_checkpoint_holds_what_was_done_at_every_share_until_then() -> None:
    # 20 iterations on two GPUs until 10 s, 15 on one until the checkpoint at 25 s; 65 are left.
    # At 30 s job 1 ends, and 5 s later, with 50 left, job 0 fails.
    jobs = trace((0.0, 100.0), (10.0, 20.0), gpus=2)
    jobs = replace(jobs, gpus_max=np.array([2, 1]))
    told = Told([50.0], checkpoint_s=25.0, given_up=False)
    made, losses = run(told, jobs, policy="max-min", gpus=2)
    assert made.finish_s == pytest.approx([35.0 + 65.0 / 2, 30.0])
    assert losses.lost_gpu_s == pytest.approx([5.0 * 1 + 5.0 * 2, 0.0])


def test_metrics_are_of_the_jobs_that_trained_to_their_end() -> None:
    jobs = trace((0.0, 100.0), (0.0, 10.0), (0.0, 20.0))
    made, _ = run(Told([50.0]), jobs, gpus=3)
    metrics = made.metrics()
    assert (metrics.jobs, metrics.failed_jobs, metrics.killed_jobs) == (2, 1, 0)
    assert metrics.avg_jct_s == pytest.approx(15.0)
    assert metrics.lost_gpu_hours == pytest.approx(50.0 / 3600.0)
    assert metrics.gpu_hours == pytest.approx(80.0 / 3600.0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("policy", ["srtf", "afs-l"])
def test_both_loops_fail_the_same_jobs_at_the_same_times(
    mode: ReconfigureMode, policy: str
) -> None:
    often = PhillyFailures(hardware_gpu_h=5.0, checkpoint_s=600.0)
    case = Case(
        RunKey(policy, 16),
        policy_from(policy),
        poisson(jobs=120, gpus=16, load=1.5, seed=4),
        reconfigure=Reconfigure(mode, 20.0, 5.0),
        failures=often,
        keep_events=True,
    )
    compiled, stepwise = run_case(case), run_case(case, step_by_step=True)
    assert compiled.events is not None
    assert stepwise.events is not None
    assert all(map(np.array_equal, compiled.events, stepwise.events))
    assert compiled.finished.all()
    assert compiled.losses is not None
    assert compiled.losses.failures.sum() == (compiled.events.kind == FAIL).sum() > 60
    assert compiled.attained_gpu_s.sum() <= 16 * compiled.end_s


def test_a_job_that_failed_is_placed_anew() -> None:
    jobs = trace((0.0, 100.0), (60.0, 30.0), gpus=2)
    cluster, place = Cluster.of(4, gpus_per_node=2), placement_from("consolidate")
    case = Case(RunKey("fifo", 4), policy_from("fifo"), jobs, cluster=cluster, placement=place)
    made = run_case(replace(case, failures=Told([40.0], given_up=False)))
    assert made.finish_s == pytest.approx([30.0 + 50.0, 60.0 + 15.0])
    assert made.migrations == 0


def test_as_many_jobs_fail_and_are_killed_as_published() -> None:
    jobs = poisson(jobs=40_000, gpus=64, seed=2)
    drawn = PhillyFailures().draw(jobs, seed=0)
    errs: BoolColumn = np.all(drawn.faults.fails_at[:-1] > 0.0, axis=0)
    assert errs.mean() == pytest.approx(0.172, abs=0.01)
    assert ((drawn.faults.ends_at > 0.0) & ~errs).mean() == pytest.approx(0.135, abs=0.01)
    gpu_s = jobs.iterations * jobs.speeds.step_s[jobs.curve, jobs.gpus_requested]
    gpu_s = (gpu_s * jobs.gpus_requested)[~errs]
    stops = (drawn.faults.ends_at / jobs.iterations)[~errs]
    killed_gpu_s = ((1.0 - stops) * gpu_s)[stops > 0.0].sum()
    passed_gpu_s = gpu_s[stops == 0.0].sum()
    assert killed_gpu_s / passed_gpu_s == pytest.approx(37.7 / 44.5, rel=0.1)
    small, large = (errs[jobs.gpus_requested == gpus].mean() for gpus in (1, 8))
    assert large > 1.4 * small


def test_unsuccessful_jobs_take_as_much_gpu_time_as_published() -> None:
    jobs = poisson(jobs=20_000, gpus=64, seed=2)
    once = PhillyFailures(retries=0, hardware_gpu_h=1e9)  # what retries take is not put in
    faults = once.draw(jobs, seed=0).faults
    stops = np.maximum(faults.fails_at[0], faults.ends_at) / jobs.iterations
    gpu_s = (1.0 - stops) * jobs.length_s * jobs.gpus_requested
    failed = faults.fails_at[0] > 0.0
    assert gpu_s[failed].sum() / gpu_s.sum() == pytest.approx(0.178, abs=0.01)


def test_half_of_the_errors_come_early_and_failures_of_hardware_late() -> None:
    jobs = poisson(jobs=40_000, gpus=64, seed=2)
    jobs = replace(jobs, iterations=jobs.iterations * 1000.0)  # none ends before its misfortune
    errors, both = (
        PhillyFailures(hardware_gpu_h=hours).draw(jobs, seed=0).faults.fails_at[0]
        for hours in (1e12, 5000.0)
    )
    errors_s, both_s = ((1.0 - at / jobs.iterations) * jobs.length_s for at in (errors, both))
    # The median of the quick half.
    assert np.quantile(errors_s[errors > 0.0], 0.25) == pytest.approx(120.0, rel=0.1)
    hardware_gpu_s = (both_s * jobs.gpus_requested)[(errors == 0.0) & (both > 0.0)]
    assert np.median(hardware_gpu_s) > 500 * 3600.0  # of 5,000 in the mean, less than jobs last


def test_a_seed_draws_the_same_misfortunes_again() -> None:
    jobs = poisson(jobs=100, gpus=8, seed=2)
    first, again, other = (PhillyFailures().draw(jobs, seed).faults for seed in (0, 0, 1))
    assert np.array_equal(first.fails_at, again.fails_at)
    assert not np.array_equal(first.fails_at, other.fails_at)


def test_a_prerun_catches_an_early_error_on_one_gpu_at_the_first_try() -> None:
    jobs = poisson(jobs=2_000, gpus=64, seed=2)
    plain, tried = (PhillyFailures(prerun=prerun).draw(jobs, seed=0) for prerun in (False, True))
    caught = tried.trace.gpus_requested != jobs.gpus_requested
    step_s = jobs.speeds.step_s[jobs.curve, jobs.gpus_requested]
    at_s = (jobs.iterations - plain.faults.fails_at[0]) * step_s
    errs = plain.faults.fails_at[1] == plain.faults.fails_at[0]
    errs &= plain.faults.fails_at[0] > 0.0
    assert np.array_equal(caught, errs & (at_s <= PRERUN_S) & (jobs.gpus_requested > 1))
    assert (tried.trace.gpus_max[caught] == 1).all()
    assert (tried.faults.fails_at[1:, caught] == np.inf).all()
    assert np.array_equal(tried.faults.fails_at[:, ~caught], plain.faults.fails_at[:, ~caught])


def test_what_would_strike_again_is_not_retried_if_it_is_told_apart() -> None:
    jobs = poisson(jobs=2_000, gpus=64, seed=2)
    often = PhillyFailures(hardware_gpu_h=100.0)
    plain = often.draw(jobs, seed=0).faults.fails_at
    told = replace(often, classify=True).draw(jobs, seed=0).faults.fails_at
    again = (plain[:-1] == np.roll(plain, -1, axis=0)[:-1]) & (plain[:-1] > 0.0)
    again[-1] = False  # after the last try nobody can tell
    assert (told[1:][again] == np.inf).all()
    other = np.cumsum(again, axis=0) == 0
    assert np.array_equal(told[:-1][other], plain[:-1][other])
    assert (again & (np.cumsum(again, axis=0) == 1))[1:].any()  # an error after a hardware failure


def test_failures_are_read_as_users_write_them() -> None:
    assert failures_from("none") is None
    assert failures_from("philly") == PhillyFailures()
    assert failures_from("philly:retries=0,prerun=true") == PhillyFailures(retries=0, prerun=True)


@pytest.mark.parametrize("spec", ["gremlins", "philly:retries=-1", "philly:checkpoint_s=0"])
def test_failures_that_make_no_sense_are_refused(spec: str) -> None:
    with pytest.raises(UserError):
        failures_from(spec)

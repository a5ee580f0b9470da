"""Predictions that are wrong: by how much, for whom, and that nothing else changes."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from coddl.core.allocation import Allocation
from coddl.core.errors import UserError
from coddl.core.parameter_server.costs import ServedSpeeds, ServerTimes, served_by
from coddl.core.registry import policy_from
from coddl.core.snapshot import Snapshot
from coddl.core.speed.places import plain
from coddl.core.speed.table import speeds_of
from coddl.sim.beliefs import Beliefs
from coddl.sim.failures import PhillyFailures
from coddl.sim.prediction_error import LEAST, VARIANTS, PredictionError, beliefs_of, error_from
from coddl.sim.run import Events
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, run_case
from coddl.sim.world import Reconfigure
from coddl.traces.generators import poisson
from coddl.traces.trace import Trace, trace_of


def trace(jobs: int = 40, seed: int = 0) -> Trace:
    return poisson(jobs=jobs, gpus=16, load=1.2, seed=seed)


def events(policy: str, jobs: Trace, error: PredictionError | None) -> Events:
    beliefs = None if error is None else beliefs_of(jobs, error, seed=3)
    case = Case(RunKey(policy, 16), policy_from(policy), jobs, beliefs=beliefs, keep_events=True)
    found = run_case(case).events
    assert found is not None
    return found


@pytest.mark.parametrize("policy", ["afs-l", "afs-p", "optimus", "srtf", "tiresias-l"])
def test_without_error_the_same_happens(policy: str) -> None:
    jobs = trace()
    for plain_column, column in zip(
        events(policy, jobs, None), events(policy, jobs, PredictionError()), strict=True
    ):
        assert np.array_equal(plain_column, column)


USES = {  # policy -> does an error of (lengths, speeds) reach it
    "afs-l": (True, True),
    "afs-p": (False, True),
    "optimus": (True, True),
    "srtf": (True, True),
    "srsf": (True, True),
    "max-speedup": (False, True),
    "ranked-speedup": (True, True),
    "tiresias-l": (False, False),
    "fifo": (False, False),
}


@pytest.mark.parametrize(("policy", "uses"), USES.items())
def test_an_error_reaches_the_policies_that_look(policy: str, uses: tuple[bool, bool]) -> None:
    jobs = trace(60)
    truth = events(policy, jobs, None)
    for error, reaches in zip(
        (PredictionError(length=0.9), PredictionError(speed=0.9)), uses, strict=True
    ):
        found = events(policy, jobs, error)
        same = len(found.kind) == len(truth.kind) and np.array_equal(found.gpus, truth.gpus)
        assert same != reaches


@pytest.mark.parametrize("policy", [*USES, "ranked-speedup:lengths=learned"])
@pytest.mark.parametrize("error", [PredictionError(length=0.5), PredictionError(0.5, 0.2)], ids=str)
def test_the_compiled_loop_believes_the_same(policy: str, error: PredictionError) -> None:
    for seed in range(3):
        jobs = trace(120, seed)
        case = Case(
            RunKey(policy, 16),
            policy_from(policy),
            jobs,
            Reconfigure("concurrent", 20.0, 1.0) if seed else Reconfigure(),
            beliefs=beliefs_of(jobs, error, seed),
            failures=PhillyFailures(checkpoint_s=60.0) if seed == 2 else None,
            keep_events=True,
        )
        compiled, plain_steps = run_case(case).events, run_case(case, step_by_step=True).events
        assert compiled is not None
        assert plain_steps is not None
        for name in ("kind", "job", "gpus"):
            assert np.array_equal(getattr(compiled, name), getattr(plain_steps, name))
        # Iterations are counted in other units, so that times are rounded otherwise.
        assert compiled.time_s == pytest.approx(plain_steps.time_s, rel=1e-12)


def test_lengths_are_off_by_a_factor_that_stays_with_the_job() -> None:
    jobs = trace(2000)
    length, with_speeds, of_another_seed = (
        beliefs_of(jobs, error, seed).length
        for error, seed in (
            (PredictionError(length=0.3), 1),
            (PredictionError(0.3, 0.2), 1),
            (PredictionError(length=0.3), 2),
        )
    )
    assert length is not None
    assert with_speeds is not None
    assert of_another_seed is not None
    assert 0.7 <= length.min() < 0.72
    assert 1.28 < length.max() <= 1.3
    assert length.mean() == pytest.approx(1.0, abs=0.02)
    assert np.array_equal(length, with_speeds)
    assert not np.array_equal(length, of_another_seed)


LEFT = {  # iterations left of 100 -> what is taken for them with factors 2, 3, 4 and 5 in turn
    "nothing done": (100.0, 200.0),
    "still in the first quarter": (76.0, 152.0),
    "a quarter done": (75.0, 225.0),
    "half done": (50.0, 200.0),
    "nearly over": (0.5, 2.5),
    "over": (0.0, 0.0),
}


@pytest.mark.parametrize(("left", "want"), LEFT.values(), ids=LEFT.keys())
def test_what_is_left_is_off_by_the_factor_of_its_stage(left: float, want: float) -> None:
    length = np.array([[9.0, 9.0, 9.0, 9.0], [2.0, 3.0, 4.0, 5.0]])
    beliefs = Beliefs(trace(1).speeds, length=length)
    assert beliefs.left(np.array([1]), np.array([left]), np.array([100.0])) == [want]


def test_a_scheduler_is_told_what_its_stage_says() -> None:
    told: list[tuple[float, list[float]]] = []

    @dataclass(frozen=True)
    class Looks:
        """Asks every 10 s while there is a job, and notes what it is told."""

        def __call__(self, snapshot: Snapshot) -> Allocation:
            jobs = snapshot.jobs
            told.append((snapshot.now_s, jobs.remaining_iterations.tolist()))
            wake_at_s = snapshot.now_s + 10.0 if jobs.size else np.inf
            return Allocation(np.ones(jobs.size, np.int64), wake_at_s=wake_at_s)

    speeds = speeds_of(("model",), np.array([[np.inf, 1.0]]), np.ones((1, 2), np.bool_))
    job = trace_of(
        "test",
        speeds,
        submitted_s=np.zeros(1),
        curve=np.zeros(1, np.int64),
        iterations=np.array([40.0]),
        gpus_requested=np.ones(1, np.int64),
    )
    beliefs = Beliefs(speeds, length=np.array([[0.5, 2.0]]))
    run_case(Case(RunKey("looks", 1), Looks(), job, beliefs=beliefs))
    assert told[:4] == [(0.0, [20.0]), (10.0, [15.0]), (20.0, [40.0]), (30.0, [20.0])]


def test_what_is_left_to_do_is_never_nothing() -> None:
    length = beliefs_of(trace(2000), PredictionError(length=1.0), seed=1).length
    assert length is not None
    assert length.min() == LEAST


def test_a_job_has_a_wrong_curve_of_its_own_model() -> None:
    jobs = trace(2000)
    truth, beliefs = jobs.speeds, beliefs_of(jobs, PredictionError(speed=0.2), seed=1)
    assert beliefs.curve is not None
    assert beliefs.speeds.variants == VARIANTS
    assert np.array_equal(beliefs.curve // VARIANTS, jobs.curve)
    assert len(np.unique(beliefs.curve % VARIANTS)) == VARIANTS
    told, true = beliefs.speeds.step_s[beliefs.curve], truth.step_s[jobs.curve]
    assert np.array_equal(np.isinf(told), np.isinf(true))
    known = np.isfinite(true)
    off = true[known] / told[known]
    assert 0.8 <= off.min() < 0.81
    assert 1.19 < off.max() <= 1.2
    assert np.ptp(off) > 0.3


def test_no_share_becomes_useful_beyond_the_largest() -> None:
    jobs = trace()
    speeds = beliefs_of(jobs, PredictionError(speed=0.3), seed=1).speeds
    assert (speeds.gpus_max <= np.repeat(jobs.speeds.gpus_max, VARIANTS)).all()
    useful = speeds.useful
    assert not useful[:, 0].any()
    best = np.minimum.accumulate(speeds.step_s, axis=1)
    assert np.array_equal(useful[:, 1:], speeds.step_s[:, 1:] < best[:, :-1])


def test_places_and_servers_go_with_the_model() -> None:
    jobs, curves = trace(), len(trace().speeds.names)
    numbers = np.arange(1.0, curves + 1)
    places = plain(curves, 2)._replace(
        kinds=np.stack((np.ones(curves), numbers), axis=1), packed=np.outer(numbers, 10 * numbers)
    )
    steps = np.tile(numbers[:, None, None], (1, 3, 2))
    measured = replace(jobs.speeds, known_places=places, kinds=("a", "b"))
    speeds = served_by(measured, ServerTimes(steps, steps / 2))
    beliefs = beliefs_of(replace(jobs, speeds=speeds), PredictionError(speed=0.2), seed=1)
    assert beliefs.curve is not None
    told = beliefs.speeds
    assert told.kinds == ("a", "b")
    assert np.array_equal(told.places.kinds[beliefs.curve], places.kinds[jobs.curve])
    mine, others = np.meshgrid(beliefs.curve, beliefs.curve)
    assert np.array_equal(
        told.places.packed[mine, others], places.packed[mine // VARIANTS, others // VARIANTS]
    )
    assert isinstance(told, ServedSpeeds)
    off = steps[jobs.curve] / told.servers.step_s[beliefs.curve]
    off_alone = speeds.step_s[jobs.curve, 1:3] / told.step_s[beliefs.curve, 1:3]
    assert off[:, 1:, 0] == pytest.approx(off_alone)
    assert np.array_equal(told.servers.transfer_s * 2, told.servers.step_s)


READ = {
    "length=0.3,speed=0.1": PredictionError(0.3, 0.1),
    "speed=0.1": PredictionError(0.0, 0.1),
    "length=0": PredictionError(),
    "length=1": PredictionError(1.0),
}


@pytest.mark.parametrize(("spec", "want"), READ.items())
def test_errors_are_read_as_users_write_them(spec: str, want: PredictionError) -> None:
    assert error_from(spec) == want


REFUSED = {
    "": '"" is not length=X or speed=X',
    "lengths=0.3": '"lengths=0.3" is not length=X or speed=X',
    "length=0.3,length=0.1": "length is given twice",
    "length=": 'length="" is not within 0..1',
    "speed=-0.1": 'speed="-0.1" is not within 0..1',
    "speed=1.5": 'speed="1.5" is not within 0..1',
    "speed=nan": 'speed="nan" is not within 0..1',
}


@pytest.mark.parametrize(("spec", "because"), REFUSED.items())
def test_a_word_that_is_no_error_is_refused(spec: str, because: str) -> None:
    with pytest.raises(UserError) as raised:
        error_from(spec)
    assert raised.value.because == because

"""What a scheduler knows of speeds: jobs run at the true ones, and it learns from what they do."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

import coddl
from coddl.core.columns import FloatColumn
from coddl.core.errors import UserError
from coddl.core.registry import policy_from
from coddl.core.snapshot import Snapshot
from coddl.core.speed.places import plain
from coddl.core.speed.table import Speeds, interpolated
from coddl.sim.beliefs import Beliefs
from coddl.sim.known_speeds import KnownSpeeds, beliefs_with, estimated_speeds, estimated_steps
from coddl.sim.learning import LearnedSpeeds, SpeedLearning
from coddl.sim.run import Run
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, run_case
from coddl.testing.builders import speeds_from
from coddl.traces.files import packaged_speeds
from coddl.traces.generators import poisson
from coddl.traces.trace import Trace, trace_of

ALL = list(range(len(packaged_speeds().names)))


def run_of(
    policy: str,
    trace: Trace,
    beliefs: Beliefs | None,
    *,
    step_by_step: bool = False,
    **case: object,
) -> Run:
    key = RunKey(policy, 16)
    made = Case(key, policy_from(policy), trace, beliefs=beliefs, keep_events=True, **case)  # type: ignore[arg-type]
    return run_case(made, step_by_step=step_by_step)


def events_of(run: Run) -> list[list[float]]:
    assert run.events is not None
    return [column.tolist() for column in run.events]


@pytest.mark.parametrize("policy", ["afs-l", "afs-p", "optimus", "srtf"])
def test_a_table_of_estimates_gives_the_same_in_both_loops(policy: str) -> None:
    trace = poisson(jobs=40, gpus=16, load=1.2, seed=3)
    beliefs = beliefs_with("estimated", trace.speeds, ALL)
    both = [run_of(policy, trace, beliefs, step_by_step=slow) for slow in (False, True)]
    assert events_of(both[0]) == events_of(both[1])
    assert events_of(both[0]) != events_of(run_of(policy, trace, None))


@pytest.mark.parametrize("policy", ["afs-l", "afs-p", "optimus"])
def test_who_learns_the_truth_at_once_decides_as_who_knows_it(policy: str) -> None:
    trace = poisson(jobs=40, gpus=16, load=1.2, seed=3)
    learning = SpeedLearning(trace.speeds, lambda curve, _visited: trace.speeds.step_s[curve])
    learned = run_of(policy, trace, Beliefs(trace.speeds, learning=learning))
    known = run_of(policy, trace, None)
    assert np.allclose(learned.finish_s, known.finish_s) == (policy != "afs-p")  # it flips coins


def test_every_job_runs_at_its_true_speed_whatever_is_known() -> None:
    speeds = interpolated(
        {"resnet50": [(1, 1.0), (2, 0.9), (4, 0.85)], "vgg16": [(1, 2.0), (4, 1)]}
    )
    trace = trace_of(
        "two",
        speeds,
        submitted_s=np.array([0.0]),
        curve=np.array([0]),
        iterations=np.array([1000.0]),
        gpus_requested=np.array([1]),
    )
    for known in get_args(KnownSpeeds):
        run = run_of("afs-p", trace, beliefs_with(known, speeds, [0]))
        assert 850.0 <= run.finish_s[0] <= 1000.0


def test_visited_speeds_scale_perfectly_until_two_sizes_are_known() -> None:
    speeds = speeds_from([[1.0, 0.7, 0.6, 0.55, 0.5, 0.5]])
    beliefs = beliefs_with("visited", speeds, [0])
    assert beliefs is not None
    assert beliefs.learning is not None
    believed = beliefs.learning.belief
    assert believed(0, frozenset())[1:].tolist() == pytest.approx([1.0 / n for n in range(1, 7)])
    after = believed(0, frozenset({4}))
    assert after[4] == 0.55
    assert after[6] == pytest.approx(0.4 + 0.6 / 6)  # a + b / n through both
    assert believed(0, frozenset({4, 6}))[6] == 0.5


def test_adjusted_speeds_begin_as_estimated_and_end_as_measured() -> None:
    speeds = packaged_speeds()
    row = speeds.names.index("deepspeech2")
    steps = estimated_steps(speeds, ALL)
    at_first = estimated_speeds(speeds, steps).step_s[row]
    beliefs = beliefs_with("adjusted", speeds, ALL)
    assert beliefs is not None
    assert beliefs.learning is not None
    believed = beliefs.learning.belief
    assert believed(row, frozenset())[[1, 2, 4, 8]].tolist() == pytest.approx(
        at_first[[1, 2, 4, 8]].tolist()
    )
    after, truth = believed(row, frozenset({8})), speeds.step_s[row]
    assert after[8] == truth[8]
    off = [abs(np.log(each[[4, 12, 16]] / truth[[4, 12, 16]])).max() for each in (at_first, after)]
    assert off[1] < 0.7 * off[0]


def test_a_job_learns_from_its_own_steps_and_not_from_others() -> None:
    def belief(curve: int, visited: frozenset[int]) -> FloatColumn:
        return np.array([np.inf, 100.0 * curve + len(visited), *visited, *(5 - len(visited)) * [9]])

    truth = speeds_from([[1.0] * 6, [2.0] * 6])
    learned = LearnedSpeeds(SpeedLearning(truth, belief), np.array([0, 1, 0]))
    rows = np.arange(3)
    speeds, curve = learned.table(rows)
    assert curve.tolist() == [0, 1, 0]
    learned.see(np.array([0, 1]), np.array([2, 6]))
    learned.see(np.array([0]), np.array([2]))  # a repeat
    assert learned.is_new(rows, np.array([2, 2, 2])).tolist() == [1, 2]
    speeds, curve = learned.table(rows)
    assert speeds.step_s[curve, 1].tolist() == [1.0, 101.0, 0.0]
    learned.see(np.array([2]), np.array([2]))
    speeds, curve = learned.table(rows)
    assert curve[0] == curve[2]  # the same model at the same sizes
    assert len(speeds.names) == 2


def test_there_is_room_for_any_number_of_beliefs() -> None:
    truth = speeds_from([list(np.linspace(2.0, 1.0, 12))])
    learned = LearnedSpeeds(
        SpeedLearning(truth, lambda _row, visited: np.full(13, float(sum(visited)))),
        np.zeros(600, int),
    )
    for job in range(600):
        for bit in range(12):
            if job >> bit & 1:
                learned.see(np.array([job]), np.array([bit + 1]))
    speeds, curve = learned.table(np.arange(600))
    assert len(speeds.names) == 600
    want = [sum(bit + 1 for bit in range(12) if job >> bit & 1) for job in range(600)]
    assert speeds.step_s[curve, 3].tolist() == want


class Watching:
    """A policy that keeps what it was shown."""

    def __init__(self) -> None:
        self.policy = policy_from("afs-p")
        self.seen: list[tuple[float, int, FloatColumn]] = []

    def __call__(self, snapshot: Snapshot):  # type: ignore[no-untyped-def]
        for row, held in zip(
            snapshot.jobs.curve.tolist(), snapshot.jobs.gpus.tolist(), strict=True
        ):
            self.seen.append((snapshot.now_s, held, snapshot.speeds.step_s[row].copy()))
        return self.policy(snapshot)


def test_a_size_is_known_after_its_first_step_and_decided_on_at_once() -> None:
    speeds = interpolated({"resnet50": [(1, 10.0), (2, 9.0), (4, 8.0)]})
    trace = trace_of(
        "one",
        speeds,
        submitted_s=np.array([5.0]),
        curve=np.array([0]),
        iterations=np.array([1000.0]),
        gpus_requested=np.array([1]),
    )
    policy = Watching()
    case = Case(RunKey("watching", 4), policy, trace, beliefs=beliefs_with("visited", speeds, [0]))
    run_case(case)
    (first_s, _, before), (second_s, held, after) = policy.seen[:2]
    assert (first_s, second_s, held) == (5.0, 5.0 + 8.0, 4)
    assert before[4] == 2.5
    assert after[4] == 8.0


def test_places_are_those_of_the_model_whatever_is_believed() -> None:
    truth = replace(
        speeds_from([[1.0, 0.6], [2.0, 1.1]]),
        known_places=plain(2)._replace(skew=np.array([0.1, 0.7])),
    )
    learning = SpeedLearning(truth, lambda row, _: truth.step_s[row])
    learned = LearnedSpeeds(learning, np.array([1, 1, 0]))
    learned.see(np.array([0]), np.array([2]))
    speeds, curve = learned.table(np.arange(3))
    assert speeds.places.skew[curve].tolist() == [0.7, 0.7, 0.1]
    assert speeds.places.packed.shape == (3, 3)


def test_estimates_of_the_packaged_models_are_as_good_as_they_were() -> None:
    speeds = packaged_speeds()
    estimated = estimated_speeds(speeds, estimated_steps(speeds, ALL)).step_s
    errors = {
        name: np.mean(np.abs(estimated[row, 2 : most + 1] / speeds.step_s[row, 2 : most + 1] - 1))
        for row, (name, most) in enumerate(zip(speeds.names, speeds.gpus_max.tolist(), strict=True))
    }
    assert float(np.median(list(errors.values()))) < 0.25
    assert estimated[:, 1].tolist() == pytest.approx(speeds.step_s[:, 1].tolist())


def unknown_models() -> Speeds:
    return interpolated({"mine": [(1, 1.0), (2, 0.6)], "vgg16": [(1, 1.0), (2, 0.6)],
                         "resnet50": [(2, 0.6), (4, 0.4)]})  # fmt: skip


@pytest.mark.parametrize(("row", "because"), [(0, "how many parameters"), (2, "on one GPU")])
def test_what_cannot_be_estimated_is_refused(row: int, because: str) -> None:
    with pytest.raises(UserError, match=because) as error:
        beliefs_with("estimated", unknown_models(), [row])
    assert "--known-speeds visited" in error.value.try_


@pytest.mark.parametrize(
    ("options", "because"),
    [
        ({"servers": "sync"}, "parameter servers"),
        ({"nodes": "2..4"}, "how many nodes"),
        ({"error": "speed=0.1"}, "random errors"),
        ({"known_speeds": "guessed"}, "no such choice"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, str], because: str) -> None:
    with pytest.raises(UserError, match=because):
        coddl.simulate(policies="afs-p", **{"known_speeds": "visited", **options})  # type: ignore[arg-type]


def test_lengths_may_be_wrong_beside() -> None:
    runs = [
        coddl.simulate(policies="afs-l", first=40, known_speeds="visited", error=error)
        for error in ("", "length=0.5")
    ]
    assert runs[0]["avg_jct_s"][0] != runs[1]["avg_jct_s"][0]


@pytest.mark.parametrize("known", ["estimated", "adjusted", "visited"])
def test_jobs_are_placed_whatever_is_known(known: KnownSpeeds) -> None:
    study = coddl.simulate(
        policies="afs-p", cluster="4x4", placement="estimate", first=30, known_speeds=known
    )
    assert study["jobs"].tolist() == [30]


def test_a_run_is_the_same_when_it_is_made_again() -> None:
    trace = poisson(jobs=30, gpus=16, load=1.2, seed=3)
    beliefs = beliefs_with("visited", trace.speeds, ALL)
    assert events_of(run_of("afs-p", trace, beliefs)) == events_of(run_of("afs-p", trace, beliefs))

"""Sizes that are tried to measure them, and what earlier jobs have measured."""

from dataclasses import replace
from typing import Final

import msgspec
import pytest

from coddl.core.pool import records as r
from coddl.core.pool.estimates import PoolOutline, predicted_steps
from coddl.core.pool.explain import speed_rows
from coddl.core.pool.job import PRERUN_S, PROFILE_MAX_S
from coddl.core.pool.known_profiles import PROFILES_MAX, STEPS_MAX, with_steps
from coddl.core.pool.state import Pool
from coddl.core.pool.trials import least_trial_gain
from coddl.core.speed.inspection import LinkClass, LinkSpeed
from coddl.core.speed.live import REMEMBERED_SD, Speed, curve
from coddl.core.speed.profile import GradientBucket, SliceTime, TrainingProfile
from tests.core.pool.story import Story

# 1 s forward and 2 s backward for 8 samples; 100 MB of gradients, all at the end.
PROFILE: Final = TrainingProfile(
    "cpu",
    8,
    (SliceTime(8, 1.0, 2.0),),
    0.0,
    0.0,
    0.0,
    (GradientBucket(100_000_000, 1.0),),
    signature="abc",
)
FAST: Final = LinkSpeed(1.0, 0.0, 0.0, "gloo")
EVEN: Final = LinkSpeed(0.066, 0.0, 0.0, "gloo")  # two workers: 1.5 s, and 1.52 s of exchange
STEPS: Final = 1000


def predicted(link: LinkSpeed, sizes: int = 2) -> PoolOutline:
    return PoolOutline(sizes, sizes, (("node", link),))


def curve_of(
    link: LinkSpeed,
    measured: dict[int, float],
    sizes: int = 2,
    *,
    remembered: dict[int, float] | None = None,
    trial_gain: float = 0.0,
) -> dict[int, Speed]:
    steps = predicted_steps(PROFILE, predicted(link, sizes), sizes)
    others = remembered or {}
    return curve(sizes, measured, {}, None, steps, remembered=others, trial_gain=trial_gain)


def test_a_speed_has_what_was_predicted_and_how_uncertain_it_is() -> None:
    speeds = curve_of(FAST, {1: 6.0})
    assert speeds[1][:2] == (6.0, "measured")
    assert speeds[1].predicted_s == pytest.approx(3.0)
    assert speeds[2].predicted_s == pytest.approx(1.6)
    assert speeds[2].step_s == pytest.approx(3.1, rel=0.01), "computing takes twice as long"
    assert 0.0 < (speeds[2].relative_sd or 0.0) < 0.2
    assert not speeds[2].is_trial


def test_a_trial_counts_as_fast_as_it_may_be_and_is_said_to_be_slower() -> None:
    speed = curve_of(EVEN, {1: 3.0})[2]
    assert speed.is_trial
    assert speed.step_s < 3.0 < speed.likely_s


def test_a_size_is_not_tried_where_that_would_not_pay_off() -> None:
    assert not curve_of(EVEN, {1: 3.0}, trial_gain=0.5)[2].is_trial
    assert curve_of(EVEN, {1: 3.0}, trial_gain=0.5)[2].step_s > 3.0


def test_beyond_a_size_that_is_faster_anyway_nothing_is_tried() -> None:
    """With a fast link 2 and 3 gain; measured there, the others follow."""
    assert not any(each.is_trial for each in curve_of(FAST, {1: 3.0}, 4).values())


def test_what_an_earlier_job_has_measured_counts_and_its_own_measurement_wins() -> None:
    speeds = curve_of(FAST, {1: 3.0}, 4, remembered={1: 3.0, 2: 2.4})
    assert speeds[2].source == "remembered"
    assert speeds[2].step_s == pytest.approx(2.4)
    assert speeds[2].relative_sd == REMEMBERED_SD
    alone = curve_of(FAST, {1: 3.0}, 4)
    assert speeds[4].source == "estimated"
    assert speeds[4].step_s > alone[4].step_s, "it is carried to other sizes"
    own = curve_of(FAST, {1: 3.0, 2: 1.7}, 4, remembered={1: 3.0, 2: 2.4})
    assert own[2][:2] == (1.7, "measured")
    assert own == curve_of(FAST, {1: 3.0, 2: 1.7}, 4, remembered={1: 3.0})


def test_an_earlier_job_on_a_slower_machine_tells_how_it_scales_and_not_how_fast_it_is() -> None:
    speeds = curve_of(LinkSpeed(1e6, 0.0, 0.0, "gloo"), {1: 3.0}, remembered={1: 6.0, 2: 3.6})
    assert speeds[2].step_s == pytest.approx(1.8, rel=0.01)


def test_without_links_too_earlier_jobs_tell_how_it_scales() -> None:
    speeds = curve(3, {1: 1.0}, {}, None, remembered={1: 2.0, 2: 1.6})
    assert speeds[2] == Speed(0.8, "remembered", relative_sd=REMEMBERED_SD)
    assert speeds[3].source == "assumed"
    assert 0.7 < speeds[3].step_s < 0.8
    assert curve(2, {}, {2: 3.0}, None, remembered={2: 1.6})[2].source == "submitted"


def test_the_oldest_step_times_are_forgotten() -> None:
    known: dict[str, dict[int, float]] = {}
    for number in range(PROFILES_MAX + 1):
        known = with_steps(known, str(number), {1: 1.0})
    assert len(known) == PROFILES_MAX
    assert "0" not in known
    known = with_steps(known, "1", {size: 1.0 for size in range(1, STEPS_MAX + 2)})
    assert len(known["1"]) == STEPS_MAX
    assert with_steps(known, "2", {1: 1.05})["2"] == {1: 1.0}, "less than a tenth is no news"


class Trained:
    """A pool with one node of some devices, whose link was measured, and jobs on it."""

    def __init__(self, devices: int, link: LinkSpeed | None, **links: LinkSpeed) -> None:
        told: dict[LinkClass, LinkSpeed] = {"node": link} if link is not None else {}
        self.story = Story(devices, links={**told, **links})  # type: ignore[dict-item] # names

    def start(self, most: int = 2, steps: int = STEPS) -> int:
        """Start a job and let its script tell what it trains."""
        job = self.story.submit(1, most)
        told = (None, steps, 64, 0, 0, 8)
        self.story.happen(r.RunPrepared(job, 1, *told, training="abc"))
        self.story.happen(r.RunStepped(job, 1, 1))
        return job

    def measure(self, job: int, step_s: float, step: int = 4) -> None:
        gpus = len(self.story.job(job).granted)
        self.story.happen(r.RunProgressed(job, 1, step, gpus, step_s, 3))
        self.story.catch_up()

    def profiled(self, job: int) -> None:
        self.story.happen(r.RunProfiled(job, 1, PROFILE))
        self.story.catch_up()

    def gpus(self, job: int) -> int:
        return len(self.story.job(job).target)


def test_a_trial_says_so_is_counted_and_is_made_once() -> None:
    pool = Trained(2, EVEN)
    job = pool.start()
    pool.measure(job, 3.0)
    pool.profiled(job)
    state = pool.story.job(job)
    assert pool.gpus(job) == 2
    assert "; to measure 2 CPU slots: estimated 0.99x ± " in state.reason
    assert (state.resizes, state.trials) == (1, 1)
    pool.measure(job, 3.2, 40)
    assert pool.gpus(job) == 1
    assert "to measure" not in state.reason
    assert (state.resizes, state.trials) == (2, 1)
    pool.measure(job, 3.0, 80)
    assert pool.gpus(job) == 1


def test_a_growth_that_is_expected_to_pay_off_is_no_trial() -> None:
    pool = Trained(2, FAST)
    job = pool.start()
    pool.measure(job, 3.0)
    pool.profiled(job)
    assert pool.gpus(job) == 2
    assert "to measure" not in pool.story.job(job).reason
    assert pool.story.job(job).trials == 0


def test_a_job_that_is_about_to_end_tries_nothing() -> None:
    pool = Trained(2, EVEN)
    job = pool.start(steps=6)
    pool.measure(job, 3.0)
    pool.profiled(job)
    assert pool.gpus(job) == 1
    assert least_trial_gain(pool.story.job(job), 3.0) > 0.2


def test_the_next_job_that_trains_the_same_does_not_try_again() -> None:
    pool = Trained(2, EVEN)
    first = pool.start()
    pool.measure(first, 3.0)
    pool.profiled(first)
    pool.measure(first, 4.5, 40)
    pool.story.happen(r.RunEnded(first, 1, "succeeded", STEPS))
    pool.story.report()
    second = pool.start()
    pool.measure(second, 3.0)
    state = pool.story.job(second)
    assert pool.gpus(second) == 1
    assert state.trials == 0
    row = speed_rows(pool.story.pool, state)[1]
    assert (row.source, row.is_trial) == ("remembered", False)
    assert row.step_s == pytest.approx(4.5)


def test_what_was_remembered_survives_a_restart() -> None:
    pool = Trained(2, FAST)
    job = pool.start()
    pool.measure(job, 3.0)
    pool.profiled(job)
    pool.measure(job, 1.6, 40)
    stored = pool.story.pool
    assert stored.step_times == {"abc cpu": {1: 3.0, 2: 1.6}}
    again = msgspec.json.decode(msgspec.json.encode(stored), type=Pool)
    assert again.step_times == stored.step_times
    replayed = Pool()
    for _, at_s, record in pool.story.journal:
        replayed.apply(record, at_s)
    assert replayed.step_times == stored.step_times
    assert replayed.jobs[job].trials == stored.jobs[job].trials


def test_step_times_of_another_kind_of_device_are_not_remembered() -> None:
    pool = Trained(2, FAST)
    job = pool.start()
    pool.measure(job, 3.0)
    pool.story.happen(r.RunProfiled(job, 1, replace(PROFILE, device="NVIDIA H200")))
    pool.story.catch_up()
    pool.measure(job, 1.6, 40)
    assert not pool.story.pool.step_times


def test_the_error_of_a_prediction_is_told() -> None:
    pool = Trained(2, FAST)
    job = pool.start()
    pool.measure(job, 3.0)
    pool.profiled(job)
    pool.measure(job, 2.0, 40)
    one, two, *_ = speed_rows(pool.story.pool, pool.story.job(job))
    assert one.source == "measured"
    assert one.error == pytest.approx(0.0)
    assert two.predicted_s == pytest.approx(1.6)
    assert two.error == pytest.approx(-0.2)
    assert two.relative_sd is None


@pytest.mark.parametrize("links", [{}, {"cluster": FAST}], ids=["no link", "another link"])
def test_a_profile_that_would_not_help_is_not_waited_for(links: dict[str, LinkSpeed]) -> None:
    pool = Trained(2, None, **links)
    job = pool.start()
    pool.measure(job, 3.0)
    assert pool.gpus(job) == 2


def test_a_link_between_nodes_is_only_needed_by_jobs_that_may_span_them() -> None:
    pool = Trained(2, FAST)
    pool.story.join("b", 2)
    small, large = pool.start(2), pool.start(3)
    assert pool.story.job(small).is_estimable
    assert not pool.story.job(large).is_estimable
    pool.story.happen(r.JobBounded(large, 1, 2, ""))
    assert pool.story.job(large).is_estimable
    pool.story.happen(r.NodeLost("b", "1", "gone"))
    assert pool.story.job(small).is_estimable
    pool.story.happen(r.NodeLost("a", "1", "gone"))
    assert not pool.story.job(small).is_estimable


def test_a_job_that_is_not_measured_is_not_waited_for() -> None:
    pool = Trained(3, FAST)
    job = pool.story.submit(1, 2, env={"CODDL_INSPECT": "0"})
    pool.story.train(job)
    assert pool.gpus(job) == 2
    other = pool.story.submit(1, 2)
    pool.story.train(other)
    assert not pool.story.job(other).may_grow(pool.story.now_s)
    assert pool.story.job(other).may_grow(pool.story.now_s + PRERUN_S)


def test_the_profile_of_a_job_with_slow_steps_is_waited_for_a_little_longer() -> None:
    pool = Trained(2, FAST)
    job = pool.start()
    pool.measure(job, 3.0)
    state = pool.story.job(job)
    assert state.proven_s is not None
    assert pool.story.pool.wake_at_s == state.proven_s + 30.0
    pool.story.now_s = state.proven_s + PRERUN_S
    pool.story.happen(r.Woke())
    assert pool.gpus(job) == 1
    pool.measure(job, 300.0)
    pool.story.now_s = state.proven_s + PROFILE_MAX_S
    pool.story.happen(r.Woke())
    assert pool.gpus(job) == 2

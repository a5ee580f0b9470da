"""Speeds of jobs at sizes they were never seen at, from their profile and the links of the pool."""

from dataclasses import replace

import msgspec
import pytest

from coddl.core.pool import records as r
from coddl.core.pool.estimates import PoolOutline, outline_of, predicted_steps
from coddl.core.pool.job import PRERUN_S
from coddl.core.pool.nodes import NodeState
from coddl.core.pool.state import Pool
from coddl.core.speed.inspection import LinkSpeed
from coddl.core.speed.live import curve
from coddl.core.speed.profile import GradientBucket, SliceTime, TrainingProfile
from tests.core.pool.story import Story

NODE = LinkSpeed(1.0, 0.0, 0.0, "gloo")
SLOW = LinkSpeed(0.1, 0.0, 0.0, "gloo")
USELESS = LinkSpeed(1e-3, 0.0, 0.0, "gloo")
# 1 s forward and 2 s backward for 8 samples; 100 MB of gradients, all at the end.
PROFILE = TrainingProfile(
    "cpu", 8, (SliceTime(8, 1.0, 2.0),), 0.0, 0.0, 0.0, (GradientBucket(100_000_000, 1.0),)
)
OUTLINE = PoolOutline(2, 64, (("node", NODE), ("cluster", SLOW)))


def test_sizes_are_replayed_on_as_few_nodes_as_they_take() -> None:
    steps = predicted_steps(PROFILE, OUTLINE, 4)
    assert [(each.workers, each.nodes) for each in steps.values()] == [
        (1, 1),
        (2, 1),
        (3, 2),
        (4, 2),
    ]
    assert steps[1].step_s == pytest.approx(3.0)
    assert steps[2].step_s == pytest.approx(1.5 + 0.1)  # 2 * 1/2 * 0.1 GB at 1 GB/s
    assert steps[4].step_s == pytest.approx(0.75 + 2 * 3 / 4)  # 2 * 3/4 * 0.1 GB at 0.1 GB/s


def test_without_profile_or_link_nothing_is_estimated() -> None:
    assert not predicted_steps(None, OUTLINE, 4)
    assert not predicted_steps(PROFILE, PoolOutline(2, 64, ()), 4)
    assert not predicted_steps(
        PROFILE, PoolOutline(2, 64, (("node", NODE),)), 4
    )  # 3 are on two nodes
    assert predicted_steps(PROFILE, PoolOutline(4, 4, (("node", NODE),)), 8)


def test_a_pool_has_the_link_in_the_middle_of_what_its_nodes_tell_of() -> None:
    nodes = {
        "a": NodeState("a", "", "", (0, 1), links={"node": NODE}),
        "b": NodeState("b", "", "", (2, 3, 4), links={"node": replace(NODE, gb_s=1.234)}),
        "busy": NodeState("busy", "", "", (9,), links={"node": SLOW}),
        "other": NodeState("other", "", "", (10,), links={"node": replace(SLOW, backend="nccl")}),
        "gone": NodeState("gone", "", "", (5, 6, 7, 8), is_up=False, links={"cluster": SLOW}),
    }
    assert outline_of(replace(Pool(), nodes=nodes)) == PoolOutline(3, 7, (("node", NODE),))


def test_estimates_follow_what_was_measured() -> None:
    predicted = predicted_steps(PROFILE, OUTLINE, 4)
    before = curve(4, {}, {}, None, predicted)
    assert {each.source for each in before.values()} == {"estimated"}
    measured = {1: 3.0, 4: 2 * predicted[4].step_s}
    after = curve(4, measured, {}, None, predicted)
    assert [after[n].source for n in (1, 2, 3, 4)] == [
        "measured",
        "estimated",
        "estimated",
        "measured",
    ]
    assert after[4].step_s == measured[4]
    assert before[3].step_s < after[3].step_s < 2 * before[3].step_s


def test_what_was_submitted_counts_more() -> None:
    predicted = predicted_steps(PROFILE, OUTLINE, 2)
    assert curve(2, {}, {1: 5.0, 2: 4.0}, None, predicted)[2][:2] == (4.0, "submitted")


def test_beyond_the_last_size_speed_stays() -> None:
    curves = curve(5, {1: 3.0}, {}, None, predicted_steps(PROFILE, OUTLINE, 4))
    assert curves[5].step_s == curves[4].step_s


def inspected(link: LinkSpeed) -> Story:
    """A pool with one node of four devices, whose link was measured."""
    return Story(4, links={"node": link})


def measured_alone(story: Story) -> int:
    """Start a job and measure its speed on one device."""
    job = story.submit(1, 4)
    story.train(job)
    return job


@pytest.mark.parametrize(("link", "share"), [(NODE, 4), (USELESS, 1)])
def test_a_new_job_waits_for_its_profile_and_goes_to_its_share_at_once(
    link: LinkSpeed, share: int
) -> None:
    story = inspected(link)
    job = measured_alone(story)
    assert len(story.job(job).target) == 1
    story.happen(r.RunProfiled(job, 1, PROFILE))
    assert len(story.job(job).target) == share


def test_a_profile_is_not_waited_for_longer_than_slow_steps_are() -> None:
    story = inspected(USELESS)
    job = measured_alone(story)
    story.now_s += PRERUN_S
    story.happen(r.Woke())
    assert len(story.job(job).target) == 4


def test_a_pool_that_was_not_inspected_waits_for_no_profile() -> None:
    story = Story(4)
    assert len(story.job(measured_alone(story)).target) == 4


@pytest.mark.parametrize(
    ("what", "change"),
    [
        (PROFILE, {"slices": []}),
        (PROFILE, {"slices": [(8, 0.0, 0.0)]}),
        (PROFILE, {"slices": [(8, 1e-170, 0.0)]}),
        (PROFILE, {"slices": [(8, 1e308, 0.0)]}),
        (PROFILE, {"buckets": [(10**400, 1.0)]}),
        (PROFILE, {"batch": 10**30}),
        (PROFILE, {"batch": 0}),
        (NODE, {"latency_us": -1.0}),
        (NODE, {"gb_s": 0.0}),
    ],
)
def test_what_can_not_be_is_refused_where_it_arrives(
    what: TrainingProfile | LinkSpeed, change: dict[str, object]
) -> None:
    sent = {**msgspec.to_builtins(what), **change}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(sent, type(what))


def test_what_may_be_faster_within_the_uncertainty_is_tried() -> None:
    # Two workers: 1.5 s of computing and 1.52 s of exchange; one: 3 s.
    outline = PoolOutline(2, 2, (("node", replace(NODE, gb_s=0.066)),))
    predicted = predicted_steps(PROFILE, outline, 2)
    assert predicted[2].step_s > 3.0
    assert curve(2, {1: 3.0}, {}, None, predicted)[2].step_s < 3.0
    assert curve(2, {1: 3.0, 2: 3.1}, {}, None, predicted)[2].step_s == 3.1


def test_between_sizes_that_are_replayed_step_time_is_linear() -> None:
    outline = PoolOutline(64, 64, (("node", NODE),))
    predicted = predicted_steps(replace(PROFILE, batch=64), outline, 64)
    assert {32, 33, 36} & set(predicted) == {32, 36}
    curves = curve(64, {}, {}, None, predicted)
    below, above = (curves[n].step_s for n in (32, 36))
    assert curves[33].step_s == pytest.approx(below + (above - below) / 4)


def test_what_one_worker_takes_scales_the_computing_of_all() -> None:
    outline = PoolOutline(4, 4, (("node", replace(NODE, gb_s=1e6)),))
    curves = curve(4, {1: 0.6}, {}, None, predicted_steps(PROFILE, outline, 4))
    assert curves[2].step_s == pytest.approx(0.3, rel=0.01)

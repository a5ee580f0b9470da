"""What a decision is said to follow from when it is made because its time has come."""

from coddl.core.pool import records as r
from coddl.core.pool.job import PRERUN_S
from coddl.core.scheduler import Stability
from tests.core.pool.story import Story


def wake(story: Story) -> r.Decided:
    """Let the time come that the last decision asked for; give the decision of then."""
    assert story.pool.wake_at_s is not None
    story.now_s = story.pool.wake_at_s - 1.0
    outcome = story.happen(r.Woke())
    return next(each for each in outcome.records if isinstance(each, r.Decided))


def cooling() -> Story:
    """Give a pool whose one job has just grown."""
    story = Story(4, stability=Stability(cool_down_s=1000.0))
    story.now_s = 1e6
    story.train(story.submit(1, 4))
    assert story.shares() == {1: 4}
    return story


def test_a_share_that_had_to_wait_for_its_cool_down_names_what_it_waited_with() -> None:
    story = cooling()
    second = story.submit(1, 4)
    assert story.shares() == {1: 4, second: 0}
    decided = wake(story)
    assert decided.why == "job-2 submitted; cool-down over"
    assert "(job-2 submitted; cool-down over)" in decided.targets[1].reason


def test_the_newest_causes_are_named() -> None:
    story = cooling()
    for _ in range(3):
        story.submit(1, 4)
    assert wake(story).why == "job-3 submitted; job-4 submitted; cool-down over"


def test_what_happens_at_that_time_is_the_better_name() -> None:
    story = cooling()
    story.submit(1, 4)
    assert story.pool.wake_at_s is not None
    story.now_s = story.pool.wake_at_s
    story.control.take(r.Woke(), story.now_s)
    story.control.take(story.told(r.RunProgressed(1, 1, 90, 4, 7.0, 50)), story.now_s)
    (decided, *_) = story.control.conclude(story.now_s).records
    assert isinstance(decided, r.Decided)
    assert decided.why == "job-1 measured: 7 s per step"


def test_the_end_of_a_backoff_is_named() -> None:
    story = Story(2)
    job = story.submit(1, 1)
    story.happen(r.RunEnded(job, 1, "lost", 0))
    story.report()
    assert wake(story).why == "the backoff of job-1 is over"


def test_a_job_that_may_grow_unmeasured_is_named() -> None:
    story = Story(2)
    job = story.prepare(story.submit(1, 2))
    story.happen(r.RunStepped(job, 1, 1))
    assert story.pool.wake_at_s == story.now_s + PRERUN_S
    assert wake(story).why == "job-1 may grow"


def test_the_end_of_a_turn_is_the_policys_own_affair() -> None:
    story = Story(1)
    story.happen(r.PolicyChosen("afs-p:lease_h=1", "ann"))
    story.train(story.submit(1, 1))
    story.submit(1, 1)
    assert wake(story).why == "periodic rebalance"


def test_one_slot_is_one_slot() -> None:
    story = Story(1, stability=Stability(cool_down_s=100.0, reserve_s=0.0))
    first, second = story.submit(1, 1), story.submit(1, 1)
    assert story.job(first).reason == "1 of 1 CPU slot (job-1 submitted)"
    waits = story.job(second).waiting
    assert waits is not None
    assert waits.sentence == "1 CPU slot was reassigned less than 100 s ago (cool-down)"

"""A job that has devices and never comes to its first step is given up after a while."""

from coddl.core.pool import records as r
from coddl.core.pool.control import ControlPlane
from coddl.core.pool.state import LOSSES_MAX
from tests.core.pool.story import Story

WITHIN_S = 600.0


def wake(story: Story, at_s: float) -> None:
    story.now_s = at_s - 1.0
    story.happen(r.Woke())


def test_it_is_given_up_at_the_deadline_and_tried_elsewhere() -> None:
    story = Story(1, 1)
    job = story.submit(1, 1, start_within_s=WITHIN_S)
    lead, slot = story.job(job).lead, story.job(job).granted[0]
    due_s = story.now_s + WITHIN_S
    assert story.control.wake_at_s == due_s
    wake(story, due_s - 1.0)
    assert story.job(job).phase == "starting"
    wake(story, due_s)
    state = story.job(job)
    assert state.story[-1].because.startswith("it did not start: ")
    assert state.trouble is not None
    assert state.trouble.because == "it made no step within 600 s of its start"
    assert not story.pool.orders(lead or "").leads, "it is told to stop"
    wake(story, state.rest_until_s)
    assert state.attempt == 2
    assert state.lead != lead, "its node has not said that nothing is left there"
    assert [*story.pool.slots[slot].owners] == [job]


def test_its_devices_are_used_again_when_they_are_seen_to_be_empty() -> None:
    story = Story(1)
    job = story.submit(1, 1, start_within_s=WITHIN_S)
    wake(story, story.now_s + WITHIN_S)
    other = story.submit(1, 1)
    assert story.job(other).target == ()
    story.report()
    assert sorted([story.job(job).granted, story.job(other).granted]) == [(), (0,)]


def test_one_that_never_starts_fails_like_one_that_is_always_lost() -> None:
    story = Story(1)
    job = story.submit(1, 1, start_within_s=WITHIN_S)
    for _ in range(LOSSES_MAX):
        assert story.job(job).phase == "starting"
        wake(story, story.now_s + WITHIN_S)
        story.report()
        wake(story, max(story.now_s, story.job(job).rest_until_s) + 1.0)
    assert story.job(job).phase == "failed"
    assert story.job(job).reason.startswith("5 attempts in a row were lost: it did not start")


def test_one_that_has_made_a_step_has_no_deadline() -> None:
    story = Story(1)
    job = story.submit(1, 1, start_within_s=WITHIN_S)
    story.train(job)
    wake(story, story.now_s + 2 * WITHIN_S)
    assert (story.job(job).phase, story.job(job).attempt) == ("running", 1)


def test_while_its_lead_is_not_heard_nobody_knows_whether_it_has_started() -> None:
    story = Story(1)
    job = story.submit(1, 1, start_within_s=WITHIN_S)
    story.control = ControlPlane(story.pool, story.control.stability)
    story.control.await_nodes(["a"])
    wake(story, story.now_s + 2 * WITHIN_S)
    story.join("a", 1)
    assert story.job(job).phase == "starting"
    story.train(job)
    assert (story.job(job).phase, story.job(job).attempt) == ("running", 1)


def test_restarts_are_starts_that_nobody_asked_for() -> None:
    story = Story(2)
    job = story.submit(1, 2, precheck=("true",))
    story.happen(r.RunEnded(job, 1, "prechecked"))
    story.report()
    story.train(job)
    assert (story.job(job).starts, story.job(job).restarts) == (2, 0)
    story.happen(r.JobSuspended(job, "ann"))
    story.catch_up()
    story.happen(r.JobResumed(job, "ann"))
    story.train(job)
    assert (story.job(job).starts, story.job(job).restarts) == (3, 0)
    story.happen(r.RunEnded(job, story.job(job).attempt, "lost", 5))
    story.now_s = story.job(job).rest_until_s
    story.report()
    story.happen(r.Woke())
    assert (story.job(job).starts, story.job(job).restarts) == (4, 1)

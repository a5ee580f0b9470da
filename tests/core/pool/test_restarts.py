"""What a restarted server decides before all of its nodes are back."""

from coddl.core.pool import records as r
from coddl.core.pool.control import ControlPlane
from coddl.core.pool.explain import explain
from tests.core.pool.story import Story


def restarted(story: Story, rest_s: float = 0.0) -> None:
    """Start the server of a story anew."""
    story.control = ControlPlane(story.pool, story.control.stability)
    story.control.await_nodes(list(story.pool.nodes), story.now_s + rest_s)


def test_after_a_restart_jobs_are_placed_on_the_nodes_that_are_heard() -> None:
    story = Story(1, 1)
    restarted(story)
    job = story.submit(1, 2)
    assert story.job(job).granted == ()
    words = explain(
        story.pool, story.pool.jobs[job], (), story.now_s, story.control.awaited
    ).sentence
    assert "nodes not back since the server restarted: a, b" in words
    story.join("a", 1)
    assert story.job(job).granted == story.pool.nodes["a"].slots
    story.train(job)
    assert len(story.job(job).granted) == 1, "b may be anybody's"
    story.join("b", 1)
    story.catch_up()
    assert len(story.job(job).granted) == 2


def test_after_a_restart_nobody_is_resized_because_a_node_was_slower_to_come_back() -> None:
    story = Story(2, 2)
    job = story.submit(1, 4)
    story.train(job)
    before = story.job(job).granted
    assert len(before) == 4
    rest_until_s = story.now_s + 10.0
    restarted(story, rest_s=10.0)
    other = story.submit(1, 2)
    story.join("a", 2)
    assert (story.job(job).granted, story.job(other).granted) == (before, ())
    assert story.control.wake_at_s == rest_until_s
    story.join("b", 2)
    story.catch_up()
    assert story.job(other).granted, "all are back"
    restarted(story, rest_s=10.0)
    story.control.handle(r.JobCancelled(other, "ada"), story.now_s + 9.0)
    assert not story.control.handle(r.Woke(), story.now_s + 9.0).records
    woken = story.control.handle(r.Woke(), story.now_s + 10.0).records
    assert any(isinstance(record, r.Decided) for record in woken), (
        "those who are back need not wait"
    )


def test_after_a_restart_a_job_keeps_what_it_has_until_its_lead_is_heard_or_lost() -> None:
    story = Story(2, 2)
    first, second = story.submit(1, 4), story.submit(2, 2)
    story.train(first, second)
    (lead,) = {story.job(first).lead} - {story.job(second).lead}
    before = story.job(first).granted
    other = story.job(second).lead
    restarted(story)
    story.join(other or "", 2)
    story.happen(r.JobCancelled(second, "ada"))
    story.catch_up()
    assert story.job(second).phase == "cancelled"
    story.happen(r.JobBounded(first, 1, 1, "ada"))
    third = story.submit(4, 4)
    assert story.job(first).granted == story.job(first).target == before
    assert (story.job(first).phase, story.job(third).granted) == ("running", ())
    assert all([*story.pool.slots[slot].owners] == [first] for slot in before)
    story.join(lead or "", 2)
    assert len(story.job(first).granted) == 1

"""Nodes that are drained, and nodes that are forgotten."""

import pytest

from coddl.core.pool import records as r
from coddl.core.pool.errors import Conflict, NotFound
from coddl.core.waiting import Waiting
from tests.core.pool.story import Story


def waits(story: Story, job: int) -> Waiting:
    found = story.job(job).waiting
    assert found is not None
    return found


def test_a_job_that_waits_for_drained_nodes_says_so() -> None:
    story = Story(2, 1)
    for node in "ab":
        story.happen(r.NodeDrained(node, "ada"))
    job = story.submit(1, 1)
    want = "all nodes are drained: a, b"
    assert waits(story, job) == Waiting("NodeDown", want)
    story.happen(r.NodeUndrained("b", "ada"))
    assert story.job(job).granted
    larger = story.submit(3, 3)
    assert waits(story, larger).code == "Resources"
    assert waits(story, larger).sentence.endswith(
        "; 2 CPU slots on drained nodes cannot be used (a)"
    )
    story.happen(r.NodeUndrained("a", "ada"))
    assert "drained" not in waits(story, larger).sentence


def test_a_pool_without_nodes_says_so() -> None:
    story = Story(1)
    story.happen(r.NodeLost("a", "1", "its lease has run out"))
    job = story.submit(1, 1)
    assert waits(story, job) == Waiting("NodeDown", "no node is available")


def test_a_node_that_was_lost_can_be_forgotten_and_come_back_as_another() -> None:
    story = Story(2, 1)
    job = story.submit(1, 3)
    story.train(job)
    with pytest.raises(Conflict, match="its agent may still be running"):
        story.happen(r.NodeForgotten("a", "ada"))
    with pytest.raises(NotFound):
        story.happen(r.NodeForgotten("z", "ada"))
    story.happen(r.NodeLost("a", "1", "its lease has run out"))
    story.happen(r.NodeForgotten("a", "ada"))
    assert list(story.pool.nodes) == ["b"]
    assert {slot.node for slot in story.pool.slots.values()} == {"b"}
    story.join("a", 2, boot="2")
    assert story.pool.nodes["a"].slots == (3, 4), "its devices are others now"


def drain(story: Story, node: str, within_s: float) -> None:
    story.happen(r.NodeDrained(node, "ops", within_s))


def wait(story: Story, seconds: float) -> None:
    story.now_s += seconds
    story.happen(r.Woke())


def test_a_job_that_can_be_resized_leaves_at_once() -> None:
    story = Story(2, 2)
    job = story.submit(1, 4)
    story.train(job)
    assert story.shares() == {job: 4}
    drain(story, "b", 90.0)
    assert story.pool.nodes_of(story.job(job).granted) == ("a",)
    story.catch_up()
    assert story.control.wake_at_s is None or story.control.wake_at_s > story.now_s
    wait(story, 100.0)
    assert story.job(job).phase == "running"


def test_a_job_of_fixed_size_stays_until_the_deadline_forces_it() -> None:
    story = Story(1, 1)
    job = story.submit(1, 1, "opaque")
    story.train(job)
    (home,) = story.pool.nodes_of(story.job(job).granted)
    other = "b" if home == "a" else "a"
    drain(story, home, 90.0)
    assert story.job(job).granted, "it may end before"
    assert story.control.wake_at_s == pytest.approx(story.now_s + 60.0)
    wait(story, 61.0)
    assert (story.job(job).stop, story.job(job).reason) == ("retire", f"node {home} leaves")
    story.catch_up()
    assert story.pool.nodes_of(story.job(job).granted) == (other,)


def test_a_job_that_waits_for_others_is_saved_when_the_deadline_forces_it() -> None:
    story = Story(1, 1)
    fixed, elastic = story.submit(1, 1, "opaque"), story.submit(1, 1)
    story.train(fixed, elastic)
    (home,) = story.pool.nodes_of(story.job(elastic).granted)
    drain(story, home, 10.0)
    story.catch_up()
    assert story.job(elastic).phase in ("preempted", "running")
    wait(story, 6.0)  # of a short time, half is for saving
    story.catch_up()
    assert not story.job(elastic).granted
    assert story.job(fixed).phase == "running"
    assert story.job(elastic).waiting is not None


def test_a_deadline_may_come_later_and_is_taken_back_with_the_drain() -> None:
    story = Story(1)
    job = story.submit(1, 1, "opaque")
    story.train(job)
    story.happen(r.NodeDrained("a", "ops"))
    assert story.control.wake_at_s is None
    drain(story, "a", 90.0)
    drain(story, "a", 200.0)
    assert story.control.wake_at_s == pytest.approx(story.now_s + 170.0)
    drain(story, "a", 90.0)
    assert not story.happen(r.NodeDrained("a", "ops")).records, "it keeps its deadline"
    story.happen(r.NodeUndrained("a", "ops"))
    assert story.pool.nodes["a"].empty_by_s is None
    wait(story, 100.0)
    assert story.job(job).phase == "running"

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

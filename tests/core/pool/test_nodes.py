"""Nodes that are drained, and nodes that are forgotten."""

import pytest

from coddl.core.pool import records as r
from coddl.core.pool.errors import Conflict, NotFound
from coddl.core.pool.explain import sentence_of
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


def notice(story: Story, node: str, within_s: float, boot: str = "1") -> list[r.NodeDrained]:
    found = story.happen(r.NodeNoticed(node, boot, within_s)).records
    return [record for record in found if isinstance(record, r.NodeDrained)]


def test_a_node_whose_agent_has_notice_is_left_by_then_and_works_on() -> None:
    story = Story(2, 2)
    job = story.submit(1, 4)
    story.train(job)
    lead = story.job(job).lead
    assert lead is not None
    (drained,) = notice(story, lead, 90.0)
    assert sentence_of(drained) == (
        f"node {lead} drained by its agent, to be empty within 90 s: its machine is taken back"
    )
    node = story.pool.nodes[lead]
    assert not node.is_silent
    assert story.pool.orders(lead).leaves
    story.catch_up()
    assert story.job(job).lead not in (lead, None)
    assert story.job(job).adopt, "its workers run on"
    orders = story.pool.orders(lead)
    assert not orders.seats
    assert not orders.leads


def test_of_several_deadlines_of_a_node_the_nearest_holds() -> None:
    story = Story(1)
    assert notice(story, "a", 90.0)
    leaves_at_s = story.pool.nodes["a"].leaves_at_s
    assert not notice(story, "a", 89.0), "a repeat"
    assert not notice(story, "a", 200.0)
    assert story.pool.nodes["a"].leaves_at_s == leaves_at_s
    assert notice(story, "a", 20.0)
    assert story.pool.nodes["a"].leaves_at_s == pytest.approx(story.now_s + 20.0)
    assert not notice(story, "a", 10.0, boot="0"), "a ghost"
    assert not notice(story, "b", 10.0), "no such node"


def test_an_agent_that_is_started_again_is_used_again() -> None:
    story = Story(1)
    notice(story, "a", 20.0)
    story.happen(r.NodeLost("a", "1", "its agent was stopped"))
    story.join("a", 1, boot="2")
    assert not story.pool.nodes["a"].is_drained
    assert not story.pool.orders("a").leaves
    story.happen(r.NodeDrained("a", "ops"))
    story.join("a", 1, boot="3")
    assert story.pool.nodes["a"].is_drained, "an operator's word holds"


def test_a_lead_is_not_handed_over_to_a_node_that_leaves() -> None:
    story = Story(3, 3, 1)
    job = story.submit(3, 7)
    story.train(job)
    assert story.shares() == {job: 7}
    lead = story.job(job).lead
    other = next(name for name in "ab" if name != lead)
    story.pool.nodes[other].drain("ops", None, story.now_s)  # and no decision has moved it
    story.happen(r.NodeLost(str(lead), "1", "its lease has run out"))
    assert story.job(job).lead == "c"


def test_a_job_whose_nodes_all_leave_now_does_not_shrink_first() -> None:
    story = Story(2, 2)
    job = story.submit(1, 4)
    story.train(job)
    for node in "ab":  # and no decision has moved it
        story.pool.nodes[node].drain("ops", 0.0, story.now_s)
    records = story.happen(r.Woke()).records
    assert [each.slots for each in records if isinstance(each, r.Aimed)] == [()]
    assert story.job(job).stop == "retire"

"""What nodes list is compared with what they shall have; of a run, only its lead is heard."""

import pytest

from coddl.core.pool import records as r
from tests.core.pool.story import Story


def listing(story: Story, *runs: r.RunId, version: int | None = None) -> r.NodeReported:
    """Give a report of node a, which knows its newest orders and lists these runs."""
    node = story.pool.nodes["a"]
    known = node.version if version is None else version
    return r.NodeReported("a", node.boot, known, story.holding("a"), frozenset(runs))


def owners(story: Story) -> list[int | None]:
    return [next(iter(slot.owners), None) for slot in story.pool.slots.values()]


def test_a_run_that_its_node_does_not_list_is_lost_and_started_again() -> None:
    story = Story(1)
    job = story.submit()
    story.train(job)
    outcome = story.happen(listing(story))
    (ended,) = [each for each in outcome.records if isinstance(each, r.RunEnded)]
    assert (ended.outcome, ended.attempt, ended.step) == ("lost", 1, 4)
    assert ended.trouble is not None
    assert ended.trouble.because == "node a no longer runs it and did not report how it ended"
    assert (story.job(job).phase, story.job(job).granted) == ("preempted", ())
    assert owners(story) == [job], "its processes may be there"
    story.report()
    assert owners(story) == [None]
    story.now_s = story.job(job).rest_until_s
    story.happen(r.Woke())
    assert (story.job(job).attempt, len(story.job(job).granted)) == (2, 1)


def test_so_it_is_of_a_run_that_was_told_to_stop() -> None:
    story = Story(1)
    job = story.submit()
    story.train(job)
    story.happen(r.JobCancelled(job, "ada"))
    story.happen(listing(story))
    assert story.job(job).phase == "cancelled"


def test_a_run_of_newer_orders_than_the_node_knows_is_not_missed() -> None:
    story = Story(1)
    before = story.pool.nodes["a"].version
    job = story.submit()
    story.happen(listing(story, version=before))
    assert story.job(job).phase == "starting"


def test_a_node_that_does_not_tell_its_runs_misses_none() -> None:
    story = Story(1)
    job = story.submit()
    node = story.pool.nodes["a"]
    story.happen(r.NodeReported("a", node.boot, node.version, {}))
    assert story.job(job).phase == "starting"


def test_a_node_that_lists_a_run_which_it_shall_not_have_is_told_again() -> None:
    story = Story(1)
    job = story.submit()
    run, ghost = r.RunId(job, 1), r.RunId(9, 3)
    assert story.happen(listing(story, run)).instruct == frozenset()
    assert story.happen(listing(story, run, ghost)).instruct == {"a"}
    assert story.pool.orders("a").leads[0].job == job


STRANGERS = {
    "another node": ("b", "1", 1),
    "another boot": ("a", "0", 1),
    "an older attempt": ("a", "1", 0),
    "an unknown node": ("z", "1", 1),
}


@pytest.mark.parametrize("who", STRANGERS.values(), ids=STRANGERS.keys())
@pytest.mark.parametrize("kind", ["ended", "stepped", "progressed"])
def test_only_the_lead_of_a_run_is_heard(who: tuple[str, str, int], kind: str) -> None:
    story = Story(1, 1)
    job = story.submit(1, 1)
    assert story.job(job).lead == "a"
    node, boot, attempt = who
    facts: dict[str, r.RunFact | r.RunProgressed] = {
        "ended": r.RunEnded(job, attempt, "failed"),
        "stepped": r.RunStepped(job, attempt, 7),
        "progressed": r.RunProgressed(job, attempt, 7, 1, 0.5, 9),
    }
    report = r.RunReported(node, boot, facts[kind])
    outcome = story.happen(report)
    assert outcome.dropped == (report,)
    assert outcome.records == ()
    assert (story.job(job).phase, story.job(job).step) == ("starting", 0)


def test_a_lead_is_heard_after_its_lease_was_over_if_its_run_had_succeeded() -> None:
    story = Story(1, 1)
    job = story.submit(1, 1)
    story.train(job)
    story.happen(r.NodeDrained("b", "ada"))
    story.happen(r.NodeLost("a", "1", "its lease has run out"))
    assert story.job(job).phase == "preempted"
    stranger = r.RunReported("b", "1", r.RunEnded(job, 1, "succeeded", 100))
    assert story.happen(stranger).dropped == (stranger,)
    story.happen(r.RunReported("a", "1", r.RunEnded(job, 1, "succeeded", 100)))
    assert story.job(job).phase == "succeeded"

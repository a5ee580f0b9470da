"""What a pool tells policies of jobs that are over."""

from dataclasses import replace

import pytest

from coddl.core.history import level_at
from coddl.core.pool import records as r
from coddl.core.pool.snapshot import snapshot_of_pool
from coddl.core.pool.spec import JobSpec, Launch
from coddl.core.pool.state import Pool
from tests.core.pool.story import Story


def story_of_three() -> Story:
    """Jobs of ann, ben and ann; the first has made 3,000 steps, of 0.5 s on two GPUs, and ended."""
    story, launch = Story(2), Launch(argv=("train.py",))
    for user in ("ann", "ben", "ann"):
        story.hand_in(
            JobSpec(name="job", launch=launch, user=user, gpus_max=2, step_s={1: 0.9, 2: 0.5})
        )
    story.happen(r.RunStepped(1, 1, 1))
    story.now_s += 100.0
    story.happen(r.RunEnded(1, 1, "succeeded", 3000))
    return story


def test_jobs_that_are_over_are_told_by_cohort_and_training_time() -> None:
    story = story_of_three()
    seen = snapshot_of_pool(story.pool, story.now_s, 1).snapshot
    past = seen.known_past()
    assert seen.jobs.cohort.tolist() == [0, 1]
    assert (past.id.tolist(), past.cohort.tolist()) == ([1], [1])
    assert past.level.tolist() == [level_at(1500.0)]
    assert seen.past_gpu_s.tolist() == [story.job(1).attained_gpu_s]


def test_they_are_known_after_a_restart() -> None:
    story, again = story_of_three(), Pool()
    for _, at_s, record in story.journal:
        again.apply(record, at_s)
    before, after = (snapshot_of_pool(each, 500.0, 1).snapshot for each in (story.pool, again))
    assert [c.tolist() for c in before.known_past()] == [c.tolist() for c in after.known_past()]
    assert before.past_gpu_s.tolist() == after.past_gpu_s.tolist() != []


REQUESTS = {
    "the request": (3, 2, 8, 3),
    "its maximum without one": (0, 2, 8, 8),
    "no less than its minimum": (1, 2, 8, 2),
    "no more than its maximum": (9, 2, 8, 8),
    "no more than there are": (12, 2, 99, 8),
}


@pytest.mark.parametrize(("asked", "least", "most", "want"), REQUESTS.values(), ids=REQUESTS)
def test_rigid_policies_give_the_request(asked: int, least: int, most: int, want: int) -> None:
    story = Story(8)
    number = story.submit(least, most)
    story.train(number)
    state = story.job(number)
    state.spec = replace(state.spec, gpus_requested=asked)
    jobs = snapshot_of_pool(story.pool, story.now_s, 1).snapshot.jobs
    assert jobs.gpus_requested.tolist() == [want]
    assert jobs.is_range.tolist() == [int(not asked)], "it says which of the range it asks for"


def test_one_that_never_ran_says_nothing() -> None:
    story = story_of_three()
    story.happen(r.JobCancelled(3, "ann"))
    assert 3 in story.pool.ended
    past = snapshot_of_pool(story.pool, story.now_s, 1).snapshot.known_past()
    assert past.id.tolist() == [1]

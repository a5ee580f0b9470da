"""Runs whose state can't be written to disk, and runs that end before their last step."""

from coddl.core.pool import records as r
from coddl.core.pool.explain import explain, sentence, sentence_of
from coddl.core.pool.state import LOSSES_MAX
from tests.core.pool.story import Story

FULL = r.Trouble("no checkpoint", "the disk is full", "free space")


def test_a_job_that_can_not_be_saved_says_so_until_it_is() -> None:
    story = Story(2)
    job = story.prepare(story.submit(1, 2))
    story.happen(r.RunUnsaved(job, 1, 7, FULL))
    assert story.job(job).unsaved == FULL
    assert "it cannot save its state: no checkpoint: the disk is full" in sentence(
        story.pool, story.job(job), story.now_s
    )
    story.happen(r.RunUnsaved(job, 1, 9, None))
    assert story.job(job).unsaved is None
    told = [
        line.text
        for line in explain(story.pool, story.pool.jobs[job], story.journal, story.now_s).story
    ]
    assert "job 1 cannot save its state: no checkpoint: the disk is full" in told
    assert "job 1 can save its state again, at step 9" in told


def test_what_is_known_already_is_no_news() -> None:
    story = Story(2)
    job = story.prepare(story.submit(1, 2))
    assert story.happen(r.RunUnsaved(job, 1, 5, None)).records == ()
    assert story.happen(r.RunUnsaved(job, 7, 5, FULL)).records == ()  # a ghost
    story.happen(r.RunUnsaved(job, 1, 5, FULL))
    assert story.happen(r.RunUnsaved(job, 1, 6, FULL)).records == ()  # a repeat


def test_a_suspended_job_stops_once_it_is_saved() -> None:
    story = Story(2)
    job = story.prepare(story.submit(1, 2))
    story.happen(r.JobSuspended(job, "ann"))
    story.happen(r.RunUnsaved(job, 1, 5, FULL))
    state = story.job(job)
    assert (state.phase, bool(state.granted)) == ("stopping", True)
    assert "keeps training until it can" in sentence(story.pool, state, story.now_s)
    story.happen(r.RunUnsaved(job, 1, 9, None))
    story.happen(r.RunEnded(job, 1, "retired", 9))
    assert (state.phase, state.unsaved, state.step) == ("suspended", None, 9)


def test_the_next_run_begins_without_the_last_ones_trouble() -> None:
    story = Story(2)
    job = story.prepare(story.submit(1, 2))
    story.happen(r.RunUnsaved(job, 1, 5, FULL))
    story.happen(r.RunEnded(job, 1, "lost", 5, None, FULL))
    assert story.job(job).unsaved is None


def refuse(story: Story, job: int, times: int) -> None:
    """Have the system refuse the job's next runs their files."""
    for _ in range(times):
        attempt = story.job(job).attempt
        story.happen(r.RunEnded(job, attempt, "lost", 0, None, FULL, refused=True))
        story.report()
        story.now_s = max(story.now_s, story.job(job).rest_until_s)
        story.happen(r.Woke())


def test_a_full_disk_ends_no_job_that_has_trained() -> None:
    story = Story(2)
    job = story.submit(1, 2)
    story.train(job)
    refuse(story, job, 2 * LOSSES_MAX)
    assert story.job(job).phase == "starting"
    story.train(job)
    assert story.job(job).phase == "running"


def test_a_job_that_never_trained_fails_on_a_full_disk() -> None:
    story = Story(2)
    job = story.submit(1, 2)
    refuse(story, job, LOSSES_MAX)
    assert story.job(job).phase == "failed"


def test_a_job_that_left_its_loop_early_says_so() -> None:
    story = Story(2)
    job = story.prepare(story.submit(1, 2))
    steps = story.job(job).steps
    ended = r.RunEnded(job, 1, "succeeded", 30, 0, left_early=True)
    story.happen(ended)
    state = story.job(job)
    assert (state.phase, state.left_early) == ("succeeded", True)
    assert state.reason == f"the script left its loop at step 30 of {steps}"
    assert "left its loop early" in sentence_of(ended)

"""Slices that do not fit in memory: a job needs more GPUs from then on, or it fails."""

from dataclasses import replace

import pytest

from coddl.core.pool import records as r
from coddl.core.pool.errors import Infeasible
from coddl.core.pool.explain import explain, sentence_of
from coddl.core.pool.memory_limits import LIMITS_MAX, MemoryLimit, limits_on, with_limit
from coddl.core.pool.orders import JobOrder
from coddl.core.pool.state import Pool
from tests.core.pool.story import Story

BECAUSE = "a slice of 64 samples does not fit in memory"
LIMIT = f"at least 2 GPUs: {BECAUSE} on cpu"


def ran_out(story: Story, job: int, gpus_min: int = 2) -> None:
    """Let a job's only worker run out of memory, and its run end for that."""
    attempt = story.job(job).attempt
    story.happen(r.SliceDidNotFit(job, attempt, gpus_min, BECAUSE))
    story.happen(r.RunEnded(job, attempt, "requeue", story.job(job).step, 75))
    story.report()


def test_a_job_that_ran_out_of_memory_starts_again_at_once_on_more() -> None:
    story = Story(4)
    job = story.prepare(story.submit(1, 4))
    ran_out(story, job)
    state = story.job(job)
    assert (state.phase, state.attempt, len(state.granted)) == ("starting", 2, 2)
    assert state.rest_until_s == 0.0
    assert f"it needs {LIMIT}" in [move.because for move in state.story]


def test_its_minimum_holds_however_many_others_come() -> None:
    story = Story(4)
    story.happen(r.PolicyChosen("max-min", "ops"))
    job = story.prepare(story.submit(1, 4))
    ran_out(story, job)
    story.train(job)
    assert story.shares() == {job: 4}
    others = [story.submit(1, 4) for _ in range(3)]
    story.catch_up()
    story.train(*(each for each in others if story.job(each).granted))
    assert [story.shares()[each] for each in (job, *others)] == [2, 1, 1, 0]


def test_a_limit_is_told_and_explained() -> None:
    story = Story(4)
    job = story.prepare(story.submit(1, 4))
    ran_out(story, job)
    assert story.job(job).fit_sentence == LIMIT
    told = [
        line.text
        for line in explain(story.pool, story.pool.jobs[job], story.journal, story.now_s).story
    ]
    assert f"job 1 needs at least 2 CPU slots: {BECAUSE}" in told
    assert any("(job-1 needs at least 2 CPU slots)" in line for line in told)


def test_what_is_known_already_is_no_news() -> None:
    story = Story(4)
    job = story.prepare(story.submit(1, 4))
    assert story.happen(r.SliceDidNotFit(job, 7, 2, BECAUSE)).records == ()  # a ghost
    story.happen(r.SliceDidNotFit(job, 1, 3, BECAUSE))
    assert story.happen(r.SliceDidNotFit(job, 1, 3, BECAUSE)).records == ()  # a repeat
    assert story.happen(r.SliceDidNotFit(job, 1, 2, "less")).records == ()
    assert (story.job(job).gpus_least, story.job(job).fit_because) == (3, f"{BECAUSE} on cpu")


def test_a_job_for_which_the_pool_is_too_small_waits_and_says_why() -> None:
    story = Story(1)
    job = story.prepare(story.submit(1, 4))
    ran_out(story, job)
    state = story.job(job)
    assert state.phase == "preempted"
    assert state.waiting is not None
    assert state.waiting.code == "Infeasible"
    assert (
        state.waiting.sentence
        == f"it needs more CPU slots than the 1 in the cluster; it needs {LIMIT}"
    )
    story.join("b", 1)
    assert story.shares() == {job: 2}


@pytest.mark.parametrize(
    ("most", "workers_max", "may_have"), [(1, 8, 1), (4, 1, 1), (3, 2, 2)]
)  # its user's bound, or that of its batch
def test_a_job_that_needs_more_than_it_may_have_fails(
    most: int, workers_max: int, may_have: int
) -> None:
    story = Story(4)
    job = story.prepare(story.submit(1, most), workers_max=workers_max)
    ran_out(story, job, may_have + 1)
    state = story.job(job)
    assert state.phase == "failed"
    assert state.trouble == r.Trouble(
        "it does not fit in memory",
        f"it needs at least {may_have + 1} GPUs: {BECAUSE} on cpu; its maximum is {may_have}",
        f"--gpus {may_have + 1}, or micro_batch in coddl.prepare",
    )
    assert not any(slot.owners for slot in story.pool.slots.values())


PREDICTED = "a slice of 64 samples would need about 91 GiB of the GPU's 79 GiB"


def predict(story: Story, job: int, gpus_min: int = 2) -> None:
    """Let a job find, while it trains, that it would not fit on fewer GPUs."""
    fact = r.SliceDidNotFit(job, story.job(job).attempt, gpus_min, PREDICTED, "predicted", 64)
    story.happen(fact)
    story.catch_up()


def two_on_three() -> tuple[Story, int]:
    """Give a pool in which a job trains on two of three GPUs, and was never seen on one."""
    story = Story(3)
    story.happen(r.PolicyChosen("max-min", "ops"))
    job = story.prepare(story.submit(2, 4))
    story.train(job)
    story.happen(r.JobBounded(job, 1, 4, "ada"))
    return story, job


def test_a_size_that_would_not_fit_is_not_tried() -> None:
    story, job = two_on_three()
    predict(story, job)
    assert story.job(job).fit_sentence == f"at least 2 GPUs: {PREDICTED} on cpu"
    assert (story.job(job).phase, story.job(job).attempt) == ("running", 1)
    other = story.submit(1, 4)
    story.catch_up()
    assert story.shares() == {job: 2, other: 1}
    waiting = story.submit(1, 4)
    story.catch_up()
    assert story.shares()[waiting] == 0
    with pytest.raises(Infeasible, match="cannot be resized"):
        story.happen(r.JobBounded(job, 1, 1, "ada"))


def test_a_prediction_gives_way_to_what_was_measured_and_to_what_is_allowed() -> None:
    story, job = two_on_three()
    story.happen(r.RunProgressed(job, 1, 9, 1, 1.0, 3))  # it has trained on one after all
    predict(story, job)
    assert (story.job(job).gpus_least, story.job(job).fit_sentence) == (1, "")
    story, job = two_on_three()
    story.happen(r.JobBounded(job, 1, 1, "ada"))
    predict(story, job)
    assert (story.job(job).gpus_least, story.job(job).phase) == (1, "running")


def test_a_run_that_asks_to_be_run_again_after_a_prediction_rests_as_others_do() -> None:
    story, job = two_on_three()
    predict(story, job)
    story.happen(r.RunEnded(job, 1, "requeue", 0, 75))
    assert story.job(job).story[-1].because == "exited with code 75, which asks for a restart"
    assert story.job(job).rest_until_s > story.now_s


def test_a_slice_that_ran_out_counts_for_more_than_a_prediction() -> None:
    story, job = two_on_three()
    predict(story, job)
    story.happen(r.SliceDidNotFit(job, 1, 2, BECAUSE))
    assert story.job(job).fit_sentence == LIMIT


FOUND = MemoryLimit(model=7, kind="cpu", samples=64, job=1)


def after_a_failure() -> Story:
    """Give a pool in which job 1 ran out of memory with 64 samples, and was cancelled."""
    story = Story(4)
    job = story.prepare(story.submit(1, 4), model=7)
    story.happen(r.SliceDidNotFit(job, 1, 2, BECAUSE, "tried", 64))
    story.happen(r.RunEnded(job, 1, "requeue", 0, 75))
    story.happen(r.JobCancelled(job, "ada"))
    story.catch_up()
    return story


def leads(story: Story, job: int) -> JobOrder:
    """Give what the lead of a job is told."""
    lead = story.job(job).lead
    assert lead is not None
    return next(each for each in story.pool.orders(lead).leads if each.job == job)


def test_later_jobs_are_told_what_an_earlier_one_has_found() -> None:
    story = after_a_failure()
    assert story.pool.limits == [FOUND]
    job = story.submit(1, 4)
    assert leads(story, job).limits == (FOUND,)
    story.prepare(job, model=7)
    assert leads(story, job).limits == (), "it has compared them by then"
    because = f"{BECAUSE}, as job 1 found"
    story.happen(r.SliceDidNotFit(job, 1, 2, because, "remembered", 64))
    story.happen(r.RunEnded(job, 1, "requeue", 0, 75))
    story.report()
    state = story.job(job)
    assert (state.phase, state.attempt, len(state.granted)) == ("starting", 2, 2)
    assert state.fit_sentence == f"at least 2 GPUs: {because} on cpu"
    assert state.rest_until_s == 0.0
    assert story.pool.limits == [FOUND]


def test_what_another_job_has_found_keeps_none_from_trying() -> None:
    story = after_a_failure()
    job = story.prepare(story.submit(1, 1), model=7)
    story.happen(r.SliceDidNotFit(job, 1, 2, BECAUSE, "remembered", 64))
    story.happen(r.RunEnded(job, 1, "requeue", 0, 75))
    story.report()
    assert story.job(job).phase == "preempted"
    story.now_s = story.job(job).rest_until_s
    story.happen(r.Woke())
    assert (story.job(job).phase, leads(story, job).limits) == ("starting", ())


def test_a_limit_is_forgotten_when_as_many_samples_fit() -> None:
    story = after_a_failure()
    small = story.prepare(story.submit(2, 2), model=7)
    story.happen(r.RunStepped(small, 1, 1))
    assert story.pool.limits == [FOUND], "32 samples say nothing of 64"
    other = story.prepare(story.submit(1, 1), model=8)
    story.happen(r.RunStepped(other, 1, 1))
    assert story.pool.limits == [FOUND]
    job = story.prepare(story.submit(1, 1), model=7)
    story.happen(r.RunStepped(job, 1, 1))
    assert story.pool.limits == []


def test_a_journal_holds_what_jobs_have_found() -> None:
    story = after_a_failure()
    again = Pool()
    for _, at_s, record in story.journal:
        again.apply(record, at_s)
    assert again.limits == [FOUND]


def test_of_a_model_on_a_kind_of_gpu_the_lowest_limit_is_kept() -> None:
    found: list[MemoryLimit] = []
    for limit in (FOUND, replace(FOUND, samples=32, job=2), replace(FOUND, samples=48, job=3)):
        found = with_limit(found, limit)
    others = [replace(FOUND, model=8), replace(FOUND, kind="h200")]
    for limit in others:
        found = with_limit(found, limit)
    assert found == [replace(FOUND, samples=32, job=2), *others]
    assert limits_on(found, ["h200"]) == (others[1],)
    for model in range(LIMITS_MAX):
        found = with_limit(found, replace(FOUND, model=100 + model))
    assert (len(found), found[0].model) == (LIMITS_MAX, 100)


ENDS: dict[str, tuple[r.RunEnded | r.NodeLost, str]] = {
    "retired": (r.RunEnded(1, 1, "retired"), "failed"),
    "lost": (r.RunEnded(1, 1, "lost"), "failed"),
    "with its node": (r.NodeLost("a", "1", "its lease has run out"), "failed"),
    "well after all": (r.RunEnded(1, 1, "succeeded"), "succeeded"),
}


@pytest.mark.parametrize(("event", "phase"), ENDS.values(), ids=ENDS.keys())
def test_so_it_is_however_its_run_ends(event: r.RunEnded | r.NodeLost, phase: str) -> None:
    story = Story(2)
    job = story.prepare(story.submit(1, 1))
    story.happen(r.SliceDidNotFit(job, 1, 2, BECAUSE))
    assert (story.job(job).phase, story.job(job).target) == ("stopping", ())
    story.happen(event)
    assert story.job(job).phase == phase


def test_a_job_that_is_cancelled_then_is_cancelled() -> None:
    story = Story(2)
    job = story.prepare(story.submit(1, 1))
    story.happen(r.SliceDidNotFit(job, 1, 2, BECAUSE))
    story.happen(r.JobCancelled(job, "ada"))
    story.catch_up()
    assert story.job(job).phase == "cancelled"


def test_users_cannot_go_below_the_limit() -> None:
    story = Story(4)
    job = story.prepare(story.submit(1, 4))
    ran_out(story, job)
    with pytest.raises(Infeasible) as raised:
        story.happen(r.JobBounded(job, 1, 1, "ada"))
    assert (raised.value.because, raised.value.try_) == (f"it needs {LIMIT}", "coddl resize 1 2")
    story.happen(r.JobBounded(job, 1, 3, "ada"))
    assert story.job(job).bounds(story.now_s) == (2, 2)  # until it has shown that it runs
    story.train(job)
    assert story.job(job).bounds(story.now_s) == (2, 3)


PREPARED = {
    "cut by sample": (
        r.RunPrepared(3, 1, None, 1000, 64, workers_max=64),
        "job 3 is resizable: up to 64 GPUs, 1000 steps",
    ),
    "strict": (
        r.RunPrepared(3, 1, 8, 1000, 64, workers_max=8),
        "job 3 is resizable: up to 8 GPUs, 8 virtual nodes, 1000 steps",
    ),
    "of an older version": (
        r.RunPrepared(3, 1, 8, 1000),
        "job 3 is resizable: up to 8 GPUs, 8 virtual nodes, 1000 steps",
    ),
    "of unknown length": (
        r.RunPrepared(3, 1, None, None, 64, workers_max=1),
        "job 3 is resizable: up to 1 GPU, an unknown number of steps",
    ),
}


@pytest.mark.parametrize(("record", "sentence"), PREPARED.values(), ids=PREPARED.keys())
def test_a_line_says_which_sizes_a_job_can_have(record: r.RunPrepared, sentence: str) -> None:
    assert sentence_of(record) == sentence


def test_a_job_at_the_limit_of_its_batch_says_so() -> None:
    story = Story(4)
    job = story.prepare(story.submit(1, 4), workers_max=2)
    story.happen(r.RunStepped(job, 1, 1))
    story.happen(r.RunProgressed(job, 1, 4, 1, 1.0, 3))
    story.catch_up()
    assert explain(story.pool, story.pool.jobs[job], (), story.now_s).sentence.endswith(
        "; its batch of 64 samples can be shared by at most 2 GPUs (at least 32 samples each)"
    )

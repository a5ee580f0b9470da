"""Losses that jobs log: kept, and turned into a length where their scripts tell none."""

import math

import msgspec
import pytest

from coddl.core.pool import records as r
from coddl.core.pool.explain import sentence_of
from coddl.core.pool.lengths import length_of, length_sentence
from coddl.core.pool.snapshot import snapshot_of_pool
from coddl.core.pool.state import Pool
from coddl.core.speed.convergence import LossCurve
from coddl.core.speed.training_length import LOSSES_MAX
from tests.core.pool.story import Story

CURVE = LossCurve(0.003, 0.2, 0.4)
STEPS = [round(1.1**k) for k in range(26, 70)]  # 12 to 718


def started(story: Story, *, steps: int | None = None, gpus_max: int = 1) -> int:
    """Start a job whose script tells so many steps, or none."""
    job = story.submit(1, gpus_max)
    attempt = story.job(job).attempt
    story.happen(r.RunPrepared(job, attempt, None, steps, 64, workers_max=8, epoch_steps=50))
    story.happen(r.RunStepped(job, attempt, 1))
    story.happen(r.RunProgressed(job, attempt, 4, 1, 0.1, 3))
    return job


def log(story: Story, job: int, steps: list[int], curve: LossCurve = CURVE) -> list[r.Record]:
    """Let a job log losses; give the records that follow."""
    attempt = story.job(job).attempt
    return [
        record
        for step in steps
        for record in story.happen(r.LossMeasured(job, attempt, step, curve.loss(step))).records
    ]


def remaining(story: Story, job: int) -> float:
    """Give what a policy reads of a job's length."""
    seen = snapshot_of_pool(story.pool, story.now_s, seed=1)
    row = [each.id for each in seen.jobs].index(job)
    return float(seen.snapshot.jobs.remaining_iterations[row])


def test_losses_are_kept_and_tell_a_length_where_the_script_tells_none() -> None:
    story = Story(1)
    job = started(story)
    assert length_of(story.job(job)).source == "unknown"
    assert math.isnan(remaining(story, job))
    log(story, job, STEPS)
    state = story.job(job)
    assert [(point.step, point.loss) for point in state.loss_points] == [
        (step, CURVE.loss(step)) for step in STEPS
    ]
    length = length_of(state)
    assert (length.source, state.step) == ("predicted", STEPS[-1])
    assert length.steps_left is not None
    assert remaining(story, job) == pytest.approx(length.steps_left, rel=0.1)
    words = f"about {length.steps_left:,} more steps, predicted from its loss ± "
    assert length_sentence(state).startswith(words)


def test_the_first_prediction_calls_for_a_decision_and_later_ones_do_not() -> None:
    story = Story(1)
    job = started(story)
    told = log(story, job, STEPS)
    decisions = [record for record in told if isinstance(record, r.Decided)]
    assert [each.why for each in decisions] == ["the length of job-1 is predicted"]
    assert decisions[0].rows[0].remaining is not None
    assert all(isinstance(record, r.LossMeasured | r.Decided) for record in told)


def test_what_the_script_tells_wins() -> None:
    story = Story(1)
    job = started(story, steps=5000)
    told = log(story, job, STEPS)
    assert {type(record) for record in told} == {r.LossMeasured}
    left = 5000 - STEPS[-1]
    assert length_of(story.job(job)).steps_left == left
    assert length_sentence(story.job(job)) == f"{left:,} more steps, as reported by its script"


UNKNOWN = {
    "no loss": ([], CURVE, "logs no loss"),
    "a few": (STEPS[:3], CURVE, "too few losses: 3 of 8"),
    "flat": (STEPS, LossCurve(0.0, 0.5, 0.0), "its loss does not clearly fall"),
}


@pytest.mark.parametrize(("steps", "curve", "words"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_an_unknown_length_says_why(steps: list[int], curve: LossCurve, words: str) -> None:
    story = Story(1)
    job = started(story)
    log(story, job, steps, curve)
    assert length_of(story.job(job)).steps_left is None
    assert words in length_sentence(story.job(job))


@pytest.mark.parametrize("short", [0, 1])
def test_srtf_keeps_the_job_whose_loss_is_nearer_to_its_end(short: int) -> None:
    story = Story(1, 1)
    story.happen(r.PolicyChosen("srtf", "ann"))
    jobs = [started(story), started(story)]
    long = LossCurve(CURVE.b0 / 50, CURVE.b1, CURVE.b2)
    for number, job in enumerate(jobs):
        log(story, job, STEPS, CURVE if number == short else long)
    assert 10 * remaining(story, jobs[short]) < remaining(story, jobs[1 - short])
    node = story.job(jobs[short]).lead
    assert node is not None
    story.happen(r.NodeDrained(node, "ann"))
    story.catch_up()
    assert story.shares() == {jobs[short]: 1, jobs[1 - short]: 0}


def test_a_prediction_never_ends_a_job() -> None:
    story = Story(1)
    job = started(story)
    log(story, job, [round(1.1**k) for k in range(20, 110)])
    assert story.job(job).phase == "running"
    assert story.job(job).step > 30_000
    assert length_of(story.job(job)).source == "unknown"


def test_losses_survive_a_restart_by_the_journal_and_by_a_snapshot() -> None:
    story = Story(1)
    job = started(story)
    log(story, job, STEPS)
    again = Pool()
    for _, at_s, record in story.journal:
        again.apply(record, at_s)
    read = msgspec.json.decode(msgspec.json.encode(story.pool), type=Pool)
    for pool in (again, read):
        assert pool.jobs[job].loss_points == story.job(job).loss_points
        assert pool.jobs[job].predicted == story.job(job).predicted is not None


def test_losses_of_a_run_that_was_stopped_since_count_no_more() -> None:
    story = Story(1)
    job = started(story)
    attempt = story.job(job).attempt
    story.happen(r.RunEnded(job, attempt, "succeeded", 10))
    assert not story.happen(r.LossMeasured(job, attempt, 20, 1.0)).records  # a ghost


def test_a_job_has_a_bounded_number_of_losses_and_few_when_it_is_over() -> None:
    story = Story(1)
    job = started(story)
    log(story, job, list(range(100, 400)))
    assert len(story.job(job).loss_points) == LOSSES_MAX
    story.happen(r.RunEnded(job, story.job(job).attempt, "succeeded", 400))
    points = story.job(job).loss_points
    assert (len(points), points[0].step, points[-1].step) == (24, 100, 399)


def test_another_length_of_an_epoch_is_news() -> None:
    story = Story(1)
    job = started(story)
    attempt = story.job(job).attempt
    told = r.RunPrepared(job, attempt, None, None, 64, workers_max=8, epoch_steps=50)
    assert not story.happen(told).records
    assert story.happen(r.RunPrepared(job, attempt, None, None, 64, workers_max=8)).records


def test_a_loss_is_told_in_one_line() -> None:
    told = sentence_of(r.LossMeasured(1, 2, 160, 0.251234))
    assert told == "job 1 had a loss of 0.2512 around step 160"


def test_a_training_that_goes_on_has_no_known_length_any_more() -> None:
    story = Story(1)
    job = started(story)
    log(story, job, STEPS)
    predicted = story.job(job).predicted
    assert predicted is not None
    late = round(predicted.end_step + predicted.error_steps) + 1
    story.happen(r.RunProgressed(job, story.job(job).attempt, late, 1, 0.1, 3))
    assert length_of(story.job(job)).source == "unknown"
    assert "trains for longer than its loss predicted" in length_sentence(story.job(job))


@pytest.mark.parametrize(("step", "loss"), [(10**400, 1.0), (-1, 1.0), (1, 1e31), (1, math.nan)])
def test_losses_that_can_not_be_are_refused(step: int, loss: float) -> None:
    with pytest.raises(ValueError, match="out of range"):
        r.LossMeasured(1, 1, step, loss)


def test_steps_beyond_all_bounds_are_refused_or_cut() -> None:
    with pytest.raises(ValueError, match="out of range"):
        r.RunPrepared(1, 1, None, 10**400, 64)
    story = Story(1)
    job = started(story)
    log(story, job, STEPS)
    story.happen(r.RunProgressed(job, story.job(job).attempt, 10**400, 1, 0.1, 3))
    assert story.job(job).step == r.STEPS_MAX
    assert math.isnan(remaining(story, job))


@pytest.mark.parametrize("step_s", [5e-324, 1e300, math.nan, math.inf])
def test_step_times_that_can_not_be_do_not_count(step_s: float) -> None:
    story = Story(1)
    job = started(story)
    before = dict(story.job(job).speeds)
    story.happen(r.RunProgressed(job, story.job(job).attempt, 9, 1, step_s, 30))
    assert story.job(job).speeds == before

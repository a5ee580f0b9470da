"""Parked workers: who may be parked, where they are resumed, and when they are given up."""

from dataclasses import replace

import pytest

from coddl.core.pool import records as r
from coddl.core.pool.explain import explain, sentence_of
from coddl.core.pool.snapshot import snapshot_of_pool
from coddl.core.pool.state import Pool
from tests.core.pool.story import Story

GIB4 = 4 << 30


def parked_story(*devices: int, least: int = 1, most: int = 2) -> tuple[Story, int]:
    """Give a pool in which a job was suspended, and its workers are parked."""
    story = Story(*(devices or (2,)))
    job = story.submit(least, most)
    story.train(job)
    story.happen(r.JobSuspended(job, "ada"))
    park(story, job)
    return story, job


def park(story: Story, number: int, park_s: float = 0.2) -> None:
    """Let a run end as it was told, with its workers parked; and its slots be seen to be empty."""
    job = story.job(number)
    assert job.stop == "park"
    ended = r.RunEnded(number, job.attempt, "retired", 7)
    story.happen(replace(ended, parked=job.granted, parked_bytes=GIB4, park_s=park_s))
    story.report()


def resume(story: Story, number: int, serving_s: float = 0.3) -> None:
    """Let a job train again out of its parked workers."""
    job = story.job(number)
    told = (number, job.attempt, 1, "resumed", 0, job.granted, 7, 0.0, serving_s)
    story.happen(r.RunChanged(*told))  # type: ignore[arg-type] # a kind
    story.happen(r.RunStepped(number, job.attempt, 8))


def report(story: Story, node: str, *parked: int, version: int | None = None) -> r.NodeReported:
    """Give a node's word of what is parked there."""
    state, seats = story.pool.nodes[node], story.holding(node)
    known = state.version if version is None else version
    return r.NodeReported(node, state.boot, known, seats, parked=frozenset(parked))


def test_a_job_on_one_node_that_has_trained_is_parked() -> None:
    story, job = parked_story()
    state = story.job(job)
    assert (state.phase, state.granted, state.parked) == ("suspended", (), (0, 1))
    assert (state.parked_bytes, state.park_s) == (GIB4, 0.2)
    assert story.pool.orders("a").parked == (job,)
    assert not any(slot.owners for slot in story.pool.slots.values()), "others may use them"


def starting(story: Story) -> int:
    job = story.submit()
    return story.prepare(job)


def restartable(story: Story) -> int:
    job = story.submit(tier="restartable")
    story.train(job)
    return job


def on_two_nodes(story: Story) -> int:
    job = story.submit(4, 4)
    story.train(job)
    return job


NOT_PARKED = {
    "it has not made a step": starting,
    "it is restartable": restartable,
    "it is on two nodes": on_two_nodes,
}


@pytest.mark.parametrize("case", NOT_PARKED.values(), ids=NOT_PARKED.keys())
def test_other_jobs_retire(case: object) -> None:
    story = Story(2, 2)
    job = case(story)  # type: ignore[operator] # one of the above
    story.happen(r.JobSuspended(job, "ada"))
    assert story.job(job).stop == "retire"


def test_a_job_retires_where_its_node_is_drained() -> None:
    story = Story(2)
    job = story.submit()
    story.train(job)
    story.happen(r.NodeDrained("a", "ada"))
    assert story.job(job).stop == "retire"


def test_a_job_that_is_about_to_be_parked_retires_if_its_node_is_drained() -> None:
    story = Story(2)
    job = story.submit()
    story.train(job)
    story.happen(r.JobSuspended(job, "ada"))
    assert story.pool.orders("a").leads[0].stop == "park"
    assert "a" in story.happen(r.NodeDrained("a", "ada")).instruct
    assert story.pool.orders("a").leads[0].stop == "retire"
    story.happen(r.RunEnded(job, 1, "retired", 7, parked=(0, 1)))  # it had been parked already
    assert (story.job(job).parked, story.pool.orders("a").parked) == ((), ())


def test_a_job_that_can_not_be_saved_says_so_while_it_is_to_be_parked() -> None:
    story = Story(2)
    job = story.submit()
    story.train(job)
    story.happen(r.JobSuspended(job, "ada"))
    trouble = r.Trouble("it can't be saved", "the disk is full", "free space")
    story.happen(r.RunUnsaved(job, 1, 7, trouble))
    assert "keeps training until it can" in story.job(job).unsaved_sentence
    story.report()  # its workers are parked
    assert "stays in memory until it can" in story.job(job).unsaved_sentence


def test_a_run_is_called_back_while_it_is_being_saved() -> None:
    story = Story(1)
    job = story.submit(1, 1)
    story.train(job)
    story.happen(r.RunChanged(job, 1, 1, "started", 0, (0,), 1, 0.1, 0.1))
    story.happen(r.JobSuspended(job, "ada"))
    story.report()  # its workers are parked
    assert (story.job(job).phase, story.job(job).granted) == ("stopping", ())
    story.happen(r.JobResumed(job, "ada"))
    state = story.job(job)
    assert (state.phase, state.granted, state.stop, state.attempt) == ("resizing", (0,), "", 1)
    (order,) = story.pool.orders("a").leads
    assert (order.stop, [seat.slot for seat in order.seats]) == ("", [0])
    told = (job, 1, state.change + 1, "resumed", 1, (0,), 7, 0.1, 0.1)
    story.happen(r.RunChanged(*told))  # type: ignore[arg-type] # a kind
    assert (story.job(job).phase, story.job(job).resizes) == ("running", 0)


def test_a_run_that_ended_before_it_heard_that_it_is_called_back_is_started_again() -> None:
    story = Story(1)
    job = story.submit(1, 1)
    story.train(job)
    story.happen(r.RunChanged(job, 1, 1, "started", 0, (0,), 1, 0.1, 0.1))
    story.happen(r.JobSuspended(job, "ada"))
    story.report()
    story.happen(r.JobResumed(job, "ada"))
    story.happen(r.RunEnded(job, 1, "retired", 7, parked=(0,), park_s=0.2))
    story.report()
    state = story.job(job)
    assert (state.phase, state.granted, state.attempt) == ("starting", (0,), 2)


def test_a_slot_is_free_as_soon_as_its_workers_are_parked() -> None:
    story = Story(1)
    job = story.submit(1, 1)
    story.train(job)
    other = story.submit(1, 1)
    story.happen(r.JobSuspended(job, "ada"))
    assert not story.job(other).granted
    version, run = story.pool.nodes["a"].version, r.RunId(job, 1)
    story.happen(r.NodeReported("a", story.pool.nodes["a"].boot, version, {0: run}))
    assert not story.job(other).granted, "a process is there"
    story.report()
    assert story.job(other).granted == (0,)
    assert (story.job(job).granted, story.job(job).phase) == ((), "stopping"), "it is being saved"
    held_s = story.job(job).executed_by(1e9)
    story.happen(r.RunEnded(job, 1, "retired", 7, parked=(0,)))
    assert story.job(job).phase == "suspended"
    assert story.job(job).executed_by(1e9) == held_s, "it has not held it any longer"


ENDS_OF_PARKING = {
    "cancelled": [r.JobCancelled(1, "ada")],
    "drained": [r.NodeDrained("a", "ada")],
    "lost": [r.NodeLost("a", "1", "its lease has run out")],
    "restarted": [r.NodeJoined("a", "2", "host", (r.Device(0, "cpu"), r.Device(1, "cpu")))],
    "left": [r.NodeLost("a", "1", "gone"), r.NodeForgotten("a", "ada")],
}


@pytest.mark.parametrize("events", ENDS_OF_PARKING.values(), ids=ENDS_OF_PARKING.keys())
def test_parking_ends_with_the_job_or_the_node(events: list[r.Event]) -> None:
    story, job = parked_story(2, 2)
    before = story.pool.nodes["a"].version
    for event in events:
        story.happen(event)
    assert (story.job(job).parked, story.job(job).parked_bytes) == ((), 0)
    if "a" in story.pool.nodes:
        assert story.pool.nodes["a"].version > before, "the agent hears of it"
        assert story.pool.orders("a").parked == ()


def test_a_node_that_no_longer_has_them_says_so() -> None:
    story, job = parked_story()
    version = story.pool.nodes["a"].version
    assert story.happen(report(story, "a", job)).records == ()
    assert story.happen(report(story, "a", version=version - 1)).records == ()  # of older orders
    untold = replace(report(story, "a"), parked=None)
    assert story.happen(untold).records == ()  # an older agent
    ended = story.happen(report(story, "a"))
    assert ended.records == (r.ParkingEnded(job, "node a no longer has them"),)
    assert ended.instruct == {"a"}
    assert (story.job(job).parked, story.pool.orders("a").parked) == ((), ())
    want = f"job {job} has no parked workers any more: node a no longer has them"
    assert sentence_of(ended.records[0]) == want
    assert story.happen(report(story, "a")).records == ()  # a repeat


def test_a_job_resumes_where_it_is_parked_although_another_node_fits_it_better() -> None:
    story = Story(4, 1)
    filler = story.submit(1, 1)
    assert story.pool.nodes_of(story.job(filler).granted) == ("b",), "which one GPU fills"
    story.train(filler)
    job = story.submit(1, 1)
    story.train(job)
    story.happen(r.JobSuspended(job, "ada"))
    park(story, job)
    story.happen(r.JobCancelled(filler, "ada"))
    story.catch_up()
    assert story.pool.orders("a").parked == (job,)
    story.happen(r.JobResumed(job, "ada"))
    state = story.job(job)
    assert (state.attempt, state.lead, state.parked) == (2, "a", ())
    orders = story.pool.orders("a")
    assert (orders.parked, [lead.job for lead in orders.leads]) == ((), [job])


def test_a_job_gets_the_gpus_where_it_is_parked_and_others_take_them_last() -> None:
    story = Story(4)
    first, second = story.submit(1, 1), story.submit(1, 1)
    story.train(first, second)
    home = story.job(second).granted
    story.happen(r.JobSuspended(second, "ada"))
    park(story, second)
    other = story.submit(1, 1)
    assert not {*home} & {*story.job(other).granted}
    story.happen(r.JobResumed(second, "ada"))
    assert story.job(second).granted == home
    table = snapshot_of_pool(story.pool, story.now_s, 1).snapshot.jobs
    assert table.preferred_node.tolist() == [0, 0, 0]


def test_a_start_elsewhere_ends_the_parking() -> None:
    story, job = parked_story(2, 2)
    filler = story.submit(2, 2, tier="opaque")
    assert story.pool.nodes_of(story.job(filler).granted) == ("a",)
    version = story.pool.nodes["a"].version
    outcome = story.happen(r.JobResumed(job, "ada"))
    assert story.job(job).lead == "b"
    assert (story.job(job).parked, story.pool.orders("a").parked) == ((), ())
    assert "a" in outcome.instruct
    assert story.pool.nodes["a"].version > version


def test_a_switch_costs_what_was_measured_out_of_parked_workers() -> None:
    story, job = parked_story()
    assert story.job(job).switch_s is None, "it was never resumed"
    story.happen(r.JobResumed(job, "ada"))
    resume(story, job)
    assert story.job(job).switch_s == pytest.approx(0.5)
    told = (job, 2, 2, "resized", 2, (0,), 9, 0.1, 5.0)
    story.happen(r.RunChanged(*told))  # type: ignore[arg-type] # a kind
    assert story.job(job).switch_s == pytest.approx(0.5), "a resize is no switch"
    story.happen(r.JobSuspended(job, "ada"))
    park(story, job)
    assert story.job(job).switch_s == pytest.approx(0.5)
    story.happen(report(story, "a"))
    assert story.job(job).switch_s is None, "the next start is from a checkpoint"
    story.happen(r.JobResumed(job, "ada"))
    assert story.job(job).switch_s is None
    told = (job, 3, 1, "started", 0, (0,), 9, 0.0, 20.0)
    story.happen(r.RunChanged(*told))  # type: ignore[arg-type] # a kind
    assert story.job(job).switch_s is None


def test_a_job_that_retired_without_parking_tells_no_cost() -> None:
    story, job = parked_story()
    story.happen(r.JobResumed(job, "ada"))
    resume(story, job)
    story.happen(r.JobSuspended(job, "ada"))
    story.happen(r.RunEnded(job, 2, "retired", 9))
    assert (story.job(job).parked, story.job(job).switch_s) == ((), None)


def test_what_one_job_costs_is_expected_of_others_that_can_be_parked() -> None:
    story, job = parked_story(2, most=1)
    story.happen(r.JobResumed(job, "ada"))
    resume(story, job)
    other = story.submit(1, 1)
    costs_s = snapshot_of_pool(story.pool, story.now_s, 1).snapshot.jobs.switch_s.tolist()
    assert costs_s == [pytest.approx(0.5), pytest.approx(float("nan"), nan_ok=True)]
    story.train(other)
    costs_s = snapshot_of_pool(story.pool, story.now_s, 1).snapshot.jobs.switch_s.tolist()
    assert costs_s == [pytest.approx(0.5)] * 2


def test_jobs_that_are_parked_and_resumed_take_short_turns() -> None:
    story = Story(1)
    first, second = story.submit(1, 1), story.submit(1, 1)
    story.train(first)
    assert story.pool.wake_at_s is not None
    for turn in range(4):  # of a quarter of an hour each, as long as costs are not known
        runs, waits = (first, second) if turn % 2 == 0 else (second, first)
        assert story.pool.wake_at_s is not None
        story.now_s = max(story.now_s, story.pool.wake_at_s)
        story.happen(r.Woke())
        park(story, runs)
        if story.job(waits).attempt == 1:
            story.train(waits)
        else:
            resume(story, waits)
    assert story.job(first).switch_s == pytest.approx(0.5)
    wake_at_s = story.pool.wake_at_s
    assert wake_at_s is not None
    assert 20.0 < wake_at_s - story.now_s <= 25.0, "0.5 s are 2 % of 25 s"


def test_users_read_where_workers_are_parked() -> None:
    story, job = parked_story()
    want = "its workers are parked on node a: 4.0 GiB in host memory"
    assert explain(story.pool, story.pool.jobs[job], (), story.now_s).parked_sentence == want
    story.happen(r.JobResumed(job, "ada"))
    assert explain(story.pool, story.pool.jobs[job], (), story.now_s).parked_sentence == ""
    resume(story, job, 0.34)
    story.happen(r.JobSuspended(job, "ada"))
    park(story, job)
    want += "; resuming there takes about 0.3 s"
    assert explain(story.pool, story.pool.jobs[job], (), story.now_s).parked_sentence == want
    ends = [text for _, _, record in story.journal if "parked" in (text := sentence_of(record))]
    assert ends[0] == (
        f"job {job} saved its state and stopped at step 7; its workers are parked "
        "(4.0 GiB in host memory)"
    )


def test_the_journal_folds_to_the_same_parked_jobs() -> None:
    story, job = parked_story(2, 2)
    folded = Pool()
    for _, at_s, record in story.journal:
        folded.apply(record, at_s)
    want, found = story.job(job), folded.jobs[job]
    assert (found.parked, found.parked_bytes) == (want.parked, want.parked_bytes) == ((0, 1), GIB4)
    assert (found.park_s, found.resume_s, found.stop) == (want.park_s, want.resume_s, want.stop)
    assert folded.orders("a") == story.pool.orders("a")

"""Turns: what nodes tell of them, who is charged for the time, and what users are told."""

from dataclasses import replace

import msgspec
import pytest

from coddl.core.pool import records as r
from coddl.core.pool.explain import explain, sentence
from coddl.core.pool.slot_sharing import lacks_turn
from coddl.core.pool.snapshot import snapshot_of_pool
from coddl.core.pool.state import Pool
from coddl.core.pool.turns import listed, turn_s_of
from tests.core.pool.crowd import crowd, pool_of, users, wake
from tests.core.pool.story import Story

# What nodes report.


def test_a_slot_is_freed_for_each_job_by_itself() -> None:
    story = pool_of(1)
    first, second, third = crowd(story, 3)
    story.happen(r.JobCancelled(second, "ada"))
    story.happen(r.JobCancelled(third, "ada"))
    for job in (second, third):
        story.happen(r.RunEnded(job, 1, "cancelled", 5))
    node = story.pool.nodes["a"]

    def holding(*runs: r.RunId) -> list[int]:
        told = r.NodeReported("a", "1", node.version, dict.fromkeys([0], *runs) if runs else {})
        return [each.job for each in story.happen(told).records if isinstance(each, r.SlotFreed)]

    assert holding(r.RunId(second, 1)) == [], "the third may be behind it"
    assert holding(r.RunId(first, 1)) == [second, third], "those that leave are named first"
    assert [*story.pool.slots[0].owners] == [first]


def test_a_guest_that_never_starts_leaves_the_slot_to_its_host() -> None:
    story = pool_of(1)
    first, second = *crowd(story, 1), story.submit(1, 1, start_within_s=100.0)
    story.now_s += 200.0
    story.happen(r.Woke())
    assert story.job(second).phase == "starting", "it has had its turn for half of the time only"
    story.now_s += 300.0
    story.happen(r.Woke())
    assert story.job(second).phase == "preempted"
    assert not story.pool.slots[0].is_stuck
    assert users(story) == {0: (first,)}
    assert wake(story) == {}


def test_how_turns_go_is_told_and_forgotten() -> None:
    story = pool_of(1)
    first, second = crowd(story, 2)
    node = story.pool.nodes["a"]
    told = {0: r.SlotTurns(second, {first: 0.6, second: 1.4, 77: 0.1}), 5: r.SlotTurns(1)}
    report = r.NodeReported("a", "1", node.version, story.holding("a"), turns=told)
    assert story.happen(report).records == ()
    assert story.pool.slots[0].turns == r.SlotTurns(second, {first: 0.6, second: 1.0})
    story.happen(replace(report, turns={0: r.SlotTurns(77)}))
    assert story.pool.slots[0].turns == r.SlotTurns(None, {})
    story.pool.forget_soft()
    assert story.pool.slots[0].turns is None


# Accounts, and what is read back.


def test_jobs_that_take_turns_share_the_time() -> None:
    story = pool_of(1)
    (first,) = crowd(story, 1)
    before_s = story.job(first).attained_by(story.now_s)
    second = story.submit(1, 1)
    begin_s = story.now_s
    story.train(second)
    story.now_s = begin_s + 40.0
    assert story.job(first).attained_by(story.now_s) == before_s + 1.0 + 20.0
    assert story.job(second).executed_by(story.now_s) == 20.0
    story.happen(r.JobCancelled(second, "ada"))
    story.happen(r.RunEnded(second, 1, "cancelled", 5))
    told_s = story.job(first).attained_by(story.now_s)
    assert story.job(first).attained_by(story.now_s + 10.0) == told_s + 10.0


def test_a_guest_has_no_share_in_the_eyes_of_a_policy() -> None:
    story = pool_of(1)
    crowd(story, 2)
    seen = snapshot_of_pool(story.pool, story.now_s, 1)
    assert seen.snapshot.jobs.gpus.tolist() == [1, 0]
    assert seen.snapshot.jobs.in_turns.tolist() == [0, 1]
    assert seen.held == ((0,), ())


def test_the_journal_gives_the_same_pool() -> None:
    story = pool_of(2)
    crowd(story, 5)
    story.happen(r.RunEnded(1, 1, "succeeded", 100))
    story.catch_up()
    again = Pool()
    for _, at_s, record in story.journal:
        read = msgspec.json.decode(msgspec.json.encode(record), type=type(record))
        again.apply(read, at_s)
    for pool in (again, story.pool):
        pool.forget_soft()
    assert again.slots == story.pool.slots
    assert {n: again.orders(n) for n in again.nodes} == {
        n: story.pool.orders(n) for n in story.pool.nodes
    }
    held = [(job.granted, job.turn_s, job.sharers) for job in story.pool.jobs.values()]
    assert [(job.granted, job.turn_s, job.sharers) for job in again.jobs.values()] == held


# What users are told.


def test_a_job_says_with_whom_it_takes_turns() -> None:
    story = pool_of(1)
    first, second, third = crowd(story, 3)

    def said(job: int) -> str:
        return explain(story.pool, story.pool.jobs[job], [], story.now_s).sentence

    others = 'job 1 "job-1" and job 3 "job-3"'
    where = "on 1 CPU slot of node a: there are more jobs than CPU slots"
    assert said(second) == f"takes turns of 60 s with {others} {where}"
    turns = {0: r.SlotTurns(third, {first: 0.33, second: 0.34, third: 0.33})}
    node = story.pool.nodes["a"]
    story.happen(r.NodeReported("a", "1", node.version, story.holding("a"), turns=turns))
    assert said(second).endswith(
        "; had 34% of the slot's time since it shares it; job 3 has the turn now"
    )
    assert said(third).endswith(
        "; had 33% of the slot's time since it shares it; it has the turn now"
    )
    assert said(first).startswith('takes turns of 60 s with job 2 "job-2" and job 3 "job-3"')
    for job in (second, third):
        story.happen(r.RunEnded(job, 1, "succeeded", 100))
    story.report()
    assert said(first).startswith("1 of 1 CPU slot (")


def reported(story: Story, has_turn: int | None, leaver: int | None = None) -> None:
    """Let the node tell which job has the turn, and which one is to leave and has not yet."""
    node, holding = story.pool.nodes["a"], story.holding("a")
    if leaver is not None:
        holding = {0: r.RunId(leaver, 1)}
    turns = {0: r.SlotTurns(has_turn)}
    story.happen(r.NodeReported("a", "1", node.version, holding, turns=turns))


def listed_reason(story: Story, job: int) -> str:
    """Give what a list of jobs says of one."""
    return sentence(story.pool, story.job(job), story.now_s, is_brief=True)


def test_a_list_of_jobs_names_at_most_one_other() -> None:
    story = pool_of(1)
    first, second = crowd(story, 2)
    reported(story, first)
    want = f'takes turns of 60 s with job {second} "job-2"; it has the turn now'
    assert listed_reason(story, first) == want
    crowd(story, 3)
    reported(story, first)
    want = f"takes turns of 60 s with 4 other jobs; job {first} has the turn now"
    assert listed_reason(story, second) == want


def test_a_job_that_starts_on_a_shared_slot_says_that_it_waits_for_its_turn() -> None:
    story = pool_of(1)
    first, second = *crowd(story, 1), story.submit(1, 1)
    assert not lacks_turn(story.pool, story.job(second)), "nothing is known of turns yet"
    reported(story, first)
    assert story.job(second).phase == "starting"
    assert lacks_turn(story.pool, story.job(second))
    assert listed_reason(story, second).startswith(
        f"waits for its turn; job {first} has it; takes turns of 60 s with job {first}"
    )
    assert explain(story.pool, story.pool.jobs[second], [], story.now_s).sentence.startswith(
        f"waits for its turn; job {first} has it; takes turns"
    )
    reported(story, None)
    assert listed_reason(story, second).startswith("waits for its turn; takes turns")
    reported(story, second)
    assert listed_reason(story, second).endswith("; it has the turn now")
    assert not lacks_turn(story.pool, story.job(second))


def test_a_job_that_is_to_leave_says_that_it_waits_for_its_turn_to_save_its_state() -> None:
    story = pool_of(1)
    first, second = crowd(story, 2)
    reported(story, first)
    story.happen(r.JobSuspended(second, "ada"))
    want = "suspended by ada; waits for its turn to save its state"
    assert listed_reason(story, second) == f"{want}; job {first} has the turn"
    reported(story, None, leaver=second)
    assert listed_reason(story, second) == want
    reported(story, second, leaver=second)
    assert listed_reason(story, second) == "suspended by ada"


def test_the_wait_for_a_turn_is_no_part_of_what_resuming_costs() -> None:
    story = pool_of(1)
    first, second = crowd(story, 2)

    def resumed_after(seconds: float) -> float | None:
        job = story.job(second)
        told = (second, job.attempt, 1, "resumed", 0, job.granted, 7, 0.0, seconds)
        story.happen(r.RunChanged(*told))  # type: ignore[arg-type] # a kind
        story.happen(r.RunStepped(second, job.attempt, 8))
        return job.resume_s

    def suspended_and_resumed() -> None:
        job = story.job(second)
        story.happen(r.JobSuspended(second, "ada"))
        ended = r.RunEnded(second, job.attempt, "retired", 7, parked=job.granted, park_s=0.2)
        story.happen(ended)
        story.report()
        story.happen(r.JobResumed(second, "ada"))

    suspended_and_resumed()
    assert resumed_after(50.0) is None, "the first job has had its turn meanwhile"
    suspended_and_resumed()
    story.happen(r.RunEnded(first, 1, "succeeded", 100))
    story.report()
    assert story.job(second).sharers == 1
    assert resumed_after(50.0) is None, "they shared the slot while it was to resume"
    suspended_and_resumed()
    assert resumed_after(0.3) == 0.3
    assert story.job(second).last_switch_s == pytest.approx(0.5)


# Small parts.


@pytest.mark.parametrize(
    ("says", "turn_s"),
    [(60.0, 60.0), (5, 5.0), (0.0, 0.0), (-1.0, 0.0), (float("nan"), 0.0), ("60", 0.0)],
)
def test_what_a_policy_may_say_of_its_turns(says: object, turn_s: float) -> None:
    class Says:
        pass

    Says.turn_s = says  # type: ignore[attr-defined] # as a plug-in might
    assert turn_s_of(Says()) == turn_s
    assert turn_s_of(object()) == 0.0


def test_names_in_a_row() -> None:
    rows = [["a"], ["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"]]
    assert [listed(row) for row in rows] == [
        "a",
        "a and b",
        "a, b and c",
        "a and 3 other jobs",
    ]

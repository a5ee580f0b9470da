"""The control plane, story by story: events in, records and orders out."""

import pytest

from coddl.core.errors import UserError
from coddl.core.lifecycle import TRANSITIONS, IllegalTransition
from coddl.core.pool import records as r
from coddl.core.pool.errors import Conflict, Infeasible, NotFound
from coddl.core.pool.explain import explain, sentence_of
from coddl.core.pool.preview import preview
from coddl.core.pool.snapshot import snapshot_of_pool
from coddl.core.pool.spec import JobSpec, Launch
from tests.core.pool.story import Story


def test_a_job_starts_small_and_grows_once_it_was_measured() -> None:
    story = Story(4)
    job = story.submit(1, 4)
    assert (story.job(job).phase, story.shares()) == ("starting", {job: 1})
    story.happen(r.RunPrepared(job, 1, None, 100, workers_max=2))
    story.happen(r.RunStepped(job, 1, 1))
    assert (story.job(job).phase, story.shares()) == ("running", {job: 1})
    story.happen(r.RunProgressed(job, 1, 2, 1, 0.5, 1))  # one iteration says little
    assert story.shares() == {job: 1}
    story.happen(r.RunProgressed(job, 1, 4, 1, 0.5, 3))
    assert story.shares() == {job: 2}, "a batch that two can share has work for two"
    assert story.job(job).phase == "resizing"


def test_a_script_that_never_prepares_runs_and_keeps_its_size() -> None:
    story = Story(4)
    job = story.submit(1, 4)
    story.happen(r.RunStepped(job, 1, 0))
    assert story.job(job).phase == "running"
    story.now_s += 100.0
    story.happen(r.Woke())
    story.submit(1, 1)
    assert story.shares()[job] == 1
    story.happen(r.RunPrepared(job, 1, 8, 100))
    story.happen(r.RunStepped(job, 1, 1))
    story.happen(r.RunProgressed(job, 1, 4, 1, 0.5, 3))
    assert story.shares()[job] == 3


def test_a_size_above_what_a_later_run_can_use_is_no_obstacle() -> None:
    story = Story(4)
    job = story.submit(1, 4)
    story.train(job)
    story.happen(r.RunProgressed(job, 1, 9, 4, 0.2, 5))
    story.happen(r.RunEnded(job, 1, "lost", 9))
    story.report()
    story.now_s = story.job(job).rest_until_s
    story.happen(r.Woke())
    story.happen(r.RunPrepared(job, 2, 2, 101))  # its script cuts its batch otherwise now
    story.happen(r.RunStepped(job, 2, 10))
    assert len(story.job(job).target) <= 2


def test_slow_steps_are_not_waited_for() -> None:
    story = Story(4)
    job = story.submit(1, 4)
    story.happen(r.RunPrepared(job, 1, 8, 100))
    wake_at_s = story.happen(r.RunStepped(job, 1, 1)).wake_at_s
    assert wake_at_s == story.now_s + 10.0
    story.now_s = wake_at_s
    story.happen(r.Woke())
    assert story.shares() == {job: 4}


def test_a_device_changes_hands_only_when_it_was_seen_to_be_empty() -> None:
    story = Story(4)
    first = story.submit(1, 4)
    story.train(first)
    second = story.submit(1, 4)
    slot = story.job(second).target[0]
    assert story.job(second).granted == ()
    assert [*story.pool.slots[slot].owners] == [first]
    assert "reserved" in explain(story.pool, story.pool.jobs[second], (), story.now_s).sentence
    node = story.pool.nodes["a"]
    still_there = {s: r.RunId(first, 1) for s in node.slots}
    story.happen(r.NodeReported("a", "1", node.version, still_there))
    assert story.job(second).granted == ()
    story.happen(r.NodeReported("a", "1", node.version - 1, {}))  # of older orders
    assert story.job(second).granted == ()
    story.happen(r.NodeReported("a", "0", node.version, {}))  # a ghost
    assert story.job(second).granted == ()
    story.report()
    assert story.job(second).granted == (slot,)
    assert story.pool.orders("a").seats[slot] == (r.RunId(second, 1),)


def test_words_of_another_attempt_are_not_heard() -> None:
    story = Story(2)
    job = story.submit()
    assert story.happen(r.RunEnded(job, 7, "failed")).records == ()  # a ghost
    story.happen(r.RunPrepared(job, 1, 8, 10))
    assert story.happen(r.RunPrepared(job, 1, 8, 10)).records == ()  # a repeat
    story.happen(r.RunEnded(job, 1, "succeeded"))
    assert story.happen(r.RunEnded(job, 1, "failed")).records == ()  # a repeat, and a lie
    assert story.job(job).phase == "succeeded"


def test_when_the_lead_is_lost_another_takes_over_who_lives() -> None:
    story = Story(2, 2)
    job = story.submit(1, 4)
    story.train(job)
    assert story.shares() == {job: 4}
    lead = story.job(job).lead
    assert lead is not None
    outcome = story.happen(r.NodeLost(lead, "1", "its lease has run out"))
    other = "b" if lead == "a" else "a"
    state = story.job(job)
    assert (state.attempt, state.lead, len(state.granted)) == (2, other, 2)
    assert story.pool.orders(other).leads[0].adopt
    assert other in outcome.instruct
    assert all(story.pool.slots[slot].node == other for slot in state.granted)


def test_a_new_lead_adopts_workers_though_it_is_told_more_slots_at_once() -> None:
    story = Story(2, 2, 2)
    job = story.submit(1, 4)
    story.train(job)
    lead = story.job(job).lead
    assert lead is not None
    story.happen(r.NodeLost(lead, "1", "its lease has run out"))
    state = story.job(job)
    assert (state.attempt, len(state.granted)) == (2, 4), "it gets the third node's slots instead"
    assert state.lead is not None
    assert story.pool.orders(state.lead).leads[0].adopt


def test_a_lead_is_told_which_nodes_have_lost_its_workers() -> None:
    story = Story(2, 2)
    job = story.submit(1, 4)
    story.train(job)
    lead = story.job(job).lead
    assert lead is not None
    other, kept = "b" if lead == "a" else "a", 2
    assert story.pool.orders(lead).leads[0].lost == ()
    story.happen(r.JobBounded(job, kept, kept, "ada"))
    assert len(story.job(job).granted) == kept
    assert other in story.pool.nodes_of(story.job(job).serves), "it has yet to leave"
    assert lead in story.happen(r.NodeLost(other, "1", "its lease has run out")).instruct
    assert story.pool.orders(lead).leads[0].lost == (other,)
    story.join(other, 2, boot="2")
    assert story.pool.orders(lead).leads[0].lost == ()


def test_when_all_its_devices_are_lost_a_job_waits_and_says_why() -> None:
    story = Story(2)
    job = story.submit()
    story.train(job)
    story.happen(r.NodeLost("a", "1", "its lease has run out"))
    state = story.job(job)
    assert (state.phase, state.granted) == ("preempted", ())
    assert state.waiting is not None
    assert state.waiting.code == "NodeDown"
    story.join("a", 2, boot="2")
    assert story.job(job).phase == "starting"
    assert story.job(job).attempt == 2


def test_an_agent_that_was_started_anew_holds_nothing() -> None:
    story = Story(1)
    job = story.submit()
    story.train(job)
    records = story.join("a", 1, boot="2").records
    assert [type(each).__name__ for each in records[:2]] == ["NodeLost", "NodeJoined"]
    assert story.pool.nodes["a"].slots == (0,), "the device keeps its number"
    assert story.job(job).attempt == 2


def test_an_agent_that_was_only_away_keeps_everything() -> None:
    story = Story(2)
    job = story.submit()
    story.train(job)
    before = story.job(job).granted
    story.happen(r.NodeSilent("a", "1"))
    other = story.submit()
    assert story.job(other).granted == (), "nothing new where nobody hears"
    assert story.join("a", 2).instruct == {"a"}
    assert story.job(job).granted[:1] == before[:1]
    assert story.job(job).attempt == 1


def test_a_device_that_others_use_is_given_to_nobody_until_they_are_gone() -> None:
    story = Story(2)
    node = story.pool.nodes["a"]
    others = {index: f"process {index}" for index in range(2)}
    story.happen(r.NodeReported("a", "1", node.version, {}, others=others))
    job = story.submit()
    waiting = story.job(job).waiting
    assert waiting is not None
    assert (
        waiting.sentence == "needs 1 CPU slot, every CPU slot is used by processes outside the pool"
    )
    story.happen(r.NodeReported("a", "1", node.version, {}, others={0: "process 0"}))
    assert story.job(job).granted == (1,)
    story.train(job)
    assert story.job(job).granted == (1,), "it does not grow onto the other"
    story.happen(r.NodeReported("a", "1", node.version, {1: r.RunId(job, 1)}))
    assert story.job(job).granted == (1, 0)
    reported = r.NodeReported("a", "1", node.version, {1: r.RunId(job, 1)}, others={1: "late word"})
    story.happen(reported)
    story.catch_up()
    assert 1 in story.job(job).granted, "what it has it keeps"


def test_suspend_and_resume_give_up_and_take_back() -> None:
    story = Story(2)
    job = story.submit()
    story.train(job)
    story.happen(r.JobSuspended(job, "ada"))
    assert story.pool.orders("a").leads[0].stop == "park"
    assert story.job(job).granted, "its seats stay until its state is safe"
    story.happen(r.RunEnded(job, 1, "retired", 7))
    assert (story.job(job).phase, story.job(job).granted) == ("suspended", ())
    assert explain(story.pool, story.pool.jobs[job], (), 0.0).code == "Held"
    story.report()
    story.happen(r.JobResumed(job, "ada"))
    assert (story.job(job).phase, story.job(job).attempt) == ("starting", 2)


@pytest.mark.parametrize("started", [False, True])
def test_a_cancelled_job_ends_as_such(started: bool) -> None:
    story = Story(1)
    first = story.submit(1, 1)
    if not started:
        story.train(first)
    job = first if started else story.submit(1, 1)
    story.happen(r.JobCancelled(job, "ada"))
    story.catch_up()
    assert story.job(job).phase == "cancelled"
    with pytest.raises(Conflict, match="CANCELLED"):
        story.happen(r.JobCancelled(job, "ada"))


def test_a_job_that_fails_is_tried_as_often_as_it_wants() -> None:
    story = Story(1)
    job = story.submit(1, 1)
    trouble = r.Trouble("it broke", "of a bug", "mend it")
    story.happen(r.RunEnded(job, 1, "failed", 0, 3, trouble))
    state = story.job(job)
    assert (state.phase, state.exit_code, state.trouble) == ("failed", 3, trouble)


def test_a_job_that_is_lost_again_and_again_is_given_up() -> None:
    story = Story(1)
    job = story.submit(1, 1)
    for attempt in range(1, 6):
        assert story.job(job).attempt == attempt
        story.happen(r.RunEnded(job, attempt, "lost"))
        story.report()
        story.now_s = max(story.now_s, story.job(job).rest_until_s)
        story.happen(r.Woke())
    assert story.job(job).phase == "failed"


def test_runs_that_come_no_further_follow_each_other_ever_more_slowly() -> None:
    story = Story(1)
    job = story.submit(1, 1)
    rests_s = []
    for attempt in range(1, 5):
        story.happen(r.RunEnded(job, attempt, "requeue", 0, 75))
        story.report()
        state = story.job(job)
        rests_s.append(state.rest_until_s - story.now_s + 1.0)
        assert (state.phase, state.waiting and state.waiting.code) == ("preempted", "CoolDown")
        assert story.pool.wake_at_s == state.rest_until_s
        story.now_s = state.rest_until_s
        story.happen(r.Woke())
        assert story.job(job).phase == "starting"
    assert rests_s == [1.0, 2.0, 4.0, 8.0]
    story.happen(r.RunEnded(job, 5, "requeue", 9, 75))
    assert story.job(job).rest_until_s - story.now_s == 0.5, "it came further"


def test_a_precheck_runs_on_one_device_before_the_rest_is_taken() -> None:
    story = Story(4)
    job = story.submit(4, tier="restartable", precheck=("true",))
    lead = story.pool.orders("a").leads[0]
    assert (len(lead.seats), lead.precheck) == (1, True)
    story.happen(r.RunEnded(job, 1, "prechecked"))
    story.report()
    lead = story.pool.orders("a").leads[0]
    assert (len(lead.seats), lead.precheck, lead.attempt) == (4, False, 2)


def test_what_cannot_span_nodes_waits_for_one_that_has_room() -> None:
    story = Story(2, 2)
    small = [story.submit(1, 1) for _ in range(2)]
    for job in small:
        story.train(job)
    nodes = {story.pool.slots[story.job(job).granted[0]].node for job in small}
    rigid = story.submit(2, tier="opaque")
    assert len(nodes) == 1, "small jobs share a node, so that large ones find one"
    assert len(story.job(rigid).granted) == 2
    third = story.submit(2, tier="opaque")
    waiting = story.job(third).waiting
    assert waiting is not None
    assert waiting.code in ("Resources", "Topology")


def test_a_drained_node_is_left() -> None:
    story = Story(2, 2)
    job = story.submit(1, 2)
    story.train(job)
    home = story.job(job).lead
    assert home is not None
    story.happen(r.NodeDrained(home, "ops"))
    story.catch_up()
    state = story.job(job)
    assert {story.pool.slots[slot].node for slot in state.granted} == {"b" if home == "a" else "a"}
    story.train(job)
    assert story.job(job).lead != home
    assert not story.pool.orders(home).leads


def test_a_share_that_is_cut_from_outside_is_told_as_such() -> None:
    story = Story(4)
    job = story.submit(1, 4)
    story.train(job)
    assert story.shares() == {job: 4}
    story.happen(r.JobBounded(job, 2, 2, "ops"))
    story.catch_up()
    assert story.job(job).reason == ("2 of 4 CPU slots (job-1 bounds set to 2..2)")


def test_a_decision_is_named_after_what_happened_before_what_was_measured() -> None:
    story = Story(4)
    jobs = [story.submit(1, 4), story.submit(1, 4)]
    story.train(*jobs)
    story.control.take(story.told(r.RunProgressed(jobs[0], 1, 9, 2, 0.1, 9)), story.now_s)
    outcome = story.happen(r.RunEnded(jobs[0], 1, "succeeded", 9))
    (decided,) = [each for each in outcome.records if isinstance(each, r.Decided)]
    assert decided.why == "job-1 finished"


def test_another_policy_replans_at_once() -> None:
    story = Story(4)
    jobs = [story.submit(1, 4), story.submit(1, 4)]
    story.train(*jobs)
    assert sum(story.shares().values()) == 4
    outcome = story.happen(r.PolicyChosen("fifo", "ops"))
    assert [type(each).__name__ for each in outcome.records[:2]] == ["PolicyChosen", "Decided"]
    story.catch_up()
    assert story.shares() == {jobs[0]: 4, jobs[1]: 0}
    assert story.job(jobs[1]).phase == "preempted"


REFUSED = {
    "a job larger than the pool": (
        lambda s: s.submit(9, 9),
        Infeasible,
        "it needs at least 9 CPU slots and the pool has 4 on 2 nodes",
    ),
    "a rigid job larger than any node": (
        lambda s: s.submit(3, tier="opaque"),
        Infeasible,
        "it needs 3 CPU slots on one node and the largest node, a, has 2",
    ),
    "an unknown job": (
        lambda s: s.happen(r.JobSuspended(99, "")),
        NotFound,
        "no job has that number",
    ),
    "an unknown node": (
        lambda s: s.happen(r.NodeDrained("x", "")),
        NotFound,
        "the pool's nodes are: a, b",
    ),
    "an unknown policy": (
        lambda s: s.happen(r.PolicyChosen("best", "")),
        UserError,
        'there is no policy named "best"',
    ),
    "resuming what runs": (
        lambda s: s.happen(r.JobResumed(1, "")),
        Conflict,
        "it is not suspended: RUNNING",
    ),
    "suspending what would lose its work": (
        lambda s: s.happen(r.JobSuspended(s.submit(1, tier="opaque"), "")),
        Conflict,
        "it is opaque, so its progress would be lost",
    ),
    "more than can share its batch": (
        lambda s: s.happen(r.JobBounded(1, 9, 9, "")),
        Infeasible,
        "its batch of 64 samples can be shared by at most 8 GPUs (at least 8 samples each)",
    ),
    "more than a strict job has virtual nodes": (
        lambda s: s.happen(r.JobBounded(s.prepare(1, virtual_nodes=4), 5, 5, "")),
        Infeasible,
        "its batch of 64 samples is cut into 4 virtual nodes, one per GPU",
    ),
}


@pytest.mark.parametrize(("ask", "error", "because"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_is_refused_and_changes_nothing(
    ask: object, error: type[UserError], because: str
) -> None:
    story = Story(2, 2)
    story.train(story.submit(1, 2))
    with pytest.raises(error) as raised:
        ask(story)  # type: ignore[operator] # a function of the story
    assert raised.value.because == because
    assert story.control.conclude(story.now_s).records == ()


def test_a_preview_tells_what_would_happen_and_changes_nothing() -> None:
    story = Story(4)
    first = story.submit(1, 4)
    story.train(first)
    spec = story.job(first).spec
    found = preview(story.control, spec, story.now_s)
    assert (found.job.gpus, [(e.job, e.gpus_before, e.gpus) for e in found.others]) == (
        1,
        [(first, 4, 3)],
    )
    assert story.shares() == {first: 4}
    assert len(story.pool.jobs) == 1


def test_a_job_says_how_many_others_run_now_not_when_its_share_was_decided() -> None:
    story = Story(2)
    first, second = story.submit(1, 1), story.submit(1, 1)
    story.train(first, second)
    told = explain(story.pool, story.job(first), (), story.now_s).sentence
    assert told == "1 of 2 CPU slots (job-1 submitted); 1 other job runs"
    story.happen(r.RunEnded(second, 1, "succeeded", 9))
    told = explain(story.pool, story.job(first), (), story.now_s).sentence
    assert told == "1 of 2 CPU slots (job-1 submitted)"


def test_a_job_says_how_long_it_waits_in_all_though_the_reason_changes() -> None:
    story = Story(2)
    first, second = story.submit(1, 1), story.submit(1, 1)
    story.train(first, second)
    third = story.submit(2, 2)
    before = story.job(third).waiting
    story.now_s += 99.0
    story.happen(r.RunEnded(first, 1, "succeeded", 9))
    assert story.job(third).waiting != before
    assert "(waiting for 100 s" in explain(story.pool, story.job(third), (), story.now_s).sentence


def test_every_record_of_a_story_has_a_sentence() -> None:
    story = Story(2, 2)
    first, second = story.submit(1, 4), story.submit(2, 2, priority=3)
    story.train(first, second)
    story.happen(r.JobSuspended(first, "ada"))
    story.catch_up()
    told = explain(story.pool, story.pool.jobs[first], story.journal, story.now_s)
    assert len(told.story) == len(story.journal)
    assert all(line.text for line in told.story)
    assert len({sentence_of(record) for _, _, record in story.journal}) > len(story.journal) // 2


def test_an_illegal_move_tells_the_story() -> None:
    story = Story(1)
    job = story.job(story.submit(1, 1))
    job.move("running", 5.0, "it made its first step")
    job.move("succeeded", 7.0, "finished")
    with pytest.raises(IllegalTransition, match="job-1: succeeded -> running is not allowed"):
        job.move("running", 8.0, "magic")


def test_every_phase_but_the_last_ones_leads_somewhere() -> None:
    ends = {phase for phase, after in TRANSITIONS.items() if not after}
    assert ends == {"succeeded", "failed", "cancelled"}


def test_jobs_of_one_users_group_are_one_app_and_weigh_what_they_were_given() -> None:
    story, launch = Story(4), Launch(argv=("train.py",))
    for user, group in (("ann", "search"), ("ann", ""), ("ben", "search"), ("ann", "search")):
        story.hand_in(JobSpec(name="job", launch=launch, user=user, group=group, weight=2.0))
    jobs = snapshot_of_pool(story.pool, story.now_s, 1).snapshot.jobs
    assert jobs.group.tolist() == [0, -1, 1, 0]
    assert jobs.weight.tolist() == [2.0] * 4

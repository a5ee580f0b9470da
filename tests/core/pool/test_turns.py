"""Turns: which jobs share a slot, with whom, and what ends it."""

from dataclasses import replace

import pytest

from coddl.core.pool import records as r
from coddl.core.pool.explain import explain
from coddl.core.pool.turns import TURNS_MAX, turns_max
from coddl.core.scheduler import Stability
from coddl.core.waiting import Waiting
from tests.core.pool.crowd import GIB, crowd, pool_of, targets, users, wake
from tests.core.pool.story import Story

# Who takes turns.


def test_a_job_without_a_gpu_takes_turns_with_one_that_has_it() -> None:
    story = pool_of(1)
    first, second = crowd(story, 2)
    guest = story.job(second)
    assert (guest.granted, guest.target, guest.turn_s, guest.waiting) == ((0,), (0,), 60.0, None)
    assert guest.reason == (
        "takes turns of 60 s with job-1 on 1 CPU slot: more jobs than CPU slots (job-2 submitted)"
    )
    assert (story.job(first).granted, story.job(first).turn_s) == ((0,), 0.0)
    assert [*story.pool.slots[0].owners] == [first, second]
    orders = story.pool.orders("a")
    assert orders.seats == {0: (r.RunId(first, 1), r.RunId(second, 1))}
    assert orders.turns == {0: 60.0}
    assert [lead.job for lead in orders.leads] == [first, second]


def test_jobs_go_to_the_slot_with_the_fewest() -> None:
    story = pool_of(2)
    crowd(story, 6)
    assert users(story) == {0: (1, 3, 5), 1: (2, 4, 6)}


def test_no_more_than_so_many_share_a_slot() -> None:
    story = pool_of(1)
    jobs = crowd(story, TURNS_MAX + 1)
    waiting = {job for job in jobs if story.job(job).waiting is not None}
    assert len(waiting) == 1
    assert {*users(story)[0]} == {*jobs} - waiting


@pytest.mark.parametrize(("gib", "want"), [(0, 16), (2, 2), (16, 5), (24, 8), (80, 16), (141, 16)])
def test_contexts_of_jobs_that_share_a_gpu_take_a_quarter_of_it(gib: int, want: int) -> None:
    assert turns_max(r.Device(0, "gpu", memory_bytes=gib * GIB)) == want


def test_jobs_without_a_gpu_wait_with_other_policies() -> None:
    story = pool_of(1, policy="srtf")
    _, second = crowd(story, 2)
    assert (story.job(second).target, story.pool.orders("a").turns) == ((), {})


def not_elastic(story: Story) -> int:
    return story.submit(1, 1, tier="restartable")


def of_two_gpus(story: Story) -> int:
    return story.submit(2, 2)


def more_important(story: Story) -> int:
    return story.submit(1, 1, priority=-1)


def unchecked(story: Story) -> int:
    return story.submit(1, 1, precheck=("true",))


NO_GUESTS = {
    "it is not elastic": not_elastic,
    "it needs two GPUs": of_two_gpus,
    "its host is more important": more_important,
    "its precheck has not run": unchecked,
}


@pytest.mark.parametrize("case", NO_GUESTS.values(), ids=NO_GUESTS.keys())
def test_some_jobs_are_no_guests(case: object) -> None:
    story = pool_of(2)
    crowd(story, 2)
    job = case(story)  # type: ignore[operator] # one of the above
    assert not story.job(job).is_guest
    assert story.job(job).waiting is not None


def host_starts(story: Story) -> None:
    story.submit(1, 1)


def host_is_no_elastic_job(story: Story) -> None:
    story.train(story.submit(1, 1, tier="restartable"))


def host_is_less_important(story: Story) -> None:
    job = story.submit(1, 1)
    story.train(job)
    story.happen(r.JobPrioritised(job, 1, "ada"))


def host_has_two(story: Story) -> None:
    story.join("b", 1)
    story.train(story.submit(2, 2))


NO_HOSTS = {
    "it starts": host_starts,
    "it is not elastic": host_is_no_elastic_job,
    "it is more important": host_is_less_important,
    "it has two GPUs": host_has_two,
}


@pytest.mark.parametrize("case", NO_HOSTS.values(), ids=NO_HOSTS.keys())
def test_some_jobs_are_no_hosts(case: object) -> None:
    story = pool_of(1)
    case(story)  # type: ignore[operator] # one of the above
    job = story.submit(1, 1)
    assert not story.job(job).is_guest


def test_a_host_that_starts_gets_its_guests_when_it_trains() -> None:
    story = pool_of(1)
    first, second = story.submit(1, 1), story.submit(1, 1)
    until = f"until job {first} has made its first step"
    want = Waiting("Resources", f"waits {until}, to take turns with it")
    assert story.job(second).waiting == want
    story.train(first)
    assert users(story)[0] == (first, second)


def test_nodes_without_host_memory_for_it_have_no_turns() -> None:
    story = pool_of(1, parking_bytes=0)
    _, second = crowd(story, 2)
    assert story.job(second).waiting is not None


def test_the_states_of_all_that_take_turns_on_a_node_fit_into_its_memory() -> None:
    story = pool_of(2, parking_bytes=11 * GIB)
    crowd(story, 2, gradients=(GIB, GIB))  # a state is four times as large
    third = crowd(story, 1, gradients=(GIB, GIB))[0]
    assert users(story) == {0: (1, third), 1: (2,)}
    fourth = story.submit(1, 1)  # its own is not known yet, but that of the second job counts too
    assert users(story) == {0: (1, third, fourth), 1: (2,)}
    story.train(fourth, gradients=(GIB, GIB))
    assert users(story) == {0: (1, third), 1: (2,)}
    waits = story.job(fourth).waiting
    assert waits is not None
    assert waits.sentence.endswith(
        "; it cannot take turns: node a has only 11.0 GiB in host memory for the states of jobs"
    )


def test_what_parked_workers_have_used_counts_before_an_estimate() -> None:
    story = pool_of(1, parking_bytes=6 * GIB)
    first, second = crowd(story, 2, gradients=(GIB, GIB))
    story.catch_up()
    assert not story.job(second).is_guest, "8 GiB are too many"
    for job in (first, second):
        story.job(job).state_bytes = 3 * GIB
    wake(story)
    assert story.job(second).is_guest


# What stays as it is.


@pytest.mark.parametrize("cool_down_s", [0.0, 100.0])
def test_a_decision_without_news_changes_nothing(cool_down_s: float) -> None:
    story = pool_of(2, stability=Stability(cool_down_s=cool_down_s))
    crowd(story, 5)
    story.catch_up()
    before = {node: story.pool.orders(node) for node in story.pool.nodes}
    for after_s in (0.0, 1.0, 59.0, 100.0):
        assert wake(story, after_s) == {}
    assert {node: story.pool.orders(node) for node in story.pool.nodes} == before
    assert all(job.waiting is None for job in story.pool.live_jobs())


def test_no_decision_is_due_when_slices_end_and_all_others_take_turns() -> None:
    story = pool_of(1)
    crowd(story, 3)
    story.catch_up()
    wake(story)
    assert story.pool.wake_at_s is None


def test_guests_keep_the_slot_they_have() -> None:
    story = pool_of(2)
    crowd(story, 6)
    story.happen(r.RunEnded(5, 1, "succeeded", 100))
    story.catch_up()
    story.happen(r.RunEnded(3, 1, "succeeded", 100))
    story.catch_up()
    assert users(story) == {0: (1,), 1: (2, 4, 6)}


def test_a_new_job_takes_the_place_of_a_host_whose_slice_is_over() -> None:
    story = pool_of(1)
    (first,) = crowd(story, 1)
    story.now_s += 100.0
    outcome = story.happen(r.JobSubmitted(2, replace(story.job(first).spec, name="new")))
    assert targets(outcome.records)[first].slots == (0,)
    assert users(story)[0] == (2, first)
    assert (story.job(2).turn_s, story.job(first).turn_s) == (0.0, 60.0)
    assert (story.job(first).attempt, story.job(first).phase) == (1, "running"), "it goes on"
    story.train(2)
    assert wake(story) == {}


def test_a_new_job_that_is_not_elastic_has_the_gpu_to_itself() -> None:
    story = pool_of(1)
    first, second = crowd(story, 2)
    story.now_s += 100.0
    third = story.submit(1, 1, tier="restartable")
    assert story.job(third).granted == ()
    assert [story.job(job).stop for job in (first, second)] == ["park", "park"]
    story.catch_up()
    assert users(story) == {0: (third,)}
    assert story.pool.wake_at_s is not None, "the others wait for their slice"


def test_a_job_does_not_come_before_those_that_leave_are_gone() -> None:
    story = pool_of(1)
    first, second = crowd(story, 2)
    story.happen(r.JobCancelled(second, "ada"))
    story.happen(r.RunEnded(second, 1, "cancelled", 5))
    third = story.submit(1, 1)
    assert (story.job(third).target, story.job(third).granted) == ((0,), ())
    said = explain(story.pool, story.pool.jobs[third], [], story.now_s).sentence
    assert said == '1 CPU slot reserved; waiting for job 2 "job-2" to release it'
    story.report()
    assert users(story) == {0: (first, third)}


# What ends it.


def test_a_guest_whose_host_ends_has_the_slot() -> None:
    story = pool_of(1)
    first, second, third = crowd(story, 3)
    version = story.pool.nodes["a"].version
    story.happen(r.RunEnded(first, 1, "succeeded", 100))
    story.report()
    assert users(story)[0] == (second, third)
    assert (story.job(second).turn_s, story.job(third).turn_s) == (0.0, 60.0)
    assert [story.job(job).attempt for job in (second, third)] == [1, 1], "nothing is restarted"
    assert not any(story.job(job).stop for job in (second, third))
    assert story.job(second).reason.startswith("1 of 1 CPU slot (")
    assert story.pool.nodes["a"].version > version
    assert story.pool.orders("a").turns == {0: 60.0}
    story.happen(r.RunEnded(second, 1, "succeeded", 100))
    story.report()
    assert (users(story), story.pool.orders("a").turns) == ({0: (third,)}, {})


def test_a_guest_of_the_slot_goes_on_there_whatever_others_there_are() -> None:
    story = pool_of(2)
    crowd(story, 6)
    assert users(story) == {0: (1, 3, 5), 1: (2, 4, 6)}
    outcome = story.happen(r.RunEnded(2, 1, "succeeded", 100))
    changed = targets(outcome.records)
    assert {job: target.slots for job, target in changed.items()} == {4: (1,)}
    assert changed[4].reason == "1 of 2 CPU slots (job-2 finished)"
    story.catch_up()
    assert users(story) == {0: (1, 3, 5), 1: (4, 6)}
    assert all(job.attempt == 1 for job in story.pool.live_jobs()), "nothing is restarted"
    assert wake(story) == {}


def test_a_guest_that_loses_its_host_to_a_job_that_does_not_share_waits_for_its_slice() -> None:
    story = pool_of(1)
    first, second = crowd(story, 2)
    third = story.submit(1, 1, tier="restartable")
    assert story.job(third).waiting is not None
    story.happen(r.RunEnded(first, 1, "succeeded", 100))
    assert story.pool.wake_at_s == 60.0, "it waits as any other job now"
    story.catch_up()
    assert users(story) == {0: (third,)}
    story.train(third)
    story.now_s = 60.0
    story.happen(r.Woke())
    assert story.job(second).target == (0,)


def test_so_it_is_when_the_host_is_suspended_or_cancelled() -> None:
    for event in (r.JobSuspended(1, "ada"), r.JobCancelled(1, "ada")):
        story = pool_of(1)
        first, second = crowd(story, 2)
        story.happen(event)
        assert story.job(first).stop in ("park", "cancel")
        assert story.job(second).turn_s == 0.0
        story.catch_up()
        assert users(story) == {0: (second,)}
        assert story.job(second).attempt == 1


def test_a_guest_may_be_suspended_resumed_and_cancelled() -> None:
    story = pool_of(1)
    first, second = crowd(story, 2)
    story.happen(r.JobSuspended(second, "ada"))
    assert (story.job(second).stop, story.job(second).is_guest) == ("park", False)
    assert users(story) == {0: (first,)}
    story.catch_up()
    assert story.job(second).phase == "suspended"
    story.happen(r.JobResumed(second, "ada"))
    assert users(story) == {0: (first, second)}
    story.happen(r.JobCancelled(second, "ada"))
    story.catch_up()
    assert (story.job(second).phase, users(story)) == ("cancelled", {0: (first,)})


def test_a_guest_gets_a_gpu_that_becomes_free() -> None:
    story = pool_of(2)
    crowd(story, 3)
    assert users(story) == {0: (1, 3), 1: (2,)}
    story.happen(r.RunEnded(2, 1, "succeeded", 100))
    assert story.job(3).stop == "park", "its run is not resized while another is on its slot"
    story.catch_up()
    assert users(story) == {0: (1,), 1: (3,)}
    assert (story.job(3).attempt, story.job(3).turn_s) == (2, 0.0)


def test_a_node_that_joins_takes_guests() -> None:
    story = pool_of(1)
    crowd(story, 2)
    story.join("b", 1)
    story.catch_up()
    assert users(story) == {0: (1,), 1: (2,)}


def test_the_guests_of_a_lost_node_take_turns_elsewhere() -> None:
    story = pool_of(1, 1)
    crowd(story, 4)
    assert users(story) == {0: (1, 3), 1: (2, 4)}
    story.happen(r.NodeLost("b", "1", "its lease has run out"))
    assert not story.pool.slots[1].owners
    story.now_s += 100.0
    story.happen(r.Woke())
    assert {job for jobs in users(story).values() for job in jobs} == {1, 2, 3, 4}


def test_jobs_leave_a_drained_node() -> None:
    story = pool_of(1, 1)
    crowd(story, 4)
    story.happen(r.NodeDrained("b", "ada"))
    assert [story.job(job).stop for job in (2, 4)] == ["retire", "retire"]
    story.catch_up()
    assert set(users(story)) == {0}
    story.train(users(story)[0][0])  # a new host, if a slice of the old one was over
    assert {*users(story)[0]} == {1, 2, 3, 4}


def test_with_a_policy_without_turns_guests_wait() -> None:
    story = pool_of(1)
    first, second = crowd(story, 2)
    story.happen(r.PolicyChosen("fifo", "ada"))
    assert story.job(second).stop == "park"
    story.catch_up()
    assert users(story) == {0: (first,)}
    assert story.job(second).waiting is not None


def test_a_host_that_is_to_have_more_waits_until_its_guests_have_left() -> None:
    story = pool_of(2, policy="gandiva:asks=minimum")
    first, second = story.submit(1, 2), story.submit(1, 1)
    story.train(first, second)
    third = story.submit(1, 1)
    story.train(third)
    assert users(story) == {0: (first, third), 1: (second,)}
    story.happen(r.PolicyChosen("fifo", "ada"))
    host = story.job(first)
    assert (host.target, host.granted, host.stop) == ((0, 1), (0,), ""), "it trains on meanwhile"
    story.happen(r.RunEnded(second, 1, "retired", 7))
    leaving = {0: r.RunId(third, 1)}
    story.happen(r.NodeReported("a", "1", story.pool.nodes["a"].version, leaving))
    assert not story.pool.slots[1].owners
    assert (host.granted, story.job(third).stop) == ((0,), "park"), "a guest is still there"
    story.catch_up()
    assert users(story) == {0: (first,), 1: (first,)}
    assert (host.attempt, host.sharers) == (1, 1)


def test_guests_of_a_silent_node_stay() -> None:
    story = pool_of(1, 1)
    crowd(story, 4)
    story.happen(r.NodeSilent("b", "1"))
    assert users(story) == {0: (1, 3), 1: (2, 4)}
    story.happen(r.RunEnded(1, 1, "succeeded", 100))
    story.report()
    assert users(story) == {0: (3,), 1: (2, 4)}
    fifth = story.submit(1, 1)
    assert users(story) == {0: (3, fifth), 1: (2, 4)}, "it is told nothing"

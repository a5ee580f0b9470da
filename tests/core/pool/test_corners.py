"""Corners of the control plane: what comes at the wrong moment, twice, or from a ghost."""

import pytest

from coddl.core.pool import records as r
from coddl.core.pool.explain import explain
from coddl.core.pool.state import Pool
from coddl.core.snapshot import REFUSED_S
from tests.core.pool.story import Story


@pytest.mark.parametrize(
    ("wish", "phase"), [(r.JobCancelled, "cancelled"), (r.JobSuspended, "suspended")]
)
def test_a_precheck_that_passes_when_nobody_wants_the_job_any_more(
    wish: type[r.JobCancelled] | type[r.JobSuspended], phase: str
) -> None:
    story = Story(4)
    job = story.submit(4, tier="restartable", precheck=("true",))
    story.happen(wish(job, "ada"))
    story.happen(r.RunEnded(job, 1, "prechecked"))
    assert (story.job(job).phase, story.job(job).prechecked) == (phase, True)


def test_a_job_that_is_called_back_before_it_has_moved_is_running() -> None:
    story = Story(4)
    job = story.submit(1, 4)
    story.train(job)
    served = story.job(job).granted
    story.happen(r.JobBounded(job, 1, 2, "ada"))
    assert story.job(job).phase == "resizing"
    story.happen(r.JobBounded(job, 1, 4, "ada"))
    if set(story.job(job).granted) != set(served):
        story.report()
    assert set(story.job(job).granted) == set(served)
    assert story.job(job).phase == "running"


def test_a_loss_that_the_lead_saw_first_leaves_nobody_resizing() -> None:
    story = Story(2, 2)
    job = story.submit(1, 3)
    story.train(job)
    story.happen(r.JobBounded(job, 1, 4, "ada"))
    state = story.job(job)
    assert state.phase == "resizing"
    here = tuple(slot for slot in state.granted if story.pool.slots[slot].node == state.lead)
    story.happen(r.RunChanged(job, 1, state.change + 1, "regrouped", 3, here, 9, 0.1, 0.2))
    assert state.phase == "resizing"
    story.happen(r.NodeLost("b" if state.lead == "a" else "a", "1", "its lease has run out"))
    assert (state.phase, set(state.granted)) == ("running", set(here))


def test_a_script_that_has_not_prepared_is_not_stopped_by_other_bounds() -> None:
    story = Story(4)
    job = story.submit(1, 4)
    story.happen(r.RunStepped(job, 1, 0))
    story.happen(r.JobBounded(job, 2, 4, "ada"))
    assert (story.job(job).stop, story.shares()) == ("", {job: 1})
    story.happen(r.RunPrepared(job, 1, 8, 100))
    story.happen(r.RunStepped(job, 1, 1))
    assert story.shares() == {job: 2}


def test_a_device_is_promised_to_one_job_and_who_is_there_comes_first() -> None:
    story = Story(1, 1, 2)
    first, second = story.submit(1, 1), story.submit(1, 1)
    third = story.submit(1, 2)
    story.train(first, second, third)

    def drain(node: str, *, again: bool = False) -> None:
        story.happen(r.NodeUndrained(node, "ops") if again else r.NodeDrained(node, "ops"))
        meant = [slot for job in story.pool.live_jobs() for slot in job.target]
        assert len(meant) == len(set(meant)), story.pool.jobs

    homes = [story.pool.nodes_of(story.job(job).granted)[0] for job in (first, second, third)]
    for node in homes:  # nobody reports, so nobody moves: all that changes is what was promised
        drain(node)
        drain(node, again=True)
    drain(homes[2])
    drain(homes[0])
    drain(homes[0], again=True)


def test_jobs_that_wait_for_one_anothers_devices_are_untied() -> None:
    story = Story(1, 1)
    jobs = [story.submit(1, 1), story.submit(1, 1)]
    story.train(*jobs)
    slots = [story.job(job).granted for job in jobs]
    crossed = {jobs[0]: r.Target(slots[1], "a swap"), jobs[1]: r.Target(slots[0], "a swap")}
    story.pool.apply(r.Decided("fifo", 1, 2, "a test", crossed, {}, ()), story.now_s)
    story.control.conclude(story.now_s)
    for _ in range(3):
        story.catch_up()
    assert all(story.job(job).granted for job in jobs)
    assert not story.pool.unsettled


def test_what_is_reserved_on_a_node_that_falls_silent_is_had_elsewhere() -> None:
    story = Story(1, 1)
    jobs = [story.submit(1, 1), story.submit(1, 1)]
    story.train(*jobs)
    story.happen(r.RunEnded(jobs[0], 1, "succeeded", 9))
    third = story.submit(1, 1)
    (slot,) = story.job(third).target
    node = story.pool.slots[slot].node
    story.happen(r.NodeSilent(node, "1"))
    assert story.job(third).target == ()
    story.happen(r.RunEnded(jobs[1], 1, "succeeded", 9))
    story.report()
    assert story.pool.nodes_of(story.job(third).granted) == ("b" if node == "a" else "a",)


def test_a_run_that_had_succeeded_is_not_made_again_though_it_was_taken_for_lost() -> None:
    story = Story(1, 1)
    job = story.submit(1, tier="opaque")
    lead = story.job(job).lead
    assert lead is not None
    story.happen(r.NodeDrained("a" if lead == "b" else "b", "ops"))
    story.happen(r.NodeLost(lead, "1", "its lease has run out"))
    assert story.job(job).phase == "preempted"
    story.happen(r.RunEnded(job, 1, "failed"))  # what we stopped may well say so
    assert story.job(job).phase == "preempted"
    story.happen(r.RunEnded(job, 1, "succeeded"))
    assert story.job(job).phase == "succeeded"


def test_a_pool_read_back_knows_the_newest_speeds() -> None:
    story = Story(1)
    job = story.submit(1, 1)
    story.train(job)
    story.happen(r.RunProgressed(job, 1, 40, 1, 3.0, 9))
    again = Pool()
    for _, at_s, record in story.journal:
        again.apply(record, at_s)
    assert (again.jobs[job].step_s[1].step_s, again.jobs[job].step) == (3.0, 40)


def test_sizes_that_no_pool_has_cost_nothing() -> None:
    story = Story(2)
    job = story.submit(1, 10**9)
    story.train(job)
    story.happen(r.RunProgressed(job, 1, 9, 10**9, 1.0, 9))  # nonsense
    assert story.shares() == {job: 2}
    assert len(explain(story.pool, story.pool.jobs[job], (), story.now_s).speeds) <= 3


def test_what_changes_a_little_with_every_step_is_not_told_again() -> None:
    story = Story(2)
    jobs = [story.submit(1, 1), story.submit(1, 1)]
    story.train(*jobs)
    story.happen(r.RunProgressed(jobs[0], 1, 6, 1, 1.01, 9))
    outcome = story.happen(r.JobPrioritised(jobs[1], 1, "ada"))
    (decided,) = [each for each in outcome.records if isinstance(each, r.Decided)]
    assert decided.rows == ()


def test_since_when_a_job_has_no_place_is_in_the_journal_and_a_hold_ends_it() -> None:
    # On each of two nodes one device of three is left: the third job waits for two on one node.
    story = Story(3, 3)
    story.happen(r.PolicyChosen("fifo", "ada", "philly"))
    story.submit(2, tier="restartable")
    story.submit(2, tier="restartable")
    job = story.submit(2, tier="restartable")
    asked_s = story.now_s
    story.submit(3, tier="restartable")
    assert story.job(job).memory[REFUSED_S] == asked_s + 1.0
    copy = Pool()
    for _, now_s, record in story.journal:
        copy.apply(record, now_s)
    assert copy.jobs[job].memory == story.job(job).memory
    story.happen(r.JobSuspended(job, "ada"))
    story.happen(r.JobResumed(job, "ada"))
    assert story.job(job).memory[REFUSED_S] == story.now_s + 1.0
    story.join("c", 2)
    assert story.job(job).memory[REFUSED_S] == 0.0


def test_a_cancelled_job_that_ends_with_its_node_can_be_forgotten() -> None:
    story = Story(1, 1)
    job = story.submit(1, 1)
    story.train(job)
    (node,) = story.pool.nodes_of(story.job(job).granted)
    story.happen(r.JobCancelled(job, "ops"))
    story.happen(r.NodeLost(node, "1", "its lease is over"))
    assert story.job(job).phase == "cancelled"
    story.happen(r.JobsForgotten((job,)))
    assert job not in story.pool.jobs
    assert not story.pool.unsettled

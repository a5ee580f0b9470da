"""Decisions as plans: what changes, why, and what must never happen."""

import numpy as np
import pytest

from coddl.core.allocation import Allocation, Reasons, because
from coddl.core.cluster import Cluster, Node
from coddl.core.invariants import InvalidAllocation
from coddl.core.parameter_server.tasks import ServedAllocation
from coddl.core.registry import policy_from
from coddl.core.scheduler import Scheduler, Stability
from coddl.core.snapshot import Snapshot
from coddl.testing import job, snapshot_of


def decide(policy: str, snapshot: Snapshot) -> list[tuple[int, str, int, int]]:
    return [change[:4] for change in Scheduler(policy_from(policy)).decide(snapshot).changes]


def test_a_plan_holds_only_what_changes() -> None:
    rows = [job("a", holds=2, left=5), job("b", holds=1, left=9), job("c", 1, 1)]
    assert decide("afs-l", snapshot_of(4, rows)) == [(2, "start", 0, 1)]


def test_a_job_that_ran_before_resumes() -> None:
    rows = [job("a", 1, 1, started_s=3.0)]
    assert decide("afs-l", snapshot_of(1, rows, now_s=9.0)) == [(0, "resume", 0, 1)]


def test_a_suspended_job_is_told_why() -> None:
    rows = [job("a", holds=1, left=50), job("b", left=5)]
    plan = Scheduler(policy_from("srtf")).decide(snapshot_of(4, rows))
    assert [change.action for change in plan.changes] == ["suspend", "start"]
    why = "no GPU is free; shorter jobs hold the GPUs"
    assert plan.changes[0].reason == f"Resources: {why}"
    assert plan.waiting(0) == ("Resources", why)
    assert plan.waiting(1) is None


def test_a_job_that_waits_is_told_the_arithmetic() -> None:
    rows = [job("a", requested=3, holds=3), job("b", requested=4), job("c", requested=1)]
    plan = Scheduler(policy_from("fifo")).decide(snapshot_of(4, rows))
    assert plan.waiting(1) == (
        "Resources",
        "only 1 GPU free; jobs submitted earlier are ahead of it",
    )
    assert plan.waiting(2) == ("Priority", "jobs submitted earlier are ahead of it")
    plan = Scheduler(policy_from("fifo")).decide(snapshot_of(2, rows[1:2]))
    assert plan.waiting(0) == ("Infeasible", "it needs more GPUs than the 2 in the cluster")


def test_what_may_not_be_preempted_keeps_what_it_holds() -> None:
    rows = [job("a", left=1), job("b", holds=3, left=1e9, pinned=True), job("c", left=2)]
    plan = Scheduler(policy_from("srtf")).decide(snapshot_of(4, rows))
    assert plan.shares.tolist() == [0, 3, 0]
    plan = Scheduler(policy_from("afs-l")).decide(snapshot_of(4, rows))
    assert plan.shares.tolist() == [1, 3, 0]
    assert plan.waiting(2) is not None


def test_a_share_that_has_just_changed_stays_for_a_while() -> None:
    rows = [job("a", holds=4, changed_s=95.0), job("b")]
    scheduler = Scheduler(policy_from("max-min"), Stability(cool_down_s=10.0))
    plan = scheduler.decide(snapshot_of(4, rows, now_s=100.0))
    assert plan.shares.tolist() == [4, 0]
    assert plan.allocation.wake_at_s == 105.0
    who = "4 GPUs were reassigned less than 10 s ago (cool-down)"
    assert plan.waiting(1) == ("CoolDown", who)
    assert scheduler.decide(snapshot_of(4, rows, now_s=105.0)).shares.tolist() == [2, 2]


def test_what_was_freed_for_a_job_is_not_given_to_another() -> None:
    """b waits for a GPU that a is leaving when c comes; c must not take it on its way."""
    rows = [job("a", holds=2), job("b", holds=2, changed_s=99.0, settled=False), job("c", left=1)]
    for reserve_s, want in ((0.0, [2, 1, 1]), (10.0, [1, 2, 1])):
        scheduler = Scheduler(policy_from("max-min"), Stability(reserve_s=reserve_s))
        assert scheduler.decide(snapshot_of(4, rows, now_s=100.0)).shares.tolist() == want
    rows = [job("b", holds=4, changed_s=99.0, settled=False), job("c", left=1)]
    free, reserved = (
        Scheduler(policy_from("srtf"), Stability(reserve_s=s)).decide(
            snapshot_of(4, rows, now_s=100.0)
        )
        for s in (0.0, 10.0)
    )
    assert free.shares.tolist() == [0, 4]
    assert reserved.shares.tolist() == [4, 0]
    assert reserved.allocation.wake_at_s == 109.0


def test_promises_are_void_when_gpus_are_lost() -> None:
    rows = [job("a", holds=3, changed_s=99.0), job("b", holds=3, changed_s=99.0)]
    plan = Scheduler(policy_from("max-min"), Stability(cool_down_s=10.0)).decide(
        snapshot_of(4, rows, now_s=100.0)
    )
    assert plan.shares.tolist() == [2, 2]


def test_a_job_that_has_just_started_runs_on_if_only_on_its_minimum() -> None:
    rows = [job("a", 2, 4, holds=4, left=50, started_s=95.0), job("b", left=5, requested=4)]
    plain = Scheduler(policy_from("srtf")).decide(snapshot_of(4, rows, now_s=100.0))
    assert plain.shares.tolist() == [0, 4]
    guarded = Scheduler(policy_from("srtf"), Stability(min_runtime_s=10.0)).decide(
        snapshot_of(4, rows, now_s=100.0)
    )
    assert guarded.shares.tolist() == [2, 0]
    later = Scheduler(policy_from("srtf"), Stability(min_runtime_s=10.0)).decide(
        snapshot_of(4, rows, now_s=105.0)
    )
    assert later.shares.tolist() == [0, 4]


def test_a_higher_priority_is_served_first() -> None:
    rows = [job("a", holds=4), job("b", 1, 3, priority=1), job("c", 2, 2, priority=1)]
    plan = Scheduler(policy_from("max-min")).decide(snapshot_of(4, rows))
    assert plan.shares.tolist() == [0, 2, 2]
    who = "jobs with a priority above 0 hold 4 GPUs"
    assert plan.waiting(0) == ("Priority", who)


@pytest.mark.parametrize(("gpus", "held"), [(4, 4), (2, 4), (5, 1)], ids=["full", "lost", "small"])
def test_pinned_jobs_stay_whatever_is_left(gpus: int, held: int) -> None:
    """All GPUs pinned, GPUs lost below a pinned job, a pinned job below its minimum."""
    rows = [job("a", 2, 4, holds=held, pinned=True), job("b")]
    for policy in ("afs-l", "afs-p", "srtf", "fifo", "max-min", "optimus", "tiresias-l"):
        plan = Scheduler(policy_from(policy)).decide(snapshot_of(gpus, rows))
        assert plan.shares[0] == held
        assert plan.shares.sum() <= max(gpus, held)


def test_who_waits_for_pinned_jobs_is_not_told_that_it_can_never_run() -> None:
    rows = [job("a", 3, 3, holds=3, pinned=True), job("b", 2, 2), job("c", 5, 5)]
    plan = Scheduler(policy_from("afs-p")).decide(snapshot_of(4, rows))
    assert plan.shares.tolist() == [3, 0, 0]
    who = "jobs that cannot be stopped now hold 3 of 4 GPUs"
    assert plan.waiting(1) == ("Resources", who)
    never = plan.waiting(2)
    assert never is not None
    assert never.code == "Infeasible"


def test_kinds_are_kept_when_a_lower_priority_finds_no_gpu_left() -> None:
    def policy(snapshot: Snapshot) -> Allocation:
        shares = np.zeros((snapshot.jobs.size, 2), np.int64)
        shares[0] = (1, 2)
        return Allocation(shares, because(shares.sum(axis=1) == 0, "Resources", "?"))

    cluster = Cluster((Node("a", 1, kind=0), Node("b", 2, kind=1)), ("new", "old"))
    rows = [job("a"), job("b", priority=1)]
    plan = Scheduler(policy).decide(snapshot_of(cluster, rows))
    assert plan.allocation.shares.tolist() == [[0, 0], [1, 2]]


def test_mates_and_servers_stay_with_their_jobs() -> None:
    def policy(snapshot: Snapshot) -> Allocation:
        shares = np.ones(snapshot.jobs.size, np.int64)
        memory = np.full_like(snapshot.memory, 7.0)
        return ServedAllocation(shares, memory=memory, packed_with=np.array([1, 0]))

    rows = [job("a", holds=1, pinned=True), job("b"), job("c")]
    allocation = Scheduler(policy).decide(snapshot_of(4, rows)).allocation
    assert isinstance(allocation, ServedAllocation)
    assert allocation.servers.tolist() == [0, 7, 7]
    assert allocation.packed_with is not None
    assert allocation.packed_with.tolist() == [-1, 2, 1]


BROKEN = {
    "more than there is": (lambda _: Allocation(np.array([3, 3])), "6 GPUs and there are 4"),
    "more than a job can use": (lambda _: Allocation(np.array([4, 0])), "job 0 gets 4 GPUs"),
    "a negative share": (lambda _: Allocation(np.array([-1, 1])), "gets -1"),
    "no reason": (lambda _: Allocation(np.array([1, 0])), "job 1 gets no GPUs and no reason"),
    "a row too few": (lambda _: Allocation(np.array([1])), "(1,) for 2 jobs"),
    "nothing at all": (lambda _: None, "it is a NoneType"),
    "a wake-up in the past": (
        lambda _: Allocation(np.array([1, 1]), wake_at_s=0.0),
        "woken at 0.0",
    ),
    "memory of another shape": (
        lambda _: Allocation(np.array([1, 1]), memory=np.zeros((1, 1))),
        "its memory",
    ),
    "reasons for others": (
        lambda _: Allocation(np.array([1, 1]), because(np.ones(3, np.bool_), "Held", "?")),
        "reasons",
    ),
    "a list": (lambda _: Allocation([1, 1]), "shares are list"),  # type: ignore[arg-type]
    "half a GPU": (lambda _: Allocation(np.array([0.5, 1.0])), "shares are float64"),
}


@pytest.mark.parametrize(("policy", "because_"), BROKEN.values(), ids=BROKEN.keys())
def test_an_answer_that_cannot_be_carried_out_is_refused(policy: object, because_: str) -> None:
    rows = [job("a", 1, 3, holds=1), job("b", 1, 3)]
    with pytest.raises(InvalidAllocation) as raised:
        Scheduler(policy).decide(snapshot_of(4, rows))  # type: ignore[arg-type]
    assert because_ in raised.value.because


def test_the_first_reason_that_covers_a_row_holds() -> None:
    first = because(np.array([True, False]), "Topology", "no node has 8")
    both = first | because(np.array([True, True]), "Resources", "full")
    assert both.of(0) == ("Topology", "no node has 8")
    assert both.of(1) == ("Resources", "full")
    assert Reasons().of(0) is None

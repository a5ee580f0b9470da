"""Policies and placements that are not ours decide for a pool; what they do wrong costs no job."""

import sys
from collections.abc import Callable

import numpy as np
import pytest

from coddl.core.allocation import Allocation, because
from coddl.core.errors import UserError
from coddl.core.placement.consolidate import Consolidate
from coddl.core.placement.placement import Placed
from coddl.core.pool import records as r
from coddl.core.pool.explain import sentence_of
from coddl.core.pool.failed_decision import RETRY_S
from coddl.core.pool.preview import preview
from coddl.core.registry import Registry
from coddl.core.snapshot import Snapshot
from coddl.core.waiting import Waiting
from tests.core.pool.story import Story

POLICY, PLACEMENT = "mine.py:policy", "mine.py:placement"


class Mine:
    """A plug-in: each job gets its minimum, in order of submission, until told otherwise."""

    def __init__(self) -> None:
        self.fault: Callable[[Snapshot], object] | None = None
        self.placing: Callable[[Snapshot], object] | None = None
        self.asked = 0

    def policy(self, snapshot: Snapshot) -> Allocation:
        self.asked += 1
        if self.fault is not None:
            return self.fault(snapshot)  # type: ignore[return-value] # wrong on purpose
        return fair(snapshot)

    def placement(self, snapshot: Snapshot, allocation: Allocation) -> Placed:
        if self.placing is not None:
            return self.placing(snapshot)  # type: ignore[return-value] # wrong on purpose
        return Consolidate()(snapshot, allocation)

    @property
    def registry(self) -> Registry:
        return Registry({POLICY: self.policy}, {PLACEMENT: self.placement})


def fair(snapshot: Snapshot) -> Allocation:
    """Give each job its minimum, in order of submission, as long as there are GPUs."""
    least, total = snapshot.jobs.gpus_min, snapshot.cluster.gpus_total
    shares = np.where(np.cumsum(least) <= total, least, 0)
    return Allocation(shares, because(shares == 0, "Resources", "earlier jobs hold the GPUs"))


def fails(_snapshot: Snapshot) -> object:
    raise ZeroDivisionError("division by zero")


def coded(snapshot: Snapshot) -> object:
    shares = np.zeros(snapshot.jobs.size, np.int64)
    return Allocation(shares, because(shares == 0, "Mood", "it is Monday"))  # type: ignore[arg-type]


def forgets(snapshot: Snapshot) -> object:
    good = fair(snapshot)
    memory = np.full(snapshot.memory.shape, np.nan)
    return Allocation(good.shares, good.waiting, memory=memory)


FAULTS = {
    "it raises": (fails, "ZeroDivisionError: division by zero"),
    "it exits": (lambda _: sys.exit("bye"), "SystemExit: bye"),
    "it answers something else": (lambda _: 7, "it is a int, not an Allocation"),
    "it hands out too much": (
        lambda snapshot: Allocation(np.full(snapshot.jobs.size, 4, np.int64)),
        "it hands out 8 CPU slots and there are 4",
    ),
    "it gives no reason": (
        lambda snapshot: Allocation(np.zeros(snapshot.jobs.size, np.int64)),
        "job 1 gets no CPU slots and no reason",
    ),
    "its code can't be read back": (coded, 'waits for "Mood", which is none of Resources'),
    "its memory can't be read back": (forgets, "its memory of job 1 has values that are not"),
}


def following(mine: Mine, slots: int = 4) -> tuple[Story, int]:
    """Have a pool follow a plug-in that works, with a job that trains."""
    story = Story(slots, registry=mine.registry)
    story.happen(r.PolicyChosen(POLICY, "ann"))
    job = story.submit(2, 4)
    story.train(job)
    return story, job


def failures(story: Story) -> list[r.DecisionFailed]:
    return [each for _, _, each in story.journal if isinstance(each, r.DecisionFailed)]


def test_a_function_without_a_kernel_decides_for_a_pool() -> None:
    mine = Mine()
    story, first = following(mine)
    second, third = story.submit(2, 2), story.submit(1, 1)
    assert story.shares() == {first: 2, second: 2, third: 0}
    waits = story.job(third).waiting
    assert waits is not None
    assert waits.sentence.endswith("earlier jobs hold the CPU slots")
    assert story.pool.policy_trouble is None
    assert mine.asked > 0


@pytest.mark.parametrize(("fault", "words"), FAULTS.values(), ids=FAULTS.keys())
def test_a_policy_that_fails_leaves_jobs_what_they_hold(
    fault: Callable[[Snapshot], object], words: str
) -> None:
    mine = Mine()
    story, first = following(mine)
    mine.fault = fault
    outcome = story.happen(
        r.JobSubmitted(2, story.job(first).spec)
    )  # accepted: it waits for a policy that works
    assert outcome.failed is not None
    assert outcome.wake_at_s == story.now_s + RETRY_S
    assert story.shares() == {first: 2, 2: 0}
    assert words in (story.pool.policy_trouble or r.Trouble("", "", "")).because
    waits = story.job(2).waiting
    assert waits is not None
    assert (waits.code, words in waits.sentence) == ("PolicyFailed", True)
    assert "; jobs keep their CPU slots" in sentence_of(failures(story)[0], None, "CPU slot")
    story.happen(r.RunProgressed(first, 1, 9, 2, 0.5, 9))
    assert story.job(first).phase == "running"


def test_a_policy_that_failed_is_asked_again_and_then_decides() -> None:
    mine = Mine()
    story, first = following(mine)
    mine.fault = fails
    second = story.submit(2, 2)
    asked = mine.asked
    story.happen(r.Woke())  # too early
    assert mine.asked == asked
    story.now_s += RETRY_S
    story.happen(r.Woke())
    assert (mine.asked, len(failures(story))) == (asked + 1, 1)  # tried, and no news
    mine.fault = None
    story.now_s += RETRY_S
    story.happen(r.Woke())
    assert story.pool.policy_trouble is None
    assert story.shares() == {first: 2, second: 2}
    assert story.control.wake_at_s is None or story.control.wake_at_s > story.now_s


def test_users_are_obeyed_while_a_policy_fails() -> None:
    mine = Mine()
    story, first = following(mine)
    second = story.submit(2, 2)
    mine.fault = fails
    story.happen(r.JobSuspended(first, "ann"))
    story.happen(r.JobCancelled(second, "ann"))
    story.catch_up()
    assert story.job(first).phase == "suspended"
    assert story.job(second).phase == "cancelled"
    story.happen(r.JobResumed(first, "ann"))
    assert story.job(first).waiting == Waiting(
        "PolicyFailed", "policy mine.py:policy failed: ZeroDivisionError: division by zero"
    )


def test_a_lost_node_takes_no_more_than_its_own_while_a_policy_fails() -> None:
    mine = Mine()
    story = Story(2, 2, registry=mine.registry)
    story.happen(r.PolicyChosen(POLICY, "ann"))
    jobs = [story.submit(2, 2) for _ in range(2)]
    story.train(*jobs)
    mine.fault = fails
    story.happen(r.NodeLost("a", "1", "its lease expired"))
    assert sorted(story.shares().values()) == [0, 2]
    mine.fault = None
    story.join("a", 2, boot="2")
    story.report()
    assert sorted(story.shares().values()) == [2, 2]


def test_a_node_that_must_go_is_empty_in_time_while_a_policy_fails() -> None:
    mine = Mine()
    story = Story(2, 2, registry=mine.registry)
    story.happen(r.PolicyChosen(POLICY, "ann"))
    wide, small = story.submit(3, 3), story.submit(1, 1)
    story.train(wide, small)
    mine.fault = fails
    gone = next(iter(story.pool.nodes_of(story.job(small).granted)))
    story.happen(r.JobBounded(wide, 1, 3, "ann"))
    story.happen(r.NodeDrained(gone, "ann", within_s=100.0))
    assert story.shares() == {wide: 3, small: 1}
    story.now_s += 100.0
    story.happen(r.Woke())
    story.catch_up()
    story.happen(r.JobPrioritised(wide, 1, "ann"))
    story.catch_up()
    assert not any(story.pool.slots[slot].owners for slot in story.pool.nodes[gone].slots)
    assert story.shares() == {wide: 2, small: 0}  # what it has elsewhere is enough for one of them
    mine.fault = None
    story.happen(r.NodeUndrained(gone, "ann"))
    story.catch_up()
    assert story.shares() == {wide: 1, small: 1}


def test_the_operator_mends_it_by_another_policy() -> None:
    mine = Mine()
    story, first = following(mine)
    mine.fault = fails
    second = story.submit(1, 1)
    story.happen(r.PolicyChosen("max-min", "ann"))
    assert story.pool.policy_trouble is None
    story.catch_up()
    assert story.shares() == {first: 3, second: 1}


def test_a_placement_that_fails_is_named() -> None:
    mine = Mine()
    story = Story(4, registry=mine.registry)
    story.happen(r.PolicyChosen("max-min", "ann", PLACEMENT))
    job = story.submit(2, 4)
    assert story.shares() == {job: 2}
    mine.placing = fails
    story.submit(1, 1)
    trouble = story.pool.policy_trouble
    assert trouble is not None
    assert trouble.what == "placement mine.py:placement failed"
    assert trouble.try_.startswith("coddl policy --placement NAME")
    mine.placing = lambda _snapshot: "nowhere"
    story.submit(1, 1)
    assert story.shares() == {1: 2, 2: 0, 3: 0}


def test_a_dry_run_of_a_job_says_that_the_policy_fails() -> None:
    mine = Mine()
    story, first = following(mine)
    mine.fault = fails
    found = preview(story.control, story.job(first).spec, story.now_s)
    assert (found.job.gpus, found.others) == (0, ())
    assert found.job.reason.startswith("PolicyFailed: policy mine.py:policy failed")


def test_a_journal_whose_plug_in_is_gone_leaves_jobs_what_they_hold() -> None:
    story, first = following(Mine())
    story.control.registry = Registry()  # as after a restart
    waiting = story.submit(1, 1)
    assert story.shares() == {first: 2, waiting: 0}
    trouble = story.pool.policy_trouble
    assert trouble is not None
    assert trouble.because == "the server was started without the plug-in mine.py"
    assert "--plugin path/to/mine.py" in trouble.try_
    story.happen(r.PolicyChosen("max-min", "ann"))
    assert story.shares()[waiting] == 1


def test_a_failure_of_our_own_policies_is_a_bug() -> None:
    story = Story(2)
    story.pool.policy = "fifo:nosuch=1"
    with pytest.raises(UserError):
        story.submit(1, 1)


REFUSED = {
    "an unknown file": ("other.py:policy", "the server was started without the plug-in other.py"),
    "an unknown name": ("mine.py:nosuch", 'plug-in mine.py has no policy "nosuch"'),
    "a path": ("/tmp/mine.py:policy", "plug-ins of a pool are named without their folder"),
    "parameters of a function": ("mine.py:policy:a=1", "is a function and takes no parameters"),
    "one of ours that is not": ("nosuch", 'there is no policy named "nosuch"'),
}


@pytest.mark.parametrize(("name", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_no_plug_in_offers_is_refused(name: str, words: str) -> None:
    story, _ = following(Mine())
    with pytest.raises(UserError) as refused:
        story.happen(r.PolicyChosen(name, "ann"))
    assert words in refused.value.because
    assert story.pool.policy == POLICY


def test_what_there_is_names_plug_ins_and_no_paths() -> None:
    with pytest.raises(UserError) as refused:
        Mine().registry.policy("nosuch")
    assert refused.value.try_.endswith(f"tiresias-l, {POLICY}")

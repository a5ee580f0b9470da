"""Decisions that are made beside the control plane, while jobs are submitted."""

import copy
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coddl.core.pool import records as r
from coddl.core.pool.control import ControlOutput
from tests.core.pool.agents import Said
from tests.core.pool.story import Story
from tests.core.pool.swarm import Swarm
from tests.core.pool.test_swarm import live

JOBS_MAX = 12


class Beside(Swarm):
    """A pool of which half of the decisions are made while up to 2 jobs are submitted."""

    decided = joined = 0
    is_deciding = False

    def conclude(self, said: list[Said]) -> None:
        if not self.is_deciding:
            super().conclude(said)

    def concluded(self) -> ControlOutput:
        if self.random.random() < 0.5:
            return super().concluded()
        at_once = copy.deepcopy(self.control)
        pending = self.control.pending_decision(self.now_s)
        if pending is None:
            return self.control.conclude(self.now_s)
        jobs, records = len(self.pool.jobs), at_once.conclude(self.now_s).records
        self.is_deciding = True
        for _ in range(self.random.randint(0, 2) if len(self.done) < JOBS_MAX else 0):
            self.submit()
        self.is_deciding = False
        made = pending.decide()
        assert made in records
        outcome = self.control.conclude(self.now_s, lambda: made)
        assert without_submits(outcome.records) == without_submits(records)
        self.decided, self.joined = self.decided + 1, self.joined + len(self.pool.jobs) - jobs
        return outcome


def without_submits(records: tuple[r.Record, ...]) -> list[r.Record]:
    return [each for each in records if not isinstance(each, r.JobSubmitted)]


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6))
def test_a_submit_changes_nothing_of_a_decision_that_is_being_made(seed: int) -> None:
    swarm = Beside(seed, users=True, full=0.03)
    live(swarm)
    assert swarm.decided > 5


@pytest.mark.parametrize("seed", range(4))
def test_so_it_is_where_jobs_take_turns(seed: int) -> None:
    swarm = Beside(seed, "gandiva", users=True, crowded=True)
    live(swarm)
    assert swarm.decided > 5
    assert swarm.joined > 0


def test_a_submit_calls_for_a_decision_of_its_own() -> None:
    story = Story(2)
    control = story.control
    story.submit(1, 1)
    control.reconsider("a test")
    pending = control.pending_decision(story.now_s)
    assert pending is not None
    late = control.pool.next_job
    spec = replace(control.pool.jobs[1].spec, name="late")
    control.take(r.JobSubmitted(late, spec), story.now_s)
    control.conclude(story.now_s, pending.decide)
    assert not control.pool.jobs[late].target
    control.conclude(story.now_s)
    assert control.pool.jobs[late].target


def test_nothing_but_submits_is_taken_while_a_decision_is_made() -> None:
    story = Story(2)
    job = story.submit(1, 1)
    story.control.reconsider("a test")
    pending = story.control.pending_decision(story.now_s)
    assert pending is not None
    with pytest.raises(AssertionError):
        story.control.take(r.JobCancelled(job, "ada"), story.now_s)
    story.control.conclude(story.now_s, pending.decide)
    story.control.take(r.JobCancelled(job, "ada"), story.now_s)

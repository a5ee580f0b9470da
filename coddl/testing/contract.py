"""What every policy promises, as properties: inherit PolicyContract, give it your policy."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coddl.core.columns import IntColumn
from coddl.core.invariants import check
from coddl.core.jobs import GPUS, STARTS, JobTable
from coddl.core.policies.policy import Policy
from coddl.core.snapshot import Snapshot
from coddl.testing.builders import JobRow, job, snapshot_of

SETTINGS = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.differing_executors]
)


@st.composite
def job_rows(draw: st.DrawFn, name: str) -> JobRow:
    """Any job: sublinear or kinky speeds, any length or none, running or waiting."""
    gpus_max = draw(st.integers(1, 12))
    gpus_min = draw(st.integers(1, gpus_max)) if draw(st.booleans()) else 1
    step_s = [draw(st.floats(0.01, 10.0))]
    for _ in range(gpus_max - 1):
        step_s.append(step_s[-1] * draw(st.floats(0.5, 1.05)))
    started = draw(st.booleans())
    submitted_s = draw(st.floats(0.0, 500.0))
    return job(
        name,
        gpus_min,
        gpus_max,
        step_s=step_s,
        requested=draw(st.integers(gpus_min, gpus_max)),
        left=draw(st.floats(1.0, 1e6)) if draw(st.integers(0, 9)) else float("nan"),
        submitted_s=submitted_s,
        started_s=draw(st.floats(submitted_s, 1000.0)) if started else None,
        executed_s=draw(st.floats(0.0, 400.0)) if started else 0.0,
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Any small snapshot: idle, busy or crowded, some jobs holding GPUs that fit together."""
    gpus = draw(st.integers(1, 40))
    rows = [draw(job_rows(str(i))) for i in range(draw(st.integers(0, 12)))]
    snapshot = snapshot_of(gpus, rows, now_s=1000.0, seed=draw(st.integers(1, 2**31 - 2)))
    ints, left = snapshot.jobs.ints.copy(), gpus
    for row in range(len(rows)):
        low, high = rows[row].gpus_min, min(rows[row].gpus_max, left)
        if ints[STARTS, row] and low <= high and draw(st.booleans()):
            ints[GPUS, row] = draw(st.integers(low, high))
            left -= ints[GPUS, row]
    return replace(snapshot, jobs=JobTable(snapshot.jobs.floats, ints).read_only())


class PolicyContract:
    """The promises. A subclass has a class-scoped fixture `policy`.

    class TestMine(PolicyContract):
        @pytest.fixture(scope="class")
        @classmethod
        def policy(cls):
            return mine
    """

    work_conserving: ClassVar[bool] = True  # False: it may leave GPUs idle, as strict FIFO does

    @pytest.fixture(scope="class")
    @classmethod
    def policy(cls) -> Policy:
        """The policy under test."""
        raise NotImplementedError("give the contract a policy: a fixture named `policy`")

    @given(snapshot=snapshots())
    @SETTINGS
    def test_every_allocation_can_be_carried_out_and_explains_itself(
        self, policy: Policy, snapshot: Snapshot
    ) -> None:
        check(snapshot, policy(snapshot))

    @given(snapshot=snapshots())
    @SETTINGS
    def test_the_same_snapshot_gives_the_same_answer(
        self, policy: Policy, snapshot: Snapshot
    ) -> None:
        first, second = policy(snapshot), policy(snapshot)
        assert np.array_equal(first.shares, second.shares)
        assert first.wake_at_s == second.wake_at_s
        assert (first.memory is None) == (second.memory is None)
        if first.memory is not None and second.memory is not None:
            assert np.array_equal(first.memory, second.memory)

    @given(snapshot=snapshots())
    @SETTINGS
    def test_the_snapshot_stays_as_it_was(self, policy: Policy, snapshot: Snapshot) -> None:
        floats, ints, memory = (
            each.copy() for each in (snapshot.jobs.floats, snapshot.jobs.ints, snapshot.memory)
        )
        policy(snapshot)
        assert np.array_equal(floats, snapshot.jobs.floats, equal_nan=True)
        assert np.array_equal(ints, snapshot.jobs.ints)
        assert np.array_equal(memory, snapshot.memory)

    @given(snapshot=snapshots())
    @SETTINGS
    def test_it_asks_to_be_woken_later_or_not_at_all(
        self, policy: Policy, snapshot: Snapshot
    ) -> None:
        assert policy(snapshot).wake_at_s > snapshot.now_s

    @given(snapshot=snapshots())
    @SETTINGS
    def test_no_gpu_stays_idle_that_a_waiting_job_could_start_on(
        self, policy: Policy, snapshot: Snapshot
    ) -> None:
        if not self.work_conserving:
            pytest.skip("the policy makes no such promise")
        shares = policy(snapshot).gpus
        free = snapshot.cluster.gpus_total - int(shares.sum())
        waits = shares == 0
        assert not (waits & (self.needs(snapshot) <= free)).any()

    def needs(self, snapshot: Snapshot) -> IntColumn:
        """The GPUs a waiting job needs to start: the minimum; override it for a rigid policy."""
        return snapshot.jobs.gpus_min

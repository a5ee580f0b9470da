"""Lengths as learned from jobs that have ended."""

from dataclasses import dataclass, replace
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coddl.core.cluster import Cluster
from coddl.core.history import FIRST_S, LEVEL_END_S, LEVELS, EndedJobs, history_of, level_at
from coddl.core.jobs import JobTable
from coddl.core.registry import policy_from
from coddl.core.snapshot import Snapshot, empty_memory
from coddl.testing.builders import speeds_from

HOUR_S = 3600.0
SHORT, LONG = [(0, 60.0)] * 6, [(1, 90 * HOUR_S)] * 6  # (cohort, seconds trained)


@dataclass(frozen=True)
class Crowd:
    """Jobs on one GPU: what has ended, in order of submission, and then (cohort, hours trained)."""

    ended: list[tuple[int, float]]
    waiting: list[tuple[int, float]]
    want: int  # the row that gets the GPU
    holds: int | None = None

    @property
    def snapshot(self) -> Snapshot:
        size, past = len(self.waiting), len(self.ended)
        cohorts, hours = zip(*self.waiting, strict=True)
        jobs = JobTable.of(
            size,
            id=np.arange(size) + past,
            cohort=cohorts,
            done_iterations=np.array(hours) * HOUR_S,
            gpus=[int(row == self.holds) for row in range(size)],
        )
        ended = EndedJobs(
            np.arange(past),
            np.array([cohort for cohort, _ in self.ended], np.int64),
            np.array([level_at(trained_s) for _, trained_s in self.ended], np.int64),
        )
        speeds, memory = speeds_from([[1.0]]), empty_memory(size)
        return Snapshot(0.0, Cluster.of(1), jobs, speeds, memory, known_past=lambda: ended)


CASES = {
    "without history, the one that has trained least": Crowd([], [(0, 9.0), (0, 0.0)], want=1),
    "a cohort whose jobs are short goes first": Crowd(LONG + SHORT, [(1, 0.0), (0, 0.0)], want=1),
    "the order of submission does not decide": Crowd(SHORT + LONG, [(1, 0.0), (0, 0.0)], want=1),
    "one that outlives its cohort is a job like any other": Crowd(
        LONG + SHORT, [(2, 0.0), (0, 8.0)], want=0,
    ),
    "one that is where its cohort ended goes before one that is not": Crowd(
        [(0, 90 * HOUR_S)] * 16, [(0, 8.0), (0, 80.0)], want=1,
    ),
    "a job that runs stays, if others are not much shorter": Crowd(
        [], [(0, 0.02), (0, 0.03)], want=1, holds=1,
    ),
    "jobs that run on say that others may, too": Crowd(
        [], [(0, 99.0), (0, 99.0), (0, 99.0), (0, 0.0), (1, 0.0)], want=4,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_who_gets_the_gpu(case: Crowd) -> None:
    shares = policy_from("ranked-speedup")(case.snapshot).gpus.tolist()
    assert shares == [int(row == case.want) for row in range(len(case.waiting))]


def test_the_newest_neighbours_count() -> None:
    # Jobs of the cohort became short: the eight before it say so, and a hundred others do not.
    ended = [(0, 90 * HOUR_S)] * 100 + [(0, 60.0)] * 8
    shares = policy_from("ranked-speedup")(Crowd(ended, [(1, 0.0), (0, 0.0)], 1).snapshot).gpus
    assert shares.tolist() == [0, 1]


def test_it_asks_again_when_a_job_leaves_its_level() -> None:
    policy, crowd = policy_from("ranked-speedup"), Crowd([], [(0, 0.0), (0, 1.0)], want=0)
    assert policy(crowd.snapshot).wake_at_s == 60.0  # the level ends after 10 s
    late = replace(crowd, waiting=[(0, 1.5), (0, 9.0)], holds=0)
    assert policy(late.snapshot).wake_at_s == pytest.approx(LEVEL_END_S[level_at(5400.0)] - 5400.0)
    assert policy(replace(late, waiting=[(0, 1.5)]).snapshot).wake_at_s == inf  # nobody waits
    jobs = JobTable.of(2, remaining_iterations=[5.0, 9.0])
    assert policy(replace(crowd.snapshot, jobs=jobs)).wake_at_s == inf  # lengths are known


@given(trained_s=st.floats(0.0, 1e9) | st.sampled_from(LEVEL_END_S.tolist()))
def test_levels_are_those_of_the_table(trained_s: float) -> None:
    level = level_at(trained_s)
    assert level == min(int(np.searchsorted(LEVEL_END_S, trained_s, side="right")), LEVELS - 1)
    assert level == 0 or trained_s >= FIRST_S


def test_history_lines_up_each_cohort_by_id() -> None:
    jobs = JobTable.of(3, id=[2, 4, 7], cohort=[0, 1, 0], remaining_iterations=nan)
    past = EndedJobs(np.array([5, 1]), np.array([0, 1]), np.array([3, 0]))
    history = history_of(jobs, past)
    assert history.earlier.tolist() == [-1, 4, 3, 0, -1]
    assert history.later.tolist() == [3, -1, -1, 2, 1]
    assert history.level.tolist() == [-1, -1, -1, 3, 0]
    assert history.ended[[0, 3]].tolist() == [1.0, 1.0]
    assert history.ended.sum() == 2.0

"""2D-Gittins: the index by hand, who runs first, and the paper's worked example."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings

from coddl.core.policies.gittins import Form, gittins_index, past_of, tiresias_g
from coddl.core.policies.policy import parameters
from coddl.core.registry import policy_from
from coddl.core.snapshot import Snapshot
from coddl.reproduce.tiresias import worked_example
from coddl.testing import job, snapshot_of, snapshots, twin
from coddl.testing.builders import JobRow

HOUR_S = 3600.0


@dataclass(frozen=True)
class Index:
    attained: float
    quantum: float
    want: float
    form: Form = "textbook"


INDICES = {
    "one of three ends within the quantum, which all use up": Index(0, 4, 1 / 12),
    "two of three end, the third uses the quantum up": Index(0, 8, 2 / 20),
    "all end, each as soon as it can": Index(0, 12, 3 / 24),
    "who is over half way costs less": Index(2, 4, 1 / 10),
    "what a job has had tells which are left": Index(4, 4, 1 / 8),
    "the published code counts what it has had again": Index(4, 4, 1 / 12, "published"),
    "both forms agree on a job that has had nothing": Index(0, 8, 2 / 20, "published"),
    "nobody had as much and ended so soon": Index(4, 3, 0.0),
    "nobody had as much": Index(12, 4, 0.0),
}


@pytest.mark.parametrize("case", INDICES.values(), ids=INDICES.keys())
def test_the_index_of_services_4_8_12(case: Index) -> None:
    past = past_of(np.array([12.0, 4.0, 8.0]), case.form)
    assert twin(gittins_index)(past, case.attained, case.quantum) == pytest.approx(case.want)


@dataclass(frozen=True)
class Who:
    jobs: list[JobRow]
    want: str
    policy: str = "tiresias-g:threshold_gpu_h=10"
    past_gpu_h: tuple[float, ...] = ()


def one(name: str, ran_h: float = 0.0, holds: int = 0) -> JobRow:
    """A job that needs the only GPU."""
    started_s = 0.0 if ran_h or holds else None
    return job(name, 1, 1, executed_s=ran_h * HOUR_S, holds=holds, started_s=started_s)


WHO = {
    "a job that is almost there goes before a new one": Who(
        [one("new"), one("old", 4.9)], "old", past_gpu_h=(5.0, 20.0, 20.0)
    ),
    "a job that has outlived the short ones does not": Who(
        [one("old", 5.1, holds=1), one("new")], "new", past_gpu_h=(5.0, 5.0, 20.0)
    ),
    "given services count, not those of the past": Who(
        [one("new"), one("old", 4.9)], "old",
        "tiresias-g:threshold_gpu_h=10,services_gpu_h=5/20", (1.0, 1.0, 1.0),
    ),
    "with no past who runs goes on": Who([one("new"), one("old", 4.9, holds=1)], "old"),
    "with no past the first start decides": Who([one("new"), one("old", 4.9)], "old"),
    "a lower queue waits, whatever its index": Who(
        [one("old", 2.0, holds=1), one("new")], "new",
        "tiresias-g:threshold_gpu_h=1/10", (2.1, 2.1, 2.1, 20.0),
    ),
    "the last queue is first come, first served": Who(
        [one("running", 4.0, holds=1), one("almost there", 4.9)], "running",
        "tiresias-g:threshold_gpu_h=1", (5.0, 20.0, 20.0),
    ),
    "the published form holds its age against a job": Who(
        [one("new"), one("old", 4.0)], "new",
        "tiresias-g:threshold_gpu_h=10,form=published", (2.0, 5.0, 5.0),
    ),
    "which the textbook does not": Who(
        [one("new"), one("old", 4.0)], "old", past_gpu_h=(2.0, 5.0, 5.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WHO.values(), ids=WHO.keys())
def test_who_runs_on_one_gpu(case: Who) -> None:
    snapshot = snapshot_of(1, case.jobs, now_s=10 * HOUR_S)
    # A lower queue is where its service has put a job, not the picture: tell the policy of it.
    policy = policy_from(case.policy)
    memory = policy(with_running(snapshot)).memory
    assert memory is not None
    snapshot = replace(snapshot, memory=memory, past_gpu_s=np.array(case.past_gpu_h) * HOUR_S)
    shares = policy(snapshot).gpus
    assert [case.jobs[row].name for row in np.flatnonzero(shares)] == [case.want]


def with_running(snapshot: Snapshot) -> Snapshot:
    """The same jobs on a GPU each: a job's queue is looked at while it runs."""
    rows = [
        one(str(row), ran_s / HOUR_S, holds=1) for row, ran_s in enumerate(snapshot.jobs.executed_s)
    ]
    return snapshot_of(len(rows), rows, now_s=snapshot.now_s)


# Tiresias (NSDI '19): 9.3, 10.0 and 11.7.
EXAMPLE = {"SRSF": 28 / 3, "2D-Gittins": 30 / 3, "2D-LAS": 35 / 3}


@pytest.mark.parametrize("policy", EXAMPLE)
def test_the_papers_example(policy: str) -> None:
    assert worked_example(policy).jct_s.mean() / HOUR_S == pytest.approx(EXAMPLE[policy], abs=1e-5)


@given(snapshot=snapshots())
@settings(max_examples=30, deadline=None)
def test_the_kernel_and_its_source_agree(snapshot: Snapshot) -> None:
    params = parameters(2.0, 0.0, 10.0, 400.0)
    past = past_of(np.array([30.0, 5.0, 300.0, 900.0]), "textbook")
    answers = []
    for rule in (tiresias_g, twin(tiresias_g)):
        memory, shares = snapshot.memory.copy(), np.zeros(snapshot.jobs.size, np.int64)
        wake_at_s = rule(snapshot.for_kernels(), params, memory, shares, past)
        answers.append((wake_at_s, shares.tolist(), memory.tolist()))
    assert answers[0] == answers[1]

"""Turns: as long as a policy says, or as long as it takes for a switch to cost little."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from coddl.core.jobs import OPAQUE, RESTARTABLE
from coddl.core.policies import afs, finish_time, tiresias
from coddl.core.policies.quantum import turn_s
from coddl.core.registry import policy_from
from coddl.core.snapshot import Snapshot
from coddl.testing import job, snapshot_of
from coddl.testing.builders import JobRow

MOST_S = 900.0


@dataclass(frozen=True)
class Case:
    jobs: list[JobRow]
    want_s: float


CASES = {
    "nobody has run": Case([job("a"), job("b")], MOST_S),
    "nobody's cost is known": Case([job("a", holds=1), job("b")], MOST_S),
    "one cost is known, and all that count": Case([job("a", holds=1, switch_s=0.5)], 25.0),
    "who has not run does not count": Case([job("a", holds=1, switch_s=0.5), job("b")], 25.0),
    "who has run counts, even if it waits": Case(
        [job("a", holds=1, switch_s=0.5), job("b", started_s=1.0)], MOST_S
    ),
    "the mean": Case(
        [job("a", holds=1, switch_s=0.5), job("b", started_s=1.0, switch_s=1.5)], 50.0
    ),
    "not below the least": Case([job("a", holds=1, switch_s=0.01)], 10.0),
    "not above the policy's own": Case([job("a", holds=1, switch_s=60.0)], MOST_S),
    "a restartable job may lose its work": Case(
        [job("a", holds=1, switch_s=0.5), job("b", holds=1, tier=RESTARTABLE)], MOST_S
    ),
    "an opaque one takes no turns": Case(
        [job("a", holds=1, switch_s=0.5), job("b", holds=1, tier=OPAQUE)], 25.0
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_turn_lasts(case: Case) -> None:
    assert turn_s(snapshot_of(2, case.jobs).jobs, MOST_S) == pytest.approx(case.want_s)


def test_a_policy_may_have_shorter_turns_than_the_least() -> None:
    assert turn_s(snapshot_of(1, [job("a", holds=1, switch_s=0.5)]).jobs, 3.0) == 3.0


def crowd(switch_s: float, now_s: float = 1000.0) -> Snapshot:
    """Give three jobs for one GPU, one of which holds it and whose turn is over."""
    rows = [
        job("a", requested=1, holds=1, switch_s=switch_s, executed_s=5.0),
        *(job(each, requested=1) for each in "bc"),
    ]
    return snapshot_of(1, rows, now_s=now_s)


POLICIES = {
    "afs-p": "afs-p:tie=keep,lease_h=0.25",
    "themis": "themis:lease_s=900",
    "tiresias-l": "tiresias-l:turn_h=0.25",
}


@pytest.mark.parametrize("name", POLICIES.values(), ids=POLICIES.keys())
def test_the_next_turn_ends_when_a_switch_has_cost_little(name: str) -> None:
    assert policy_from(name)(crowd(0.5)).wake_at_s == pytest.approx(1025.0)
    assert policy_from(name)(crowd(0.01)).wake_at_s == pytest.approx(1010.0)


UNKNOWN = {
    "afs-p": (1900.0, 1900.0),
    "themis": (1000.0 + 900.0 / 8, 1000.0 + 900.0 * 9 / 8),
    "tiresias-l": (1900.0, 1900.0),
}


@pytest.mark.parametrize("name", POLICIES)
def test_it_ends_as_the_policy_says_if_costs_are_not_known(name: str) -> None:
    least_s, most_s = UNKNOWN[name]
    assert least_s <= policy_from(POLICIES[name])(crowd(np.nan)).wake_at_s <= most_s


COLUMNS = {
    "afs-p": afs.COLUMN.lease_end_s,
    "themis": finish_time.COLUMN.lease_end_s,
    "tiresias-l": tiresias.COLUMN.turn_end_s,
}


@pytest.mark.parametrize("name", POLICIES)
def test_a_turn_that_has_begun_becomes_shorter_once_costs_are_known(name: str) -> None:
    policy, snapshot = policy_from(POLICIES[name]), crowd(0.5)
    memory = snapshot.memory.copy()
    memory[0, COLUMNS[name]] = 1800.0
    first = policy(replace(snapshot, memory=memory))
    assert first.gpus.tolist() == [1, 0, 0]
    assert first.wake_at_s == pytest.approx(1025.0)
    assert first.memory is not None
    again = policy(replace(crowd(0.5, now_s=1003.0), memory=first.memory))
    assert again.gpus.tolist() == [1, 0, 0]
    assert again.wake_at_s == pytest.approx(1025.0)


def test_tiresias_has_no_turns_until_it_knows_what_a_switch_costs() -> None:
    policy = policy_from("tiresias-l")
    assert policy(crowd(np.nan)).gpus.tolist() == [1, 0, 0]
    assert policy(crowd(np.nan)).wake_at_s == pytest.approx(4595.0)  # an hour, less 5 s
    assert policy(crowd(0.5)).wake_at_s == pytest.approx(1025.0)


def test_in_a_queue_of_tiresias_the_job_that_has_run_least_is_next() -> None:
    rows = [
        job("a", requested=1, holds=1, executed_s=50.0, switch_s=0.5),
        job("b", requested=1, started_s=1.0, executed_s=40.0, switch_s=0.5),
        job("c", requested=1, started_s=2.0, executed_s=30.0, switch_s=0.5),
        job("d", requested=1, started_s=2.0, executed_s=7200.0, switch_s=0.5),  # in the next queue
    ]
    snapshot = snapshot_of(1, rows, now_s=1000.0)
    level, turn_end_s = tiresias.COLUMN.level, tiresias.COLUMN.turn_end_s
    memory = snapshot.memory.copy()
    memory[3, level], memory[0, turn_end_s] = 1.0, 1000.0
    found = policy_from("tiresias-l")(replace(snapshot, memory=memory))
    assert found.gpus.tolist() == [0, 0, 1, 0]
    memory[0, turn_end_s] = 1010.0  # its turn is not over
    found = policy_from("tiresias-l")(replace(snapshot, memory=memory))
    assert found.gpus.tolist() == [1, 0, 0, 0]
    assert found.wake_at_s == pytest.approx(1010.0)

"""Gandiva's packing: which jobs share GPUs, where, and for how long."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from coddl.core.allocation import Allocation, group_firsts
from coddl.core.policies.gandiva.assignment import COLUMN
from coddl.core.policies.gandiva.policy import Gandiva
from coddl.core.snapshot import Snapshot
from tests.core.test_gandiva import again, decided, on_servers, one


def profile(snapshot: Snapshot, busy: Sequence[float], factor: float) -> Snapshot:
    """The same where models keep a GPU so busy, and share it at this factor on their step time."""
    rows = len(busy)
    places = snapshot.speeds.places._replace(
        busy=np.array(busy), packed=np.full((rows, rows), factor)
    )
    return replace(snapshot, speeds=replace(snapshot.speeds, known_places=places))


PACKS = Gandiva(moves=0, grow_after_s=0.0)


def crowd(factor: float) -> Snapshot:
    """Five jobs on four GPUs, b and d the least busy."""
    rows = [one(name, executed_s=300.0) for name in "abcde"]
    sits = {row: {0: 1} for row in range(4)}
    return profile(on_servers(1, rows, sits, home={4: 0}), [0.9, 0.1, 0.7, 0.2, 0.8], factor)


def test_the_least_busy_are_packed_on_trial_and_stay_if_that_pays() -> None:
    began = crowd(1.2)  # 2 / 1.2 > 1
    answer = PACKS(began)
    assert answer.packed_with is not None
    assert answer.packed_with.tolist() == [-1, 3, -1, 1, -1]
    assert answer.gpus.tolist() == [1] * 5
    assert answer.wake_at_s == 660.0  # to look at it
    later = PACKS(again(began, answer, 660.0))
    assert later.packed_with is not None
    assert later.packed_with.tolist() == [-1, 3, -1, 1, -1]
    assert later.wake_at_s == np.inf


def test_a_pair_that_does_not_pay_is_undone_and_not_tried_again() -> None:
    began = crowd(2.2)  # 2 / 2.2 < 1
    answer, tried = PACKS(began), []
    for slice_ in range(11, 20):
        assert answer.packed_with is not None
        tried.append(frozenset(np.flatnonzero(answer.packed_with >= 0).tolist()))
        began = again(began, answer, 60.0 * slice_)
        answer = PACKS(began)
    pairs = [pair for pair in tried if pair]
    assert pairs[:3] == [{1, 3}, {1, 2}, {2, 3}]  # a and e keep GPUs too busy
    assert len(pairs) == 3
    assert answer.memory is not None
    assert answer.memory[1, COLUMN.failed] == 2**3 + 2**2
    assert (answer.memory[:, COLUMN.packed_with] == 0.0).all()


def test_a_model_that_is_known_by_several_curves_is_not_tried_again_either() -> None:
    began = crowd(2.2)
    began = replace(began, speeds=replace(began.speeds, variants=5))  # all are of one model
    answer, tried = PACKS(began), 0
    for slice_ in range(11, 20):
        tried += answer.packed_with is not None and bool((answer.packed_with >= 0).any())
        began = again(began, answer, 60.0 * slice_)
        answer = PACKS(began)
    assert tried == 1


@pytest.mark.parametrize("off", [Gandiva(packing=False), Gandiva(pack_below=0.15)])
def test_nobody_is_packed_who_should_not_be(off: Gandiva) -> None:
    assert not (np.array(off(crowd(1.0)).packed_with) >= 0).any()


def test_packed_jobs_part_when_there_is_room() -> None:
    began = crowd(1.2)
    packed = again(began, PACKS(began), 660.0)
    fewer = packed.take(np.array([0, 1, 2, 3]))  # e has left
    answer = PACKS(fewer)
    assert answer.packed_with is not None
    assert (answer.packed_with == -1).all()
    assert answer.slots is not None
    assert answer.slots.totals.tolist() == [1] * 4


def roomy(snapshot: Snapshot, memory: float, throughput: float) -> Snapshot:
    """The same where each job takes so much of a GPU's memory, and of what it can do."""
    parts = {"memory": np.full(1, memory), "throughput": np.full(1, throughput)}
    places = snapshot.speeds.places._replace(**parts)
    return replace(snapshot, speeds=replace(snapshot.speeds, known_places=places))


def groups(answer: Allocation) -> list[set[int]]:
    """The rows that share GPUs."""
    assert answer.packed_with is not None
    firsts = group_firsts(answer.packed_with).tolist()
    found = [{row for row, of in enumerate(firsts) if of == first} for first in sorted({*firsts})]
    return [rows for rows in found if len(rows) > 1]


def after(snapshot: Snapshot, slices: int) -> tuple[Snapshot, Allocation]:
    """What has become of it after so many slices of 60 s."""
    for _ in range(slices):
        snapshot = again(snapshot, decided(snapshot, PACKS)[1], snapshot.now_s + 60.0)
    return snapshot, decided(snapshot, PACKS)[1]


def light(jobs: int, running: int, **parts: float) -> Snapshot:
    """Light jobs for one GPU on a server of four, the first ones running."""
    rows = [one(f"{at}", executed_s=300.0) for at in range(jobs)]
    home = dict.fromkeys(range(running, jobs), 0)
    began = on_servers(1, rows, {row: {0: 1} for row in range(running)}, home=home)
    return roomy(profile(began, [0.1] * jobs, 1.0), **parts)


@dataclass(frozen=True)
class GroupCase:
    """What each of 13 jobs takes of a GPU's memory and throughput, and the largest group found."""

    memory: float
    throughput: float
    largest: int


GROUPS = {
    "memory for two: pairs": GroupCase(0.5, 0.2, 2),
    "memory for three": GroupCase(1 / 3, 0.2, 3),
    "four that do no more than three are undone": GroupCase(0.2, 1 / 3, 3),
    "unknown memory: pairs": GroupCase(1.0, 0.2, 2),
}


@pytest.mark.parametrize("case", GROUPS.values(), ids=GROUPS.keys())
def test_groups_grow_while_memory_and_throughput_allow(case: GroupCase) -> None:
    began = light(13, 4, memory=case.memory, throughput=case.throughput)
    seen = 0
    for _ in range(20):
        began, answer = after(began, 1)
        settled = answer.memory is not None and (answer.memory[:, COLUMN.packed_with] <= 0.0).all()
        seen = max(seen, max(map(len, groups(answer)), default=0)) if settled else seen
    assert seen == case.largest


def test_a_group_that_does_not_pay_keeps_those_it_had() -> None:
    began = light(6, 4, memory=0.25, throughput=0.5)  # of a pair each has its full speed
    began, answer = after(began, 1)
    assert groups(answer) == [{0, 1}, {2, 3}], "one trial at a time"
    began, answer = after(light(8, 4, memory=0.25, throughput=0.5), 8)
    assert sorted(map(len, groups(answer))) == [2, 2, 2, 2], "three do no more than two"


def test_partners_are_found_on_other_servers() -> None:
    # Two full servers, and a job too many on the first, where only one job is light.
    rows = [one(f"{at}", executed_s=300.0) for at in range(9)]
    sits = {row: {row // 4: 1} for row in range(8)}
    busy = [0.2, 0.9, 0.9, 0.9, 0.9, 0.3, 0.9, 0.9, 0.9]
    began = profile(on_servers(2, rows, sits, home={8: 0}), busy, 1.2)
    slots, answer = decided(began, PACKS)
    assert groups(answer) == [{0, 5}]
    assert slots[0] == slots[5] == {1: 1}
    assert answer.gpus.tolist() == [1] * 9


def test_gpus_that_packing_leaves_go_to_jobs_that_wait_elsewhere() -> None:
    # No job of the first server is light; two of the second are, and the ninth moves to their GPU.
    rows = [one(f"{at}", executed_s=300.0, changed_s=-at) for at in range(9)]
    sits = {row: {row // 4: 1} for row in range(8)}
    busy = [0.9, 0.9, 0.9, 0.9, 0.2, 0.3, 0.9, 0.9, 0.9]
    slots, answer = decided(profile(on_servers(2, rows, sits, home={8: 0}), busy, 1.2), PACKS)
    assert groups(answer) == [{4, 5}]
    assert slots[8] == {1: 1}
    assert answer.gpus.tolist() == [1] * 9


def test_a_group_stays_together_when_its_first_job_has_left() -> None:
    began, answer = after(light(9, 4, memory=0.25, throughput=0.2), 12)
    largest: set[int] = max(groups(answer), key=len)
    first, *others = sorted(largest)
    rest = [row for row in range(9) if row != first]
    fewer = again(began, answer, began.now_s + 60.0).take(np.array(rest))
    assert len(others) > 1
    assert {rest.index(row) for row in others} in groups(decided(fewer, PACKS)[1])

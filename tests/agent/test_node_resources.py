"""Cores and memory in proportion to devices."""

import os

import pytest

from coddl.agent.memory_watch import end_greediest
from coddl.agent.node_resources import (
    NodeMemory,
    SlotCores,
    cores_of,
    greediest,
    threads_of,
    used_bytes,
)
from coddl.core.pool.records import RunId, Trouble

CORES: dict[str, tuple[int, list[int], tuple[tuple[int, ...], ...]]] = {
    "as many cores as devices": (2, [4, 5], ((4,), (5,))),
    "more, evenly": (2, [0, 1, 2, 3], ((0, 1), (2, 3))),
    "more, and none is left over": (2, [0, 1, 2], ((0,), (1, 2))),
    "too few: they are shared": (3, [0, 1], ((), (), ())),
}


@pytest.mark.parametrize(("devices", "cores", "want"), CORES.values(), ids=CORES.keys())
def test_each_device_has_its_part_of_the_cores(
    devices: int, cores: list[int], want: tuple[tuple[int, ...], ...]
) -> None:
    assert cores_of(devices, cores) == want


def test_slots_of_a_node_have_parts_of_their_own_wherever_they_begin() -> None:
    cores = SlotCores(((0,), (1,), (2,)))
    assert sorted(cores[slot] for slot in (7, 8, 9)) == [(0,), (1,), (2,)]
    assert cores.get(8, ()) == cores[8]


@pytest.mark.parametrize(("devices", "cores", "want"), [(4, 2, 1), (2, 7, 3), (1, 8, 8)])
def test_a_worker_has_the_threads_of_its_part(devices: int, cores: int, want: int) -> None:
    assert threads_of(devices, cores) == want


GREEDY: dict[str, tuple[dict[int, int], tuple[int, int, int] | None]] = {
    "nobody is there": ({}, None),
    "all are within their part": ({1: 50, 2: 25}, None),
    "one is over": ({1: 50, 2: 26}, (2, 26, 25)),
    "the one that is furthest over": ({1: 60, 2: 30}, (1, 60, 50)),
}


@pytest.mark.parametrize(("used", "want"), GREEDY.values(), ids=GREEDY.keys())
def test_who_has_to_go_when_memory_is_short(
    used: dict[int, int], want: tuple[int, int, int] | None
) -> None:
    assert greediest(used, {1: 2, 2: 1}, total_bytes=100, devices=4) == want


def test_memory_is_short_below_a_twenty_fifth() -> None:
    assert NodeMemory(100, 3).is_short
    assert not NodeMemory(100, 4).is_short


class PaperTenants:
    """Two jobs on four devices; the second is this very process."""

    def __init__(self) -> None:
        self.holding = {0: RunId(1, 1), 1: RunId(1, 1), 2: RunId(2, 1)}
        self.ended: list[tuple[int, Trouble]] = []

    def pids(self) -> dict[int, list[int]]:
        return {1: [], 2: [os.getpid()]}

    def end(self, job: int, trouble: Trouble) -> None:
        self.ended.append((job, trouble))

    @property
    def parked(self) -> "PaperTenants":
        return self

    def end_oldest(self) -> bool:
        return False


def test_the_job_that_is_over_its_part_ends_with_the_arithmetic() -> None:
    tenants = PaperTenants()
    assert end_greediest(tenants, 4, NodeMemory(4_000_000, 100_000))
    ((job, trouble),) = tenants.ended
    assert job == 2
    assert trouble.what == "the job used too much memory"
    assert "its node had 0.0 GB of 0.0 GB free" in trouble.because


def test_nobody_ends_who_is_within_his_part() -> None:
    tenants = PaperTenants()
    assert not end_greediest(tenants, 4, NodeMemory(1 << 50, 1))
    assert not tenants.ended


def test_a_process_uses_memory_and_one_that_is_gone_does_not() -> None:
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    os.waitpid(gone, 0)
    assert used_bytes([gone]) == 0
    assert used_bytes([os.getpid()]) > 1 << 20

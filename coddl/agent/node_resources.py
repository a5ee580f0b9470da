"""Each slot's part of its node's cores and memory. Pure, except for its readers."""

import itertools
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

SHORT_PART: Final = 0.04  # of the memory: below that a parked job is ended
THREADS: Final = "OMP_NUM_THREADS"
CGROUP: Final = Path("/sys/fs/cgroup")


def cores_of(devices: int, cores: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Cut a node's cores into parts, one a device; nothing if there are not enough of them."""
    if devices > len(cores):
        return ((),) * devices
    cuts = [index * len(cores) // devices for index in range(devices + 1)]
    return tuple(tuple(cores[a:b]) for a, b in itertools.pairwise(cuts))


def threads_of(devices: int, cores: int) -> int:
    """Tell how many threads a worker uses; the same for all, so that they share a fork server."""
    return max(1, cores // max(1, devices))


class SlotCores(Mapping[int, tuple[int, ...]]):
    """The cores of each slot. A node's slots are numbered one after the other."""

    def __init__(self, parts: Sequence[tuple[int, ...]]) -> None:
        self._parts = parts

    def __getitem__(self, slot: int) -> tuple[int, ...]:
        return self._parts[slot % len(self._parts)]

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._parts)))

    def __len__(self) -> int:
        return len(self._parts)


def own_cores() -> list[int]:
    """Give the cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """A node's memory: total and available."""

    total_bytes: int
    available_bytes: int

    @property
    def is_short(self) -> bool:
        return self.available_bytes < SHORT_PART * self.total_bytes


def memory() -> NodeMemory:
    """Look at the machine's memory, or at what our group of processes may use of it."""
    machine = psutil.virtual_memory()
    total, available = machine.total, machine.available
    try:
        limit = int((CGROUP / "memory.max").read_text())
        used = int((CGROUP / "memory.current").read_text()) - _reclaimable()
    except (OSError, ValueError):
        return NodeMemory(total, available)
    return NodeMemory(min(total, limit), max(0, min(available, limit - used)))


def parking_bytes() -> int:
    """Give how much memory parked jobs may use: half of it, and of shared memory."""
    shared = shutil.disk_usage("/dev/shm")  # where the images of jobs are
    return int(min(memory().total_bytes, shared.total)) // 2


def _reclaimable() -> int:
    """Give the bytes of cached files, which count as used and cost nothing to drop."""
    lines = (CGROUP / "memory.stat").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))


def used_bytes(leaders: Iterable[int]) -> int:
    """Sum up the memory of processes and of all they have started.

    Of what several share, as forks of one warm process do, each has its part. (PSS)
    """
    total = 0
    seen: set[int] = set()
    for pid in leaders:
        try:
            leader = psutil.Process(pid)
            family = [leader, *leader.children(recursive=True)]
        except psutil.Error:
            continue
        for each in family:
            try:
                if each.pid not in seen:
                    seen.add(each.pid)
                    total += each.memory_full_info().pss
            except psutil.Error:
                continue
    return total


def greediest(
    used: Mapping[int, int], slots: Mapping[int, int], total_bytes: int, devices: int
) -> tuple[int, int, int] | None:
    """Name the job that is furthest over its part: job, bytes used, bytes of its part."""
    parts = {job: total_bytes * slots.get(job, 0) // max(1, devices) for job in used}
    over = {job: used[job] - parts[job] for job in used}
    if not over:
        return None
    job = max(over, key=lambda each: (over[each], each))
    return (job, used[job], parts[job]) if over[job] > 0 else None

"""Watches the node's memory: when it runs short, parked jobs have to go, the oldest first.

If that does not help, the job furthest over its part has to end.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from coddl.agent.node_resources import NodeMemory, greediest, memory, used_bytes
from coddl.core.pool.records import RunId, Trouble

LOOK_EVERY_S: Final = 1.0
SETTLE_S: Final = 5.0  # until the memory of a job that was ended is back


class ParkedConsumers(Protocol):
    """The jobs that only wait in memory."""

    def end_oldest(self) -> bool: ...


class MemoryConsumers(Protocol):
    """The jobs whose processes use the memory."""

    @property
    def holding(self) -> Mapping[int, RunId]: ...
    def pids(self) -> Mapping[int, list[int]]: ...
    def end(self, job: int, trouble: Trouble) -> None: ...
    @property
    def parked(self) -> "ParkedConsumers": ...


async def watch_memory(
    node: MemoryConsumers, devices: int, look: Callable[[], NodeMemory] = memory
) -> None:
    """Look now and then, for ever."""
    while True:
        now = look()
        # A parked job is on disk as well, and loses nothing.
        ended = now.is_short and (node.parked.end_oldest() or end_greediest(node, devices, now))
        await asyncio.sleep(SETTLE_S if ended else LOOK_EVERY_S)


def end_greediest(node: MemoryConsumers, devices: int, now: NodeMemory) -> bool:
    """End the job that uses most beyond its part; tell whether there was one."""
    used = {job: used_bytes(pids) for job, pids in node.pids().items()}
    slots = [run_id.job for run_id in node.holding.values()]
    found = greediest(used, {job: slots.count(job) for job in used}, now.total_bytes, devices)
    if found is None:
        return False
    job, bytes_, part = found
    node.end(job, _trouble(bytes_, part, now))
    return True


def _trouble(bytes_: int, part: int, now: NodeMemory) -> Trouble:
    return Trouble(
        "the job used too much memory",
        f"its node had {_gb(now.available_bytes)} of {_gb(now.total_bytes)} free, and the job "
        f"used {_gb(bytes_)}, more than its share of {_gb(part)}",
        "fewer loader workers, a smaller batch, or more GPUs, which raise its share",
    )


def _gb(bytes_: int) -> str:
    return f"{bytes_ / 1e9:.1f} GB"

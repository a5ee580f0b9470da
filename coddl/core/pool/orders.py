"""What an agent shall do, as a whole: told again at every change, and after every silence.

Level-triggered: an agent compares its orders with what it does, so a lost, late or repeated message
does no harm. `version` grows with every change of a node's orders.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from coddl.core.pool.memory_limits import MemoryLimit
from coddl.core.pool.records import RunId
from coddl.core.pool.spec import JobSpec

Stop = Literal["", "retire", "cancel"]


@dataclass(frozen=True, slots=True)
class AssignedSlot:
    """A device given to a job."""

    slot: int
    node: str
    gpu: str | None


@dataclass(frozen=True, slots=True)
class JobOrder:
    """A job that the agent leads: with which seats it shall run, or that it shall stop.

    `attempt` is higher than that of a lead the agent may have for the job: then the old one is
    dropped, its workers left alone. A job that is missing from the orders was given to another
    lead, or is over: its lead is dropped likewise.
    """

    job: int
    attempt: int
    generation: int
    seats: tuple[AssignedSlot, ...]
    adopt: bool  # first look for workers that an earlier lead has left
    precheck: bool  # run the precheck, and nothing else
    stop: Stop
    reason: str  # of the newest change
    limits: tuple[MemoryLimit, ...] = ()  # that other jobs have found; none once it is prepared
    lost: tuple[str, ...] = ()  # nodes whose lease is over: its workers there are gone


@dataclass(frozen=True, slots=True)
class Orders:
    """All that one agent shall do."""

    version: int
    seats: Mapping[int, RunId]  # by slot: who may have processes there
    leads: tuple[JobOrder, ...]
    jobs: Mapping[int, JobSpec]  # those it leads or has seats of

"""Everything that an agent must do: sent again at every change, and after every silence.

Level-triggered: an agent compares its orders with what it does, so a lost, late or repeated message
does no harm. `version` grows with every change of a node's orders.

Field names are the wire format: `seats` are slots, `leads` are jobs whose lead is the agent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from coddl.core.pool.memory_limits import MemoryLimit
from coddl.core.pool.records import RunId
from coddl.core.pool.spec import JobSpec

# "park": as "retire", but the agent may keep the workers, with their state in host memory.
Stop = Literal["", "park", "retire", "cancel"]


@dataclass(frozen=True, slots=True)
class AssignedSlot:
    """A slot that is assigned to a job."""

    slot: int
    node: str
    gpu: str | None


@dataclass(frozen=True, slots=True)
class JobOrder:
    """A job whose lead is the agent: on which slots it must run, or that it must stop.

    If `attempt` is higher than that of a job runner that the agent has, the runner is released and
    its workers are left alone. A job that is missing from the orders has another lead, or is over:
    its runner is released likewise.
    """

    job: int
    attempt: int
    generation: int
    seats: tuple[AssignedSlot, ...]
    adopt: bool  # first look for workers that an earlier run has left
    precheck: bool  # run the precheck, and nothing else
    stop: Stop
    reason: str  # of the newest change
    limits: tuple[MemoryLimit, ...] = ()  # that other jobs have found; none once it is prepared
    lost: tuple[str, ...] = ()  # nodes whose lease is over: its workers there are gone


@dataclass(frozen=True, slots=True)
class Orders:
    """Everything that one agent must do."""

    version: int
    # By slot: the runs that may have processes there, the one it was given to first. Several take
    # turns.
    seats: Mapping[int, tuple[RunId, ...]]
    leads: tuple[JobOrder, ...]
    jobs: Mapping[int, JobSpec]  # those it leads or has slots of
    leaves: bool = False  # the node goes away, and the server knows it: nothing new comes
    parked: tuple[int, ...] = ()  # jobs whose parked workers it may keep; it ends all others
    # By slot with several runs: seconds after which a turn is over.
    turns: Mapping[int, float] = field(default_factory=dict)

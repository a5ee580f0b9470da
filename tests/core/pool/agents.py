"""Agents of a pool in virtual time: what they run, and what they have to say."""

from dataclasses import dataclass, field
from typing import NamedTuple

from coddl.core.pool import records as r
from coddl.core.pool.orders import JobOrder, Orders


@dataclass
class Run:
    """A job that an agent leads."""

    order: JobOrder
    told_prepared: bool = False
    told_step: bool = False
    serves: tuple[int, ...] = ()
    change: int = 0
    ran_out: bool = False  # of memory
    hangs: bool = False  # before its first step
    is_warm: bool = False  # it has begun with parked workers
    waits: dict[int, str] = field(default_factory=dict)  # slot -> node: parked, and not saved yet


class Said(NamedTuple):
    """Something that was said once, and whose word it was."""

    by: str  # node; empty: the clock's
    event: r.Event


@dataclass
class Agent:
    """A node: its process, and what lives there."""

    name: str
    devices: int
    boot: int = 0
    is_up: bool = True
    is_cut_off: bool = False
    is_connected: bool = False
    lease_end_s: float = 0.0  # by its own clock
    server_lease_end_s: float = 0.0
    orders: Orders | None = None
    workers: dict[int, int] = field(default_factory=dict)  # slot -> job
    parked: dict[int, tuple[int, ...]] = field(default_factory=dict)  # job -> slots
    runs: dict[int, Run] = field(default_factory=dict)
    # Not acknowledged yet.
    reports: list[r.RunFact | r.RunProgressed] = field(default_factory=list)
    ended: set[r.RunId] = field(default_factory=set)  # runs that are never begun again

    def die(self) -> None:
        self.workers.clear()
        self.parked.clear()
        self.runs.clear()
        self.reports.clear()
        self.ended.clear()
        self.orders = None
        self.is_connected = False

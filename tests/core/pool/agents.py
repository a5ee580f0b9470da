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
    workers: dict[int, int] = field(default_factory=dict)  # slot -> job that is at work there
    # slot -> jobs whose worker waits there for its turn
    resting: dict[int, set[int]] = field(default_factory=dict)
    turn: dict[int, int] = field(default_factory=dict)  # slot -> job that has the turn
    parking_bytes: int = 0
    parked: dict[int, tuple[int, ...]] = field(default_factory=dict)  # job -> slots
    runs: dict[int, Run] = field(default_factory=dict)
    # Not acknowledged yet.
    reports: list[r.RunFact | r.RunProgressed] = field(default_factory=list)
    ended: set[r.RunId] = field(default_factory=set)  # runs that are never begun again

    def die(self) -> None:
        self.end_workers()
        self.runs.clear()
        self.reports.clear()
        self.ended.clear()
        self.orders = None
        self.is_connected = False

    def end_workers(self) -> None:
        self.workers.clear()
        self.resting.clear()
        self.turn.clear()
        self.parked.clear()

    def runs_on(self, slot: int) -> tuple[r.RunId, ...]:
        """Name the runs that may have processes on a slot, by the newest orders."""
        return self.orders.seats.get(slot, ()) if self.orders is not None else ()

    def jobs_on(self, slot: int) -> set[int]:
        """Name the jobs that have processes on a slot."""
        at_work = {self.workers[slot]} if slot in self.workers else set()
        return at_work | self.resting.get(slot, set())

    def has(self, job: int) -> list[int]:
        """Name the slots where a job has a process."""
        return [slot for slot in {*self.workers, *self.resting} if job in self.jobs_on(slot)]

    def end_worker(self, slot: int, job: int) -> None:
        if self.workers.get(slot) == job:
            del self.workers[slot]
        self.resting.get(slot, set()).discard(job)

    def holding(self) -> dict[int, r.RunId]:
        """Name a run per slot with processes: one that must leave before those at work."""
        held = {slot: r.RunId(job, 0) for slot, job in self.workers.items()}
        for slot, jobs in self.resting.items():
            allowed = {run.job for run in self.runs_on(slot)}
            for job in sorted(jobs - allowed):
                held[slot] = r.RunId(job, 0)
        return held

    def switch_turn(self, slot: int, chosen: int) -> None:
        """Let another job have the turn on a slot, if it is one of those that may be there."""
        at_work = self.workers.get(slot)
        if at_work is not None and at_work != chosen:
            self.resting.setdefault(slot, set()).add(self.workers.pop(slot))
        self.turn[slot] = chosen
        if chosen in self.resting.get(slot, set()):
            self.resting[slot].discard(chosen)
            self.workers[slot] = chosen

    def told_turns(self) -> dict[int, r.SlotTurns]:
        shared = [slot for slot in self.turn if len(self.runs_on(slot)) > 1]
        return {slot: r.SlotTurns(self.turn[slot], {self.turn[slot]: 0.5}) for slot in shared}

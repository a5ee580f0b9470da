"""The slot table of a node, and how its agent and its worker hosts hear of each other.

Worker hosts read the table from their own thread. The agent's event loop replaces tables as a
whole, so no lock is needed.
"""

import itertools
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Protocol

from coddl.agent.logs import LogSpool
from coddl.api.wire import LogLine
from coddl.core.pool.records import RunId
from coddl.runtime.supervisor.slots import JobEnvironment, Parked, SlotProcess
from coddl.runtime.wire import Message


@dataclass(frozen=True, slots=True)
class SlotTable:
    """Which run may have processes at work on each slot, by the newest orders and turns."""

    version: int
    owners: Mapping[int, RunId]
    sharing: Mapping[int, Set[RunId]] = field(default_factory=dict)  # those that take turns


Held = Mapping[int, SlotProcess]


class WorkerHosts(Protocol):
    """Hosts the workers of jobs on a node; tells of them through the agent's bridge."""

    @property
    def is_alive(self) -> bool:
        """Tell whether it can be asked anything."""
        ...

    def look_again(self) -> None:
        """See who may be here by now, and tell who is."""
        ...

    def kill(self, job: str) -> None:
        """End the workers of a job."""
        ...

    def kill_slot(self, slot: int) -> None:
        """End the worker on a slot."""
        ...


class AgentBridge:
    """Thread-safe bridge from worker hosts to the agent's event loop."""

    def __init__(
        self,
        log_spool: LogSpool,
        on_holding: Callable[[int, Held, Parked], None],
        on_warm: Callable[[str, Message], None],
        *,
        is_leased: Callable[[], bool] = lambda: True,
    ) -> None:
        """`on_holding` hears a version of the table, what is true with it, and who is parked.

        `is_leased` tells whether a process may be started now: an agent that was stopped for long
        has a table that is out of date. All are called in the job host server's thread.
        """
        self._log_spool = log_spool
        self._hear_holding = on_holding
        self._hear_warm = on_warm
        self.is_leased = is_leased
        self._attempts: dict[str, int] = {}  # of the jobs that have processes here
        self.table = SlotTable(0, {})
        self.environments: Mapping[str, JobEnvironment] = {}
        self.commands: Set[int] = frozenset()  # slots that have a command's processes
        self.parked: Set[str] = frozenset()  # jobs whose parked workers may stay

    def environment_of(self, job: str) -> JobEnvironment | None:
        """Return a job's environment, or None if it is not ready."""
        return self.environments.get(job)

    def owner_of(self, slot: int) -> tuple[str, int] | None:
        """Return the job and attempt that a slot is given to; None while a command is there."""
        run_id = self.table.owners.get(slot)
        if run_id is None or slot in self.commands or not self.is_leased():
            return None
        return str(run_id.job), run_id.attempt

    def expects(self, job: str) -> bool:
        """Tell whether a job has a slot here: then its job runner may connect."""
        runs = itertools.chain(self.table.owners.values(), *self.table.sharing.values())
        return any(str(run_id.job) == job for run_id in runs)

    def keeps_parked(self, job: str) -> bool:
        """Tell whether parked workers of a job may stay."""
        return job in self.parked

    def takes_turns(self, job: str, slot: int) -> bool:
        """Tell whether a job shares a slot with others by turns."""
        return any(str(run_id.job) == job for run_id in self.table.sharing.get(slot, ()))

    def on_holding(self, held: Held, parked: Parked) -> None:
        """Pass on who has processes here, with the table it is true of."""
        self._attempts |= {each.job: each.attempt for each in held.values()}
        self._hear_holding(self.table.version, held, parked)

    def on_log(self, job: str, worker: int, rank: int | None, stream: str, text: str) -> None:
        """Keep a line."""
        attempt = self._attempts.get(job, 0)
        self._log_spool.add(int(job), LogLine(time.time(), attempt, worker, rank, stream, text))

    def on_warm(self, python: str, about: Message) -> None:
        """Pass on that an interpreter is ready, or can't be."""
        self._hear_warm(python, about)

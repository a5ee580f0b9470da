"""The node as its outposts see it: whose slots are whose, and what jobs run in.

Answers in the outposts' thread, from tables that the agent's own thread replaces as a whole.
"""

import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from coddl.agent.logs import LogBook
from coddl.api.wire import LogLine
from coddl.core.pool.records import Claim
from coddl.runtime.supervisor.slots import JobEnvironment, SlotProcess
from coddl.runtime.wire import Message


@dataclass(frozen=True, slots=True)
class Table:
    """Whose the slots are, by the newest orders."""

    version: int
    seats: Mapping[int, Claim]


Held = Mapping[int, SlotProcess]


class Rooms:
    """What the outposts ask for, and the way their words take to the agent's own thread."""

    def __init__(
        self,
        logbook: LogBook,
        on_holding: Callable[[int, Held], None],
        on_warm: Callable[[str, Message], None],
        *,
        is_leased: Callable[[], bool] = lambda: True,
    ) -> None:
        """`on_holding` hears a version of the table, and what is true with it.

        `is_leased` tells whether a process may be started now: an agent that was stopped for long
        has a table that is out of date. All are called in the outposts' thread.
        """
        self._logbook = logbook
        self._hear_holding = on_holding
        self._hear_warm = on_warm
        self.is_leased = is_leased
        self._attempts: dict[str, int] = {}  # of whoever has processes here
        self.table = Table(0, {})
        self.homes: Mapping[str, JobEnvironment] = {}
        self.commands: Set[int] = frozenset()  # slots that have a command's processes

    def environment_of(self, job: str) -> JobEnvironment | None:
        """Tell what a job runs in."""
        return self.homes.get(job)

    def owner_of(self, slot: int) -> tuple[str, int] | None:
        """Tell to which job and attempt a slot is given now; nobody's while a command is there."""
        claim = self.table.seats.get(slot)
        if claim is None or slot in self.commands or not self.is_leased():
            return None
        return str(claim.job), claim.attempt

    def expects(self, job: str) -> bool:
        """Tell whether a job has a seat here: then a lead of it may come."""
        return any(str(claim.job) == job for claim in self.table.seats.values())

    def on_holding(self, held: Held) -> None:
        """Pass on who has processes here, with the table it is true of."""
        self._attempts |= {each.job: each.attempt for each in held.values()}
        self._hear_holding(self.table.version, held)

    def on_log(self, job: str, worker: int, rank: int | None, stream: str, text: str) -> None:
        """Keep a line."""
        attempt = self._attempts.get(job, 0)
        self._logbook.add(int(job), LogLine(time.time(), attempt, worker, rank, stream, text))

    def on_warm(self, python: str, about: Message) -> None:
        """Pass on that an interpreter is ready, or can't be."""
        self._hear_warm(python, about)

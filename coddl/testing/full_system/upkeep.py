"""The server's upkeep in virtual time: passes of the journal's compactor, without a thread."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from coddl.core.pool.records import JobsForgotten
from coddl.server.compaction import Compactor
from coddl.server.errors import JournalFull
from coddl.server.loop import LoopRequest
from coddl.server.retention import Retention

if TYPE_CHECKING:
    from coddl.server.server import Server

BEGINS_S: Final = 0.05  # after it was woken


class SimulatedUpkeep:
    """Makes a pass at once, between two turns of the control loop; a killed process makes half."""

    def __init__(self, server: "Server", rules: Retention) -> None:
        self._server = server
        self._is_wanted = False
        self._compactor = Compactor(
            server.journal.store,
            self._forget,
            keep_jobs=rules.jobs,
            keep_events_s=rules.events_s,
        )

    def start(self) -> None:
        """Do nothing yet."""

    def wake(self) -> None:
        """Have a pass made soon."""
        if not self._is_wanted:
            self._is_wanted = True
            asyncio.get_running_loop().call_later(BEGINS_S, self._compact)

    def close(self) -> None:
        """Do nothing: what is not begun is never done."""

    def _compact(self) -> None:
        self._is_wanted = False
        try:
            done = self._compactor.run(self._server.clock.wall_s())
        except JournalFull:
            return  # it is woken again
        self._server.journal.note_snapshot(done.seq)

    def _forget(self, jobs: Sequence[int]) -> None:
        """Have the control loop forget jobs in its next turn; the next pass sees that it has."""
        self._server.put(LoopRequest(lambda _pool: (JobsForgotten(tuple(jobs)),)))

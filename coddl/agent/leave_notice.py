"""Notice that this machine goes away: a deadline in a file, and SIGUSR1.

Whatever started the agent writes when the machine goes into a file of the agent's own folder, by
the clock of leases, and sends the signal. The agent goes on while the server has its jobs moved
elsewhere. It ends when nothing is left here, or when the time is just enough to save jobs.
Standard library alone.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from coddl.agent.lease_clock import now_s

FILE: Final = "leaves-at"
SAVE_S_MAX: Final = 15.0  # half of what the server takes for it: it comes first if it is there
SAVE_PART: Final = 0.25  # of the time that the notice gives
SAME_S: Final = 1.0  # two deadlines that are this close are one
LOOK_EVERY_S: Final = 0.1


def write_notice(folder: Path, leaves_at_s: float) -> None:
    """Write down when the machine of an agent with that folder goes away."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = folder / f"{FILE}.{os.getpid()}"
    draft.write_text(f"{leaves_at_s}\n")
    draft.replace(folder / FILE)


def read_notice(folder: Path) -> float | None:
    """Tell when the machine goes away; None: nothing says so."""
    with contextlib.suppress(OSError, ValueError):
        return float((folder / FILE).read_text())
    return None


def is_nearer(at_s: float, known_s: float | None) -> bool:
    """Tell whether a deadline is news beside the one that is known."""
    return known_s is None or at_s < known_s - SAME_S


class LeaveNotice:
    """When this machine goes away, as far as the agent was told."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the agent's own."""
        self._folder = folder
        self._given = asyncio.Event()
        self.leaves_at_s: float | None = None
        self._save_at_s = 0.0

    def read(self) -> bool:
        """Read what was written; tell whether it is news. A nearer deadline holds."""
        at_s = read_notice(self._folder)
        if at_s is None or not is_nearer(at_s, self.leaves_at_s):
            return False
        self.leaves_at_s = at_s
        self._save_at_s = at_s - min(SAVE_S_MAX, max(0.0, at_s - now_s()) * SAVE_PART)
        self._given.set()
        return True

    async def due(self, is_free: Callable[[], bool]) -> None:
        """Wait until nothing keeps us here, or what does must be saved now."""
        await self._given.wait()
        while not is_free() and now_s() < self._save_at_s:
            await asyncio.sleep(LOOK_EVERY_S)

"""Ends a node's jobs when its lease is over, though the agent is stopped or hangs.

    python -P -m coddl.agent.fence AGENT FOLDER

AGENT is the agent's process and FOLDER its own. Standard input brings deadlines, one per line, in
seconds of CLOCK_BOOTTIME; the newest counts. From then on each process of the jobs is killed, until
a later deadline comes: what a stopped agent was about to start does not live either. At the end of
standard input the agent is gone; what is left of its jobs is killed, and the fence ends.
Standard library alone.
"""

import math
import os
import select
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from coddl.agent.lease_clock import now_s
from coddl.agent.orphans import OrphanProcesses, Process, below

TICK_S: Final = 0.2  # a wait does not count the time for which the machine sleeps
AGAIN_S: Final = 0.05  # between looks at what was killed
IDLE_S: Final = 1.0  # between looks after a deadline, when nothing was found


def main() -> None:
    """Watch over an agent until it is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # we end with the agent, and not before
    agent, orphans = int(sys.argv[1]), OrphanProcesses(Path(sys.argv[2]))
    deadlines, wait_s = Deadlines(), TICK_S
    while deadlines.read(wait_s):
        left_s = deadlines.newest_s - now_s()
        if left_s > 0:
            wait_s = min(TICK_S, left_s)
        else:
            wait_s = AGAIN_S if _kill(of_jobs(agent, orphans)) else IDLE_S
    # The next agent of this folder may have begun: what it starts is not ours to end.
    until = int(now_s() * os.sysconf("SC_CLK_TCK"))
    while _kill(each for each in orphans.left() if each.started <= until):
        time.sleep(AGAIN_S)


class Deadlines:
    """The deadlines that standard input brings."""

    def __init__(self) -> None:
        self._rest = b""
        self.newest_s = math.inf

    def read(self, wait_s: float) -> bool:
        """Wait for another one; tell whether there may be more."""
        if not select.select([0], [], [], wait_s)[0]:
            return True
        data = os.read(0, 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines:
            self.newest_s = float(lines[-1])
        return bool(data)


def of_jobs(agent: int, orphans: OrphanProcesses) -> list[Process]:
    """Find the processes of an agent's jobs, parents before children.

    A parent that supervises others is killed first, before it can report their end as their own. A
    child of the agent without children runs no job: it is a warm interpreter, or this process.
    """
    family = below(agent)
    found = [each for each in family.get(agent, []) if each.pid in family]
    for parent, children in family.items():
        if parent != agent:
            found += children
    return [*{each.name: each for each in (*found, *orphans.left())}.values()]


def _kill(processes: Iterable[Process]) -> bool:
    """Kill processes; tell whether there were any."""
    found = list(processes)
    for each in found:
        each.kill()
    return bool(found)


if __name__ == "__main__":
    main()

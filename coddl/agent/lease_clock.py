"""The clock of leases and deadlines, and the clocks of a node as a parameter of its agent.

Standard library alone: processes that end what an agent has left use it, too.
"""

import time
from typing import Final, Protocol


def now_s() -> float:
    """Tell the time by a clock that goes on while the machine sleeps: leases do, too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class NodeClock(Protocol):
    """Two clocks of a machine: the one that people set, and the one of leases and deadlines."""

    def wall_s(self) -> float:
        """Seconds since 1970."""
        ...

    def steady_s(self) -> float:
        """Seconds since some moment; never set, and goes on while the machine sleeps."""
        ...


class SystemNodeClock:
    """The clocks of this machine."""

    def wall_s(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def steady_s(self) -> float:
        """Seconds since the machine was started."""
        return now_s()


SYSTEM_CLOCK: Final = SystemNodeClock()

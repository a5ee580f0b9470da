"""The clocks of a node, as a parameter of its agent."""

import time
from typing import Final, Protocol

from coddl.agent.lease_clock import now_s


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

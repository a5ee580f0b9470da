"""Time, as a parameter: the system's, one that passes faster, or one that tests turn by hand."""

import time
from typing import Protocol

from coddl.core.time_scale import TimeScale


class Clock(Protocol):
    """Two clocks: that of the pool, which survives restarts, and one that never jumps.

    All that users and policies know is in the pool's time. The steady clock is for what happens
    between processes of this machine: leases, beats, how long a turn takes.
    """

    @property
    def scale(self) -> float:
        """Seconds of the pool's time in a second of the steady clock."""

    def wall_s(self) -> float:
        """Seconds since 1970, as the pool counts them."""

    def steady_s(self) -> float:
        """Seconds since some moment; for leases."""

    def patience_s(self, delay_s: float) -> float | None:
        """How long to wait for real if nothing else happens; None: until told."""


class SystemClock:
    """The machine's clocks."""

    scale = 1.0

    def wall_s(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def steady_s(self) -> float:
        """Seconds since some moment; for leases."""
        return time.monotonic()

    def patience_s(self, delay_s: float) -> float | None:
        """How long to wait for real if nothing else happens."""
        return max(0.0, delay_s)


class ScaledClock(SystemClock):
    """The machine's clocks, of a pool whose time passes faster."""

    def __init__(self, time_scale: TimeScale) -> None:
        self._time_scale = time_scale
        self.scale = time_scale.scale

    def wall_s(self) -> float:
        """Seconds since 1970, as the pool counts them."""
        return self._time_scale.to_pool_s(time.time())

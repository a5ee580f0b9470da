"""Time, as a parameter: the system's, or one that tests turn by hand."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks: one that people read and that survives restarts, one that never jumps."""

    def wall_s(self) -> float:
        """Seconds since 1970."""

    def steady_s(self) -> float:
        """Seconds since some moment; for leases."""

    def patience_s(self, delay_s: float) -> float | None:
        """How long to wait for real if nothing else happens; None: until told."""


class SystemClock:
    """The machine's clocks."""

    def wall_s(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def steady_s(self) -> float:
        """Seconds since some moment; for leases."""
        return time.monotonic()

    def patience_s(self, delay_s: float) -> float | None:
        """How long to wait for real if nothing else happens."""
        return max(0.0, delay_s)

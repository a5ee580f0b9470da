"""Time of a pool that passes faster than that of its machine: both clocks, and how to convert."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TimeScale:
    """A clock that shows `pool_s` when the machine's shows `machine_s`, and is `scale` as fast."""

    scale: float = 1.0  # seconds of the pool in a second of the machine
    machine_s: float = 0.0  # seconds since 1970
    pool_s: float = 0.0

    def to_pool_s(self, machine_s: float) -> float:
        """Return the pool's time at a time of the machine."""
        return self.pool_s + (machine_s - self.machine_s) * self.scale

    def to_machine_s(self, pool_s: float) -> float:
        """Return the machine's time at a time of the pool."""
        return self.machine_s + (pool_s - self.pool_s) / self.scale

    def going_on(self, machine_s: float, scale: float) -> "TimeScale":
        """Return the clock that goes on from here at another scale."""
        return TimeScale(scale, machine_s, self.to_pool_s(machine_s))

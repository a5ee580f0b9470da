"""The clock of leases and deadlines. Standard library alone."""

import time


def now_s() -> float:
    """Tell the time by a clock that goes on while the machine sleeps: leases do, too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)

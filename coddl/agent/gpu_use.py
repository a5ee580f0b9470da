"""How busy the GPUs of a node are, and how much of their memory is in use: for people to see.

Looked at in a thread of its own: a driver may hang, and then nothing is told.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from coddl.agent.devices import GpuDriver, GpuError
from coddl.api.wire import GpuUse
from coddl.core.pool.records import Device

LOOK_EVERY_S: Final = 2.0
STALE_S: Final = 15.0  # after which what was seen is not told any more


class GpuUseMonitor:
    """Knows what was last seen of each GPU."""

    def __init__(
        self,
        gpus: GpuDriver,
        devices: Sequence[Device],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gpus, self._devices, self._clock = gpus, devices, clock
        self._seen: dict[int, GpuUse] = {}
        self._seen_s = 0.0

    def start(self) -> None:
        """Look now and then in a thread, for as long as this process lives."""
        threading.Thread(target=self._watch, name="gpu use", daemon=True).start()

    def look(self) -> None:
        """Look at each GPU; those that can't be asked are left out."""
        seen: dict[int, GpuUse] = {}
        for index in (device.index for device in self._devices):
            try:
                seen[index] = GpuUse(self._gpus.utilisation(index), self._gpus.used_bytes(index))
            except GpuError:
                continue
        self._seen, self._seen_s = seen, self._clock()

    def newest(self) -> dict[int, GpuUse]:
        """Give what was seen last, by the GPU's number on its node. From any thread."""
        return self._seen if self._clock() - self._seen_s <= STALE_S else {}

    def _watch(self) -> None:
        while True:
            self.look()
            time.sleep(LOOK_EVERY_S)


def gpu_use_of(
    gpus: GpuDriver | None, devices: Sequence[Device]
) -> Callable[[], dict[int, GpuUse]]:
    """Watch GPUs from now on, and give what tells how they are used; of CPU slots, nothing."""
    if gpus is None:
        return dict
    monitor = GpuUseMonitor(gpus, devices)
    monitor.start()
    return monitor.newest

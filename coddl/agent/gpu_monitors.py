"""Watches a node's GPUs: for processes that are not ours, and for how busy they are.

A GPU that runs no job and has a foreign process can't be given to one. How busy a GPU is, and how
much of its memory is in use, is for people to see. Each is looked at in a thread of its own: a
driver may hang, and then nothing is told.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Final

from coddl.agent.devices import GpuDriver, GpuError, others_on
from coddl.api.wire import GpuUse
from coddl.core.pool.records import Device

LOOK_EVERY_S: Final = 2.0
STALE_S: Final = 15.0  # after which what was seen is not told any more


class ForeignProcessMonitor:
    """Reports which GPUs are used by foreign processes, whenever that changes."""

    def __init__(
        self,
        gpus: GpuDriver,
        devices: Sequence[Device],
        ours: Callable[[], Set[str]],
        tell: Callable[[Mapping[int, str]], None],
    ) -> None:
        """`ours` names the GPUs that have processes of ours; `tell` hears of others, by index.

        Both are called in the thread that looks.
        """
        self._gpus = gpus
        self._devices = devices
        self._ours = ours
        self._tell = tell
        self._seen: Set[int] = {device.index for device in devices}
        self._told: Mapping[int, str] = {}

    def start(self) -> None:
        """Look at once, then now and then in a thread, for as long as this process lives."""
        self.look()
        threading.Thread(target=self._watch, name="strangers", daemon=True).start()

    def look(self) -> None:
        """Look once.

        Before our first job one look is enough; later, what a process of ours has had may take a
        moment to be free, so others must be seen twice.
        """
        before = self._ours()
        found = {d.index: others_on(self._gpus, d) for d in self._devices if d.gpu not in before}
        after = self._ours()
        found = {d.index: found.get(d.index, "") for d in self._devices if d.gpu not in after}
        seen, self._seen = self._seen, {index for index, words in found.items() if words}
        sure = {i: self._told.get(i, found[i]) for i in sorted(self._seen & seen)}
        if sure != self._told:
            self._told = sure
            self._tell(sure)

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_EVERY_S)
            self.look()


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

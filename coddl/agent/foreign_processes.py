"""Looks for foreign processes on GPUs that run no job: such a GPU can't be given to one.

In a thread of its own: a driver may hang.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Final

from coddl.agent.devices import GpuDriver, others_on
from coddl.core.pool.records import Device

LOOK_EVERY_S: Final = 2.0


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

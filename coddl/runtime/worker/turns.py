"""Turns of a worker on a device that several jobs share.

Between two turns it waits where it is in the script, after an update. Its tensors stay on the
device (it is *resident*), or are moved out to host memory, as when it is parked.
"""

import time
from collections.abc import Callable
from typing import NoReturn

from coddl.runtime.errors import TrainingError
from coddl.runtime.wire import Message
from coddl.runtime.worker.handover import Handover
from coddl.runtime.worker.pass_stats import PassStats
from coddl.runtime.worker.process_name import PARKED, named
from coddl.runtime.worker.supervisor_link import SupervisorLink


class WorkerTurns:
    """Ends and begins the turns of a worker that trains alone."""

    def __init__(
        self,
        link: SupervisorLink,
        handover: Handover,
        pass_stats: PassStats,
        *,
        step: Callable[[], int],
        leave: Callable[[], NoReturn],
    ) -> None:
        """`step` tells how many iterations were made; `leave` ends this worker."""
        self._link = link
        self._handover = handover
        self._pass_stats = pass_stats
        self._step = step
        self._leave = leave
        self._image: str | None = None  # that its state is in, while it is moved out

    def take(self) -> None:
        """Between two iterations: if its turn is to end, end it and wait for the next one."""
        link = self._link
        with link.changed:
            if link.turn_end is None:
                return
            link.awaits_turn = True
        with self._pass_stats.paused():
            ended: Message | None = self._end()
            with named(PARKED):
                while ended is not None:
                    link.tell("turn ended", **ended)
                    self._pass_stats.flush()
                    ended = self._await_begin()
            self._begin()

    def _await_begin(self) -> Message | None:
        """Wait for its turn; if told to end it once more, give what comes of that."""
        link = self._link
        with link.changed:
            link.changed.wait_for(lambda: link.turn_begin or link.turn_end is not None or link.stop)
            is_told_again = link.turn_end is not None
        if link.stop:
            self._leave()
        return self._end() if is_told_again else None

    def _end(self) -> Message:
        """Move out, if it is to; give what is told of it."""
        link, handover, start_s = self._link, self._handover, time.monotonic()
        with link.changed:
            resident, link.turn_end = link.turn_end is not False, None
        if not resident and self._image is None:
            try:
                path, empty_device = handover.park(writes=True)
            except TrainingError as error:
                link.tell("problem", **error.parts())  # and it stays resident
            else:
                empty_device()
                self._image, link.capture = str(path), False  # this image will do
        return {
            "resident": self._image is None,
            "image": self._image,
            "bytes": handover.parked_bytes,
            **handover.device_bytes(),
            "seconds": time.monotonic() - start_s,
            "step": self._step(),
        }

    def _begin(self) -> None:
        """Fill the device again, if it was emptied."""
        link, start_s = self._link, time.monotonic()
        if self._image is not None:
            self._handover.unpark()
            self._image = None
        with link.changed:
            link.awaits_turn = link.turn_begin = False
        link.tell("turn begun", seconds=time.monotonic() - start_s)

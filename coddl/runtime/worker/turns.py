"""Turns of a worker on a device that several jobs share.

Between two turns it waits where it is in the script, after an update. Its tensors stay on the
device (it is *resident*), or are moved out to host memory, as when it is parked.
"""

import time
from collections.abc import Callable
from typing import NoReturn

import torch

from coddl.runtime.errors import TrainingError
from coddl.runtime.wire import Message
from coddl.runtime.worker.handover import Handover
from coddl.runtime.worker.offload import RESIDENT_BYTES_MAX, kept_on_device
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
        """`step` returns how many iterations were made; `leave` ends this worker."""
        self._link = link
        self._handover = handover
        self._pass_stats = pass_stats
        self._step = step
        self._leave = leave
        self._image: str | None = None  # that its state is in, while it is moved out
        self._has_told_kept = False

    def take(self) -> None:
        """Between two iterations: if its turn is to end, end it and wait for the next one."""
        link = self._link
        with link.changed:
            if link.turn_end is None:
                return
            link.awaits_turn = True
        with self._pass_stats.paused():
            ended: Message | None = self._end()
            while ended is not None:
                with named(PARKED):
                    link.tell("turn ended", **ended)
                    self._pass_stats.flush()
                    ended = self._await_begin()
                ended = ended or self._begin()

    def _await_begin(self) -> Message | None:
        """Wait for its turn; if ordered to end it once more, return the report of that."""
        link = self._link
        with link.changed:
            link.changed.wait_for(lambda: link.turn_begin or link.turn_end is not None or link.stop)
            is_told_again = link.turn_end is not None
        if link.stop:
            self._leave()
        return self._end() if is_told_again else None

    def _end(self) -> Message:
        """Move out of the device if requested; return the report about it."""
        link, handover, start_s = self._link, self._handover, time.monotonic()
        with link.changed:
            resident, link.turn_end = link.turn_end is not False, None
        if not resident and self._image is None:
            try:
                path, empty_device = handover.park(writes=True)
            except TrainingError as error:
                link.tell("problem", **error.parts())  # and it stays resident
            else:
                self._check_kept(empty_device().resident_bytes)
                self._image, link.capture = str(path), False  # this image will do
        return self._about_end(start_s)

    def _check_kept(self, bytes_: int) -> None:
        """Say so, once, if a worker that has moved out keeps much of the device's memory."""
        if bytes_ > RESIDENT_BYTES_MAX and not self._has_told_kept:
            self._has_told_kept = True
            problem = kept_on_device("other jobs have less GPU memory during their turns", bytes_)
            self._link.tell("problem", **problem.parts())

    def _begin(self) -> Message | None:
        """Move back to the device if it was emptied; return a report only if there is no room."""
        link, start_s = self._link, time.monotonic()
        if self._image is not None:
            try:
                self._handover.unpark()
            except torch.OutOfMemoryError:
                with link.changed:
                    link.turn_begin = False
                return self._about_end(start_s, crowded=True)
            self._image = None
        with link.changed:
            link.awaits_turn = link.turn_begin = False
        link.tell("turn begun", seconds=time.monotonic() - start_s)
        return None

    def _about_end(self, start_s: float, *, crowded: bool = False) -> Message:
        """Return the report of a turn that has ended; `crowded`: because there was no room."""
        return {
            "resident": self._image is None,
            "image": self._image,
            "bytes": self._handover.parked_bytes,
            **self._handover.device_bytes(),
            "crowded": crowded,
            "seconds": time.monotonic() - start_s,
            "step": self._step(),
        }

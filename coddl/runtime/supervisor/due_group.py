"""The group that is to be built next: it may have to wait for a store, or for an image."""

from collections.abc import Callable
from typing import Final

from coddl.runtime.supervisor import generations as group
from coddl.runtime.supervisor.loop import SupervisorLoop
from coddl.runtime.supervisor.workers import Workers

IMAGE_WAIT_S: Final = 60.0  # in which an image has to get to disk, for a training to begin from it

Build = Callable[[group.Prepare | group.Regroup], None]


class DueGroup:
    """Has a group built once its workers have a store to meet in.

    One that begins from what is on disk also waits for an image that is on its way there: that is
    the newer state.
    """

    def __init__(self, loop: SupervisorLoop, workers: Callable[[], Workers], build: Build) -> None:
        self._loop, self._workers, self._build = loop, workers, build
        self._command: group.Prepare | group.Regroup | None = None
        self._takes_older = False

    def order(self, command: group.Prepare | group.Regroup) -> None:
        """Have a group built as soon as it can be."""
        self._command, self._takes_older = command, False
        self.look()

    def cancel(self) -> None:
        """Forget it."""
        self._command = None

    def look(self) -> None:
        """Build it if nothing is missing any more."""
        command, workers = self._command, self._workers()
        if command is None or workers.store is None:
            return
        if command.plan.fresh and workers.is_saving and not self._takes_older:
            self._loop.alarm("image", self._loop.now_s() + IMAGE_WAIT_S, self._take_older)
            return
        self._command = None
        self._build(command)

    def _take_older(self) -> None:
        """Begin from an older state: the newer one takes too long to get to disk."""
        self._takes_older = True
        self.look()

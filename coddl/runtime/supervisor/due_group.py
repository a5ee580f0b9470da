"""The group that is to be built next: it may have to wait for a store, or for an image."""

from collections.abc import Callable
from typing import Final

from coddl.runtime.supervisor import generations as group
from coddl.runtime.supervisor.loop import SupervisorLoop

IMAGE_WAIT_S: Final = 60.0  # in which an image has to get to disk, for a training to begin from it

Build = Callable[[group.Prepare | group.Regroup], None]


class DueGroup:
    """Has a group built once its workers have a store to meet in.

    One that begins from what is on disk also waits for a newer state that is on its way there.
    """

    def __init__(
        self,
        loop: SupervisorLoop,
        build: Build,
        *,
        has_store: Callable[[], bool],
        is_state_coming: Callable[[], bool],
    ) -> None:
        self._loop, self._build = loop, build
        self._has_store, self._is_state_coming = has_store, is_state_coming
        self._command: group.Prepare | group.Regroup | None = None
        self._takes_older = False

    def order(self, command: group.Prepare | group.Regroup) -> None:
        """Have a group built as soon as it can be."""
        self._command, self._takes_older = command, False
        self.look()

    def cancel(self) -> None:
        """Forget it."""
        self._command = None
        self._loop.silence("image")

    def look(self) -> None:
        """Build it if nothing is missing any more."""
        command = self._command
        if command is None or not self._has_store():
            return
        if command.plan.fresh and not self._takes_older and self._is_state_coming():
            self._loop.alarm("image", self._loop.now_s() + IMAGE_WAIT_S, self._take_older)
            return
        self.cancel()
        self._build(command)

    def _take_older(self) -> None:
        """Begin from an older state: the newer one takes too long to get to disk."""
        self._takes_older = True
        self.look()

"""A job that is to leave: its workers go once its state is on disk, and train on if it is not."""

import sys
import time
from collections.abc import Sequence
from typing import Final, Protocol

from coddl.runtime.supervisor import generations as group
from coddl.runtime.supervisor.crew import Crew
from coddl.runtime.supervisor.loop import Loop
from coddl.runtime.supervisor.saving import Saving
from coddl.runtime.supervisor.seats import Seat
from coddl.runtime.supervisor.standing import RETIRED, Standing
from coddl.runtime.wire import Message

SAVE_AGAIN_S: Final = 10.0  # between tries to save a job that is to leave


class Suspended(Protocol):
    """The supervisor, as leaving concerns it."""

    @property
    def standing(self) -> Standing: ...
    @property
    def crew(self) -> Crew: ...
    @property
    def saving(self) -> Saving: ...
    def tell(self, event: Message) -> None: ...
    def set_target(self, seats: Sequence[Seat]) -> None: ...
    def feed(self, event: group.Event) -> None: ...
    def stop(self, code: int) -> None: ...
    def capture(self) -> None:
        """Have an image taken and saved."""
        ...


class Suspension:
    """Tells the last worker whether its image is safe, and the host when the job has left."""

    def __init__(self, supervisor: Suspended, loop: Loop) -> None:
        self._supervisor = supervisor
        self._loop = loop
        self._seats: Sequence[Seat] = ()  # the last it sat on
        self._last: tuple[int, int, int] | None = None  # worker, generation and step of the image
        self.is_refused = False  # it was to leave, and trains on until it can be saved

    def sits(self, seats: Sequence[Seat]) -> None:
        """Take down where the job trains on if it can't leave."""
        self._seats = seats or self._seats

    def expect(self, worker: int, message: Message) -> None:
        """Take note that a worker waits to hear what becomes of its image, or has none."""
        if "generation" in message:
            self._last = (worker, message["generation"], message.get("step", sys.maxsize))

    def on_saved(self, word: Message) -> None:
        """Take in what became of an image."""
        supervisor, standing = self._supervisor, self._supervisor.standing
        supervisor.saving.tell_outcome(word)
        standing.unsaved = supervisor.saving.unsaved
        if supervisor.crew.is_saving or standing.stopping is not None:
            return
        if self._last is not None:
            (worker, generation, step), self._last = self._last, None
            if (supervisor.saving.saved_step or 0) >= step:
                supervisor.crew.send([worker], {"do": "leave", "generation": generation})
            else:
                self._stay(worker, generation)
        elif self.is_refused and standing.unsaved is None and standing.is_at_target:
            self._loop.silence("save again")
            supervisor.set_target(())

    def _stay(self, worker: int, generation: int) -> None:
        """Train on where the job was; one that is to retire is saved again until that works."""
        supervisor = self._supervisor
        supervisor.set_target(self._seats)
        supervisor.feed(group.GroupBroken(worker, generation))  # none of it has left
        if supervisor.standing.is_retiring:
            self.is_refused = True
            self._plan()

    def _plan(self) -> None:
        self._loop.alarm("save again", time.monotonic() + SAVE_AGAIN_S, self._save_again)

    def _save_again(self) -> None:
        if not self._supervisor.standing.is_over:
            self._plan()
            self._supervisor.capture()

    def fall_asleep(self) -> None:
        """Tell that the job is suspended once its state is durable and nobody runs."""
        supervisor, standing = self._supervisor, self._supervisor.standing
        coordinator = standing.coordinator
        crew = supervisor.crew
        is_busy = bool(coordinator.members or crew.notes or crew.is_saving)
        if standing.target != 0 or standing.is_asleep or is_busy or not coordinator.is_settled:
            return
        standing.is_asleep = True
        supervisor.tell(standing.suspended(supervisor.saving.saved_step))
        supervisor.tell({"is": "progress", **standing.brief(supervisor.crew)})
        if standing.is_retiring:
            supervisor.stop(RETIRED)

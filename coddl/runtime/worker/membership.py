"""Which group a worker belongs to, and its moves from group to group.

The training loop asks, between iterations, whether its group has agreed to change (`change`), and
between passes, whether something else must be done first (`attend`): give up a broken group, leave.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, Protocol

import torch

from coddl.runtime.errors import TrainingError
from coddl.runtime.worker import packing
from coddl.runtime.worker.group import GroupError
from coddl.runtime.worker.handover import Handover
from coddl.runtime.worker.image import Tree
from coddl.runtime.worker.offload import RESIDENT_BYTES_MAX, kept_on_device
from coddl.runtime.worker.pass_stats import PassStats
from coddl.runtime.worker.process_name import PARKED, named
from coddl.runtime.worker.state import DeviceOf
from coddl.runtime.worker.supervisor_link import Generation, Groups, SupervisorLink, reject
from coddl.runtime.worker.turns import WorkerTurns


class WorkerExit(SystemExit):
    """Ends a worker whose virtual nodes have moved to others. Code after the loop is not run."""


class MemberSession(Protocol):
    """What membership needs of the session: its position, and taking over another state."""

    @property
    def step(self) -> int:
        """How many iterations this worker has made."""

    @property
    def position(self) -> int:
        """How far it has come: survivors of a failure compare this."""

    @property
    def handed(self) -> Sequence[int]:
        """How many batches each of its loaders has handed out."""

    @property
    def is_mid_pass(self) -> bool:
        """Return whether another worker could not take this one's state and go on from there."""

    def abandon(self) -> None:
        """Give up what is under way, if the next group can't go on with it."""

    def miss(self, tree: Tree, device_of: DeviceOf) -> None:
        """Be given the state of a worker that has completed what failed here."""

    def outrun(self) -> None:
        """Take note that another worker has missed something of this very pass."""

    def own(self, rank: int, counts: Sequence[int], groups: Groups, handed: Sequence[int]) -> None:
        """Take over a rank's part of the batches that no worker has been handed; exchange there."""

    def signature(self) -> int:
        """Return a signature of the parameters' layout."""


class ReadAheadLoader(Protocol):
    """Loads batches, also ahead of a change of the group."""

    def announced(self) -> Tree:
        """Send workers that will join the position of the training."""

    def expect(self, rank: int, counts: Sequence[int]) -> None:
        """Load what comes after the next update for a rank of the next group."""

    def read_ahead(self, announced: Tree, rank: int, counts: Sequence[int]) -> None:
        """Load what others will have come to after the next update, to join them there."""


class Membership:
    """A worker's place among the others; alone, it has none and this never does anything."""

    def __init__(
        self,
        link: SupervisorLink | None,
        work: MemberSession,
        handover: Handover,
        pass_stats: PassStats,
        loader: ReadAheadLoader | None = None,
    ) -> None:
        self.failed = False  # the group is broken; the supervisor will regroup
        self.lingers = False  # the group stays until the next update, and data is read ahead
        self.groups = Groups()
        self.size = 1
        self._link = link
        self._work = work
        self._handover = handover
        self._pass_stats = pass_stats
        self._loader = loader
        self._next: tuple[Generation, Groups] | None = None  # to be entered after the next update
        self._generation = Generation(0, (), ())
        self._rank = 0
        self._started = link is None
        self._has_state = link is None
        self._has_room = False
        self._handed: Sequence[int] = ()
        self.has_left = False
        self._largest = 0  # slice that was ever had
        self._unpark_s = 0.0  # that the last return to the device took
        self._turns: WorkerTurns | None = None
        if link is not None:
            self._turns = WorkerTurns(
                link, handover, pass_stats, step=lambda: work.step, leave=self._exit
            )

    @property
    def is_main(self) -> bool:
        """Return whether this is the oldest worker; alone, always."""
        return self._rank == 0 if self._started else os.environ.get("CODDL_MAIN") == "1"

    @property
    def members(self) -> tuple[int, ...]:
        """Name the workers of the group, by rank."""
        return self._generation.members

    @property
    def is_due(self) -> bool:
        """Return whether this worker is ready to change after the iteration under way."""
        return self._link is not None and (
            self._next is not None or self._link.due(self._work.step)
        )

    def start(self, **about: int | str | None) -> None:
        """Say that the script has come to its loop; wait to be taken into a group."""
        if (link := self._link) is None:
            return
        self._handover.await_ahead()
        link.tell("arrived", **about)
        while not self._started:
            with link.changed:
                link.changed.wait_for(
                    lambda: link.due(sys.maxsize) or link.regroup is not None or link.stop, 1.0
                )
            self._pass_stats.alive()
            if link.due(sys.maxsize):
                self._enter_committed(link)
            self.attend()

    def change(self, *, agreed: bool) -> None:
        """Between two iterations: change if the group agreed to; write an image if asked to."""
        if (link := self._link) is None:
            return
        if agreed:
            self._enter_committed(link)
        elif link.capture:
            link.capture = False
            self._try(link, lambda: self._write_image(link), "unsaved")
        if self.is_main and not self._has_room:
            self._has_room = True
            bytes_ = self._handover.nbytes()  # known now: optimizers have their state
            make = lambda: self._try(link, lambda: self._handover.reserve(bytes_))  # noqa: E731
            threading.Thread(target=make, name="coddl-room", daemon=True).start()
        if not agreed:
            self.take_turns()

    def take_turns(self) -> None:
        """Between two iterations: wait if others have their turn on the device."""
        if self._turns is not None and self.size == 1:
            self._turns.take()

    def _try(
        self, link: SupervisorLink, action: Callable[[], None], word: str = "problem", **about: int
    ) -> None:
        """Do what training can do without; if it fails, say so."""
        try:
            action()
        except TrainingError as error:
            link.tell(word, **error.parts(), **about)

    def attend(self) -> None:
        """Do what the supervisor asks between passes; come back when there is a group again."""
        while (link := self._link) is not None:
            if link.stop:
                self._exit()
            if link.regroup is not None:
                self._regroup(link, link.regroup)
            elif self.failed:
                self._pass_stats.alive()
                with link.changed:
                    link.changed.wait_for(lambda: link.regroup is not None or link.stop, 1.0)
            else:
                return

    def broke(self, failure: GroupError) -> None:
        """Take note that an exchange failed."""
        self.failed = True
        if self._link is not None:
            self._link.tell("broken", generation=self._generation.number, because=str(failure))

    def _regroup(self, link: SupervisorLink, generation: Generation) -> None:
        """Give up the broken group and this iteration; begin it again with the workers left."""
        with link.changed:
            while not link.stop and link.regroup is generation:
                if link.pending is not None and link.pending[0] is generation:
                    pending, link.pending, link.regroup = link.pending, None, None
                    break
                self._pass_stats.alive()
                link.changed.wait(0.5)
            else:
                return  # something newer came: look again
        self.failed = False
        self._forget_next()
        self._work.abandon()
        self._enter(link, *pending)

    def _enter_committed(self, link: SupervisorLink) -> None:
        committed, self._next = self._next, None
        if committed is None:
            if (committed := link.take_committed()) is None:
                return  # a regroup has revoked it
            if self._reads_ahead(link, *committed):
                self._next = committed
                return
        self._enter(link, *committed)

    def _reads_ahead(self, link: SupervisorLink, generation: Generation, groups: Groups) -> bool:
        """Read data ahead for a generation; return whether it is entered an update later."""
        if (loader := self._loader) is None:
            return False
        announced = loader.announced() if self.lingers else None
        talk = groups.bridge if generation.bridge else groups.talk
        if talk is not None and not set(generation.members) <= set(self.members):
            groups.be_patient_while(self._is_patient)
            with suppress(GroupError):  # which shows again when it is entered
                announced = packing.shared(talk, announced)
        if announced is not None and link.worker in generation.members:
            rank = generation.members.index(link.worker)
            if self._has_state:
                loader.expect(rank, generation.counts)
            else:
                loader.read_ahead(announced, rank, generation.counts)
        return self.lingers and bool(generation.members)

    def _forget_next(self) -> None:
        """Give up a group that was to be entered after the next update."""
        committed, self._next = self._next, None
        if committed is not None and committed[1] is not self.groups:
            committed[1].close()

    def _enter(self, link: SupervisorLink, generation: Generation, groups: Groups) -> None:
        """Work in a generation from here on, with the state of its most advanced member."""
        start_s = time.monotonic()
        was_main = self._started and self._rank == 0
        groups.be_patient_while(self._is_patient)
        try:
            if link.worker in generation.members or generation.bridge:
                self._take_state(generation, groups)
        except GroupError as failure:
            self._adopt(link, generation, groups)
            self.broke(failure)
            return
        except TrainingError as error:
            reject(link, error)
        self._keep_if_slices_grow(link, generation, is_main=was_main)
        state_s = time.monotonic() - start_s - self._handover.boundary_s
        if link.worker not in generation.members:
            if generation.parks:
                self._park(link, generation, is_main=was_main)
            elif generation.members or self._is_saved(link, generation, by_me=was_main):
                self._leave(link, generation)
            return
        self._adopt(link, generation, groups)
        pause = {"boundary_s": self._handover.boundary_s, "state_s": state_s}
        pause["swap_s"] = time.monotonic() - start_s - sum(pause.values())
        pause["state_s"], self._unpark_s = state_s + self._unpark_s, 0.0
        self._tell_swapped(link, generation, left=False, pause=pause)
        self._handover.close_ahead()

    def _keep_if_slices_grow(
        self, link: SupervisorLink, generation: Generation, *, is_main: bool
    ) -> None:
        """Have the state at hand if larger slices than ever turn out not to fit into memory."""
        largest = max(generation.counts, default=0)
        if is_main and self._largest and largest > self._largest:
            self._try(link, lambda: self._write_image(link, keep=True), "unsaved")
        self._largest = max(self._largest, largest)

    def _take_state(self, generation: Generation, groups: Groups) -> None:
        with self._pass_stats.timed("state"):
            via = groups.bridge if generation.bridge else groups.talk
            image = None if generation.image is None else Path(generation.image)
            self._handed = self._handover.synchronise(
                via, self._work, has_state=self._has_state, image=image
            )
            self._has_state = True

    def _adopt(self, link: SupervisorLink, generation: Generation, groups: Groups) -> None:
        with self._pass_stats.timed("swap"), link.changed:
            if self.groups is not groups:
                self.groups.close()
            link.current, link.groups = generation, groups
            self._generation, self.groups = generation, groups
            self._started = True
            if link.worker in generation.members:
                self._rank = generation.members.index(link.worker)
                self.size = len(generation.members)
                self._work.own(self._rank, generation.counts, groups, self._handed)

    def _is_saved(self, link: SupervisorLink, generation: Generation, *, by_me: bool) -> bool:
        """Before all leave, wait for the main worker's image to be on disk; if not, all stay.

        If the main worker dies, others still have all.
        """
        if by_me and not self._is_kept(link, generation.number):
            return False
        return self._all_come()

    def _all_come(self) -> bool:
        """Wait until all have come here; False: one never will."""
        try:
            if self.groups.talk is not None:
                self.groups.talk.finish(self.groups.talk.all_reduce(torch.zeros(1)))
        except GroupError as failure:
            self.broke(failure)
            return False
        return True

    def _park(self, link: SupervisorLink, generation: Generation, *, is_main: bool) -> None:
        """Empty the GPU and wait without it, to be taken into another group.

        No worker empties its GPU before the image is there; if it can't be written, all stay.
        """
        start_s = time.monotonic()
        try:
            path, empty_device = self._handover.park(writes=is_main)
        except TrainingError as error:
            link.tell("unsaved", **error.parts(), generation=generation.number)
            self.failed = True
            return
        if not self._all_come():
            return
        self._drop_groups(link)
        offloaded = empty_device()
        if path is not None:
            self._tell_image(link, path, time.monotonic() - start_s, parks=True)
        if offloaded.resident_bytes > RESIDENT_BYTES_MAX:
            what = "its workers are ended instead of parked"
            link.tell("problem", **kept_on_device(what, offloaded.resident_bytes).parts())
            self._leave(link, generation)
        with named(PARKED):
            link.unpark = False
            pause = {"state_s": time.monotonic() - start_s}
            bytes_ = self._handover.parked_bytes
            self._tell_swapped(link, generation, left=True, pause=pause, parked=bytes_)
            self._pass_stats.flush()
            with link.changed:
                link.changed.wait_for(lambda: link.unpark or link.stop)
            if link.stop:
                self._exit()
        start_s = time.monotonic()
        self._handover.unpark()
        self._unpark_s = time.monotonic() - start_s
        self.failed = True  # a regroup follows

    def _is_kept(self, link: SupervisorLink, generation: int) -> bool:
        """Write the last image, and wait for the supervisor's answer about it."""
        self._try(
            link,
            lambda: self._write_image(link, generation=generation),
            "unsaved",
            generation=generation,
        )
        with link.changed:
            while not (link.leave == generation or link.stop or link.regroup is not None):
                self._pass_stats.alive()
                link.changed.wait(1.0)
            return link.leave == generation

    def _leave(self, link: SupervisorLink, generation: Generation) -> None:
        self._tell_swapped(link, generation, left=True, pause={})
        self._pass_stats.flush()
        self._exit()

    def _exit(self) -> NoReturn:
        self.has_left = True
        raise WorkerExit(0)

    def _drop_groups(self, link: SupervisorLink) -> None:
        """Close the group that all have left; NCCL's holds GPU memory."""
        with link.changed:
            self.groups.close()
            self.groups = link.groups = Groups()
            link.current = None

    def _tell_swapped(
        self,
        link: SupervisorLink,
        generation: Generation,
        *,
        left: bool,
        pause: dict[str, float],
        parked: int | None = None,
    ) -> None:
        about = {"generation": generation.number, "step": self._work.step, "left": left}
        link.tell("swapped", **about, pause=pause, parked=parked)

    def _is_patient(self) -> bool:
        assert self._link is not None
        self._pass_stats.alive()
        return self._link.regroup is None and not self._link.stop

    def _write_image(self, link: SupervisorLink, **more: bool | int) -> None:
        start_s = time.monotonic()
        path = self._handover.write()
        self._tell_image(link, path, time.monotonic() - start_s, **more)

    def _tell_image(
        self, link: SupervisorLink, path: Path, seconds: float, **more: bool | int
    ) -> None:
        bytes_ = path.stat().st_size
        about = {"step": self._work.step, "bytes": bytes_, "seconds": seconds, **more}
        link.tell("image", path=str(path), **about)


def share_cores(workers: int) -> None:
    """Give this worker its part of the machine's cores, unless OMP_NUM_THREADS is set."""
    if "OMP_NUM_THREADS" not in os.environ:
        own = os.environ.get("CODDL_CPUS")  # how many its slot has, on a node with several jobs
        cores = int(own) if own else len(os.sched_getaffinity(0)) // workers
        torch.set_num_threads(max(1, cores))

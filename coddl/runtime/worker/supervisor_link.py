"""A worker's connection to its supervisor, and the groups it builds while training goes on.

A thread reads what the supervisor says. Nothing here changes what the training loop does: the loop
looks, between passes, at what lies ready.
"""

import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Self

from coddl.runtime.errors import TrainingError
from coddl.runtime.wire import Lines, Message, encoded
from coddl.runtime.worker.group import Group, GroupError, connect


@dataclass(frozen=True, slots=True)
class Generation:
    """The workers of a group and the virtual nodes of each, from one commit to the next."""

    number: int
    members: tuple[int, ...]  # oldest first: its rank is the place here
    counts: tuple[int, ...]  # virtual nodes of each
    bridge: tuple[
        int, ...
    ] = ()  # when no member has the state: the worker that hands it over, then those that get it
    image: str | None = None  # where state comes from when no living worker has it
    parks: bool = False  # without members: they are to stay, without their GPUs
    store: tuple[str, int] = ("", 0)
    backend: str = "gloo"

    @classmethod
    def told(cls, message: Message) -> Self:
        """Read it from the supervisor's message."""
        return cls(
            number=message["generation"],
            members=tuple(message["members"]),
            counts=tuple(message["counts"]),
            bridge=tuple(message.get("bridge") or ()),
            image=message.get("image"),
            parks=message.get("park", False),
            store=(message["store"][0], message["store"][1]),
            backend=message.get("backend", "gloo"),
        )


@dataclass(slots=True)
class Groups:
    """What the members of a generation talk over. None where one would be alone."""

    train: Group | None = None  # gradients
    talk: Group | None = None  # everything else, so that the order of gradients is never disturbed
    bridge: Group | None = None  # state, when no member has it

    def be_patient_while(self, patient: Callable[[], bool]) -> None:
        """Have every wait in them go on only while that holds."""
        for group in (self.train, self.talk, self.bridge):
            if group is not None:
                group.may_wait = patient

    def close(self) -> None:
        """Drop them all, without waiting for it."""
        groups = [group for group in (self.train, self.talk, self.bridge) if group is not None]
        if groups:
            threading.Thread(
                target=_drop_all, args=(groups,), name="coddl-close", daemon=True
            ).start()


def reject(link: "SupervisorLink", error: TrainingError) -> NoReturn:
    """Report a script's error to the supervisor, and exit without a traceback."""
    link.tell("rejected", **error.parts())
    raise SystemExit(2) from error


def _drop_all(groups: list[Group]) -> None:
    for group in groups:
        group.drop()


class SupervisorLink:
    """The newest requests of the supervisor; the training loop reads them between passes."""

    def __init__(self, wire: socket.socket, worker: int, host: str) -> None:
        self.worker = worker
        self.host = host
        self.changed = threading.Condition(threading.RLock())
        self.pending: tuple[Generation, Groups] | None = None  # built, waiting for its commit
        self.commit: tuple[int, int] | None = None  # generation, first step after which
        self.regroup: Generation | None = None
        self.capture = False
        self.stop = False
        self.leave: int | None = None  # the generation by which all leave: its state is on disk
        self.unpark = False  # its GPU is its own again
        self.turn_end: bool | None = None  # its turn is to end; True: its tensors stay on the GPU
        self.turn_begin = False  # while it waits: its turn has come
        self.awaits_turn = False  # kept by the training loop
        self.current: Generation | None = None  # kept by the training loop
        self.groups = Groups()
        self.on_gpu = False  # is the model; NCCL can't send what is not
        self._wire = wire
        self._sending = threading.Lock()
        self._building: Generation | None = None
        threading.Thread(target=self._listen, name="coddl-link", daemon=True).start()

    @classmethod
    def from_environment(cls) -> Self | None:
        """Find the supervisor that started this process, if one did."""
        number = os.environ.pop("CODDL_SOCKET", None)  # ours alone, not of what we may start
        if number is None:
            return None
        wire = socket.socket(fileno=int(number))
        os.set_inheritable(int(number), False)
        return cls(wire, int(os.environ["CODDL_WORKER"]), os.environ.get("CODDL_HOST", "127.0.0.1"))

    def tell(self, kind: str, **fields: Any) -> None:
        """Send a message; a supervisor that is gone takes us along, so failures don't matter."""
        try:
            with self._sending:
                self._wire.sendall(encoded({"is": kind, **fields}))
        except OSError:
            self._hang_up()

    def tell_metrics(self, metrics: dict[str, float], loss: Message | None) -> None:
        """Send numbers to the job's status, and a mean loss; JSON knows no infinity."""
        known = {name: x if math.isfinite(x) else None for name, x in metrics.items()}
        self.tell("metrics", values=known, loss=loss)

    def due(self, step: int) -> bool:
        """Return whether a commit is here, its group is built, and this step may be the one."""
        with self.changed:
            return (
                self.commit is not None
                and self.pending is not None
                and self.pending[0].number == self.commit[0]
                and step >= self.commit[1]
            )

    def take_committed(self) -> tuple[Generation, Groups] | None:
        """Hand the committed generation to the training loop; None if a regroup has revoked it.

        Then the regroup's own group may lie ready by now: it is not entered this way.
        """
        with self.changed:
            if not self.due(sys.maxsize):
                return None
            committed, self.pending, self.commit = self.pending, None, None
        return committed

    def _listen(self) -> None:
        lines = Lines()
        while True:
            try:
                data = self._wire.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                self._hang_up()
                return
            for message in lines.feed(data):
                with self.changed:
                    self._on(message)
                    self.changed.notify_all()

    def _hang_up(self) -> None:
        with self.changed:
            self.stop = True
            self.changed.notify_all()

    def _on(self, message: Message) -> None:
        match message["do"]:
            case "prepare":
                self._begin_building(Generation.told(message))
            case "commit":
                self.commit = (message["generation"], message["step"])
            case "cancel":
                self._cancel(message["generation"])
            case "regroup":
                self._cancel()
                self.regroup = Generation.told(message)
                self._begin_building(self.regroup)
            case "capture":
                self.capture = True
            case "leave":
                self.leave = message["generation"]
            case "unpark":
                self.unpark, self.turn_end = True, None  # what still counts is sent again
            case "end turn":
                self.turn_end, self.turn_begin = bool(message["resident"]), False
            case "begin turn":
                self._begin_turn()
            case "stop":
                self.stop = True

    def _begin_turn(self) -> None:
        self.turn_end = None
        if self.awaits_turn:
            self.turn_begin = True
        else:  # it has not come to its end
            self.tell("turn begun", seconds=0.0)

    def _begin_building(self, generation: Generation) -> None:
        self._building = generation
        threading.Thread(
            target=self._build, args=(generation,), name="coddl-build", daemon=True
        ).start()

    def _cancel(self, generation: int | None = None) -> None:
        """Forget what is not in use yet: one generation, or whichever there is."""
        if self._building is not None and generation in (None, self._building.number):
            self._building = None
        if self.pending is not None and generation in (None, self.pending[0].number):
            if self.pending[1] is not self.groups:
                self.pending[1].close()
            self.pending = None
        if self.commit is not None and generation in (None, self.commit[0]):
            self.commit = None

    def _build(self, generation: Generation) -> None:
        """Build the groups of a generation next to those in use; runs in a thread."""
        started = time.monotonic()
        try:
            if generation is self.regroup and self.groups.train is not None:
                # A peer's death need not show on the GPU, where its kernels would wait for ever.
                self.groups.train.abort()
            groups = self._built(generation)
        except GroupError as failure:
            self.tell("unready", generation=generation.number, because=str(failure))
            return
        except Exception as failure:  # a defect of ours, or of torch's: the others must not wait
            self.tell("unready", generation=generation.number, because=repr(failure))
            raise
        with self.changed:
            if self._building is not generation:  # cancelled meanwhile
                if groups is not self.groups:
                    groups.close()
                return
            self.pending = (generation, groups)
            self.changed.notify_all()
        self.tell("ready", generation=generation.number, prepare_s=time.monotonic() - started)

    def _built(self, generation: Generation) -> Groups:
        """Build the groups that this worker needs for a generation; raises `Broken`."""
        current = self.current
        if generation is not self.regroup and current and current.members == generation.members:
            return self.groups  # only virtual nodes move
        groups = Groups()
        try:
            groups.talk = self._joined(generation, generation.members, "talk", "gloo")
            backend = generation.backend if self.on_gpu else "gloo"
            groups.train = self._joined(generation, generation.members, "train", backend)
            groups.bridge = self._joined(generation, generation.bridge, "bridge", "gloo")
        except Exception:
            groups.close()
            raise
        return groups

    def _joined(
        self, generation: Generation, members: tuple[int, ...], use: str, backend: str
    ) -> Group | None:
        if self.worker not in members or len(members) < 2:
            return None
        return connect(
            generation.store,
            f"{generation.number}-{use}",
            members.index(self.worker),
            len(members),
            backend=backend,
            host=self.host,
        )

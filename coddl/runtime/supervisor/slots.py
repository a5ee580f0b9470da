"""Slots of a job, addresses of the nodes they are on, and what a node's agent provides there."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from coddl.runtime.wire import Message


@dataclass(frozen=True, slots=True)
class Slot:
    """A device that is given to a job."""

    number: int  # of the device, unique in the pool
    node: str
    gpu: str | None = None  # as CUDA_VISIBLE_DEVICES wants it; None: no GPU


@dataclass(frozen=True, slots=True)
class HostAddress:
    """Where the job host server of a node listens, and its token."""

    node: str
    host: str
    port: int
    token: str = field(repr=False)


class RemoteFiles(Protocol):
    """The files of one job at a URI, by name. Every call may raise OSError."""

    @property
    def uri(self) -> str:
        """Give where they are, for people."""
        ...

    def names(self) -> list[str]:
        """List the files that are there; written a moment ago, by any node, counts."""
        ...

    def read(self, name: str, to: Path) -> None:
        """Copy a file to a path."""
        ...

    def write(self, name: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Write a file, all of it or nothing, in the place of an older one; it is durable then."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is no mistake."""
        ...


def uri_for(files: RemoteFiles | None) -> str:
    """Give the URI where a job may keep files of its own; empty if there is none."""
    return "" if files is None else f"{files.uri}/files"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnvironment:
    """What a job's workers run in on one node, as the agent there knows it."""

    python: str
    cwd: Path
    env: Mapping[str, str]  # all of it: nothing of the agent's own is added
    folder: Path  # of the checkpoints; the same files on every node, unless they are remote
    remote: RemoteFiles | None = None  # then the checkpoints are there, and copies in the folder
    cpus: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # slot -> its cores


@dataclass(frozen=True, slots=True)
class SlotProcess:
    """The process that is on a slot."""

    job: str
    attempt: int
    pid: int | None  # None: it is being forked right now
    gpu: str | None = None  # that it was given
    awaits_turn: bool = False  # it has ended its turn, and waits for the next one


Parked = Mapping[str, Sequence[SlotProcess]]  # by job: the processes that wait without their GPUs


class HostingAgent(Protocol):
    """The agent of a node, as its job hosts see it; called in the job host server's thread."""

    def environment_of(self, job: str) -> JobEnvironment | None:
        """Tell what a job runs in; None: not known here yet."""
        ...

    def owner_of(self, slot: int) -> tuple[str, int] | None:
        """Tell to which (job, attempt) a slot is given now."""
        ...

    def expects(self, job: str) -> bool:
        """Tell whether a job has a slot here: then its lead may connect."""
        ...

    def keeps_parked(self, job: str) -> bool:
        """Tell whether parked workers of a job may stay though no slot is the job's."""
        ...

    def takes_turns(self, job: str, slot: int) -> bool:
        """Tell whether a job shares a slot with others by turns, so that it may wait for one."""
        ...

    def on_holding(self, held: Mapping[int, SlotProcess], parked: Parked) -> None:
        """Hear which processes are on this node's slots, after every change and `look_again`.

        Parked workers are not among them, nor those that wait for a turn that will come.

        It is complete at this moment, and no start is under way: paired with the table of slots
        that `owner_of` answers from now, it is true.
        """
        ...

    def on_log(self, job: str, worker: int, rank: int | None, stream: str, text: str) -> None:
        """Hear a line that a worker printed; `stream` is stdout or stderr."""
        ...

    def on_warm(self, python: str, about: Message) -> None:
        """Hear that an interpreter is warm ({torch, gpus}), or can't be ({what, because, try})."""
        ...

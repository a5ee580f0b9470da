"""What the supervisor knows of its workers; pure bookkeeping."""

import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from coddl.runtime.supervisor.seats import Seat
from coddl.runtime.wire import Message

FORGETTING: Final = 0.8  # weight of what was known, at each report of progress


@dataclass(slots=True)
class Figures:
    """A worker's recent speed: sums in which older reports weigh less and less.

    A report's `pass_s` is the mean of its passes; the other times are sums over its iterations.
    """

    window_s: float = 0.0
    iterations: float = 0.0
    samples: float = 0.0
    pass_s: float = 0.0
    data_wait_s: float = 0.0
    exchange_s: float = 0.0

    def add(self, stepped: Message) -> None:
        """Take in a report of progress."""
        iterations = float(stepped["iterations"])
        for name in self.__slots__:
            more = float(stepped.get(name) or 0.0) * (iterations if name == "pass_s" else 1.0)
            setattr(self, name, getattr(self, name) * FORGETTING + more)

    def means(self) -> Message:
        """Give the seconds of a pass, and those of an iteration that went elsewhere."""
        iterations = self.iterations or 1.0
        names = ("pass_s", "data_wait_s", "exchange_s")
        return {name: getattr(self, name) / iterations for name in names}

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.window_s if self.window_s else 0.0


@dataclass(slots=True)
class WorkerNotes:
    """What is known of one worker."""

    number: int
    seat: Seat
    started_s: float
    heard_s: float  # when its main thread last gave a sign
    joins: bool = False  # others train when it starts
    is_first: bool = False  # nobody else ran when it started
    pid: int | None = None
    has_prepared: bool = False  # called coddl.prepare
    has_arrived: bool = False  # came to its loop
    has_ended: bool = False  # its loop is over
    has_left: bool = False  # it swapped out of the group
    is_unwanted: bool = False  # we are ending it ourselves
    is_resting: bool = False  # between two epochs: what it does there may take its time
    ran_out_of_memory: bool = False
    step: int = 0
    owns: int = 0  # parts of the global batch: samples, or virtual nodes
    figures: Figures = field(default_factory=Figures)

    @property
    def slot(self) -> int:
        return self.seat.slot

    @property
    def state(self) -> str:
        if self.is_unwanted or self.has_left:
            return "LEAVING"
        if self.has_ended:
            return "ENDING"
        if self.owns:
            return "RUNNING"
        return "WAITING" if self.has_arrived else "STARTING"

    def as_data(self) -> Message:
        """Give what `status` shows."""
        return {
            "worker": self.number,
            "slot": self.slot,
            "node": self.seat.node,
            "pid": self.pid,
            "state": self.state,
            "step": self.step,
            "share": self.owns,
            **self.figures.means(),
        }


def samples_per_s(workers: Iterable[WorkerNotes]) -> float:
    """Sum up what the members get done."""
    return sum(notes.figures.samples_per_s for notes in workers if notes.owns)


def signal_name(number: int) -> str:
    """Name a signal; not all of them have a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

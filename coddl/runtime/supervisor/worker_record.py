"""What the supervisor knows of each worker. Pure."""

import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from coddl.runtime.supervisor.slots import Slot
from coddl.runtime.wire import Message

FORGETTING: Final = 0.8  # weight of what was known, at each report of progress


@dataclass(slots=True)
class WorkerSpeed:
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
class WorkerRecord:
    """What is known of one worker."""

    number: int
    slot: Slot
    started_s: float
    heard_s: float  # when its main thread last gave a sign
    joins: bool = False  # others train when it starts
    is_first: bool = False  # no other worker ran when it started
    pid: int | None = None
    has_prepared: bool = False  # called coddl.prepare
    has_arrived: bool = False  # came to its loop
    has_ended: bool = False  # its loop is over
    has_left: bool = False  # it swapped out of the group
    is_parked: bool = False  # it has left the group, and waits without its GPU
    awaits_turn: bool = False  # of the group, while another job has its slot
    image: str | None = None  # what it waits with: its state, moved out of its GPU
    is_unwanted: bool = False  # we are ending it ourselves
    is_resting: bool = False  # between two epochs: what it does there may take its time
    ran_out_of_memory: bool = False
    is_crowded_out: bool = False  # it did, because of other jobs on its device
    step: int = 0
    owns: int = 0  # parts of the global batch: samples, or virtual nodes
    speed: WorkerSpeed = field(default_factory=WorkerSpeed)

    @property
    def state(self) -> str:
        if self.is_parked:
            return "PARKED"
        if self.is_unwanted or self.has_left:
            return "LEAVING"
        if self.has_ended:
            return "ENDING"
        if self.awaits_turn:
            return "WAITING"
        if self.owns:
            return "RUNNING"
        return "WAITING" if self.has_arrived else "STARTING"

    def as_data(self) -> Message:
        """Give what `status` shows."""
        return {
            "worker": self.number,
            "slot": self.slot.number,
            "node": self.slot.node,
            "pid": self.pid,
            "state": self.state,
            "step": self.step,
            "share": self.owns,
            **self.speed.means(),
        }


def samples_per_s(workers: Iterable[WorkerRecord]) -> float:
    """Sum up what the members get done."""
    return sum(record.speed.samples_per_s for record in workers if record.owns)


def signal_name(number: int) -> str:
    """Name a signal; not all of them have a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

"""A worker as its lead knows it: its history, and what only the lead knows. Pure."""

import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from coddl.runtime.supervisor.generations import Survivor
from coddl.runtime.supervisor.slots import Slot
from coddl.runtime.supervisor.worker_history import WorkerHistory
from coddl.runtime.wire import Message

FORGETTING: Final = 0.8  # weight of what was known, at each report of progress

# What only a worker's main thread says; its other threads speak even while that one hangs.
MAIN_THREAD: Final = frozenset(
    {"arrived", "swapped", "stepped", "broken", "image", "alive", "metrics", "resting", "ended"}
    | {"turn ended"}
)


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
    """One worker of a job."""

    history: WorkerHistory
    node: str
    started_s: float
    heard_s: float  # when its main thread last gave a sign
    turn_begun_s: float = 0.0  # when it went on after it had waited for its turn
    joins: bool = False  # others train when it starts
    is_first: bool = False  # no other worker ran when it started
    is_unwanted: bool = False  # we are ending it ourselves
    is_resting: bool = False  # between two epochs: what it does there may take its time
    has_stepped: bool = False  # it has told of progress, to us or to an earlier lead
    ran_out_of_memory: bool = False
    is_crowded_out: bool = False  # it did, because of other jobs on its device
    owns: int = 0  # parts of the global batch: samples, or virtual nodes
    speed: WorkerSpeed = field(default_factory=WorkerSpeed)

    @property
    def number(self) -> int:
        return self.history.worker

    @property
    def slot(self) -> Slot:
        return Slot(self.history.slot, self.node, self.history.gpu)

    @property
    def survivor(self) -> Survivor:
        """Give what the coordinator must know to have it regroup."""
        history = self.history
        return Survivor(history.worker, history.slot, history.step, history.has_state)

    def hear(self, message: Message, now_s: float) -> None:
        """Take in what it says."""
        awaited_turn = self.history.awaits_turn
        self.history.heard(message)
        if message["is"] in MAIN_THREAD:
            self.heard_s = now_s
            self.is_resting = message["is"] == "resting"
        if message["is"] == "stepped":
            self.has_stepped = True
            self.speed.add(message)
        if awaited_turn and not self.history.awaits_turn:
            self.heard_s = self.turn_begun_s = now_s

    @property
    def state(self) -> str:
        if self.history.is_parked:
            return "PARKED"
        if self.is_unwanted or self.history.has_left:
            return "LEAVING"
        if self.history.has_ended:
            return "ENDING"
        if self.history.awaits_turn:
            return "WAITING"
        if self.owns:
            return "RUNNING"
        return "WAITING" if self.history.has_arrived else "STARTING"

    def as_data(self) -> Message:
        """Give what `status` shows."""
        return {
            "worker": self.number,
            "slot": self.history.slot,
            "node": self.node,
            "pid": self.history.pid,
            "state": self.state,
            "step": self.history.step,
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

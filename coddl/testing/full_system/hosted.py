"""The workers of a job on a node, as its job host there looks after them."""

import signal
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor.checkpoint_store import Checkpoints
from coddl.runtime.supervisor.checkpoint_writer import saved_word
from coddl.runtime.supervisor.hosted_workers import HostedListener
from coddl.runtime.supervisor.worker_history import WorkerHistory
from coddl.runtime.wire import Message
from coddl.testing.full_system.states import State
from coddl.testing.full_system.trainer import Trainer
from coddl.testing.full_system.virtual_loop import VirtualLoop

STORE_S: Final = 0.02  # that a store takes to be hosted
WARM: Final[Message] = {"is": "warm", "torch": "simulated", "gpus": 0}
_ports = count(1)


class SimulatedWriter:
    """Saves images, each after some time; an `ImageWriter`."""

    def __init__(self, loop: VirtualLoop, save_s: float, checkpoints: Callable[[], Checkpoints]):
        self._loop, self._save_s = loop, save_s
        self._checkpoints = checkpoints
        self._under_way = 0
        self._numbers = count()

    @property
    def is_busy(self) -> bool:
        """Tell whether an image is being saved."""
        return self._under_way > 0

    def save(self, image: Path, on_word: Callable[[Message], None]) -> None:
        """Make an image durable; `saved` or `unsaved` is said."""
        self._under_way += 1
        at_s = self._loop.now_s() + self._save_s
        name = (self, next(self._numbers))
        self._loop.alarm(name, at_s, partial(self._finish, image, on_word))

    def _finish(self, image: Path, on_word: Callable[[Message], None]) -> None:
        self._under_way -= 1
        try:
            word = saved_word(self._checkpoints().save(image))
        except TrainingError as error:
            word = {"is": "unsaved", **error.parts()}
        on_word(word)

    def fetch(self, checkpoint: Path, on_end: Callable[[Path | Exception], None]) -> None:
        """Find a checkpoint where it is: all nodes share the folder."""
        on_end(checkpoint)

    def close(self, *, wait: bool) -> None:
        """Take no more."""


TrainerMaker = Callable[["SimulatedWorkers", int, int], Trainer]  # by number and slot


class SimulatedWorkers:
    """Runs a job's workers on a node; `HostedWorkers`, of trainers instead of processes."""

    def __init__(
        self,
        loop: VirtualLoop,
        node: str,
        listener: HostedListener,
        make: TrainerMaker,
        is_led: Callable[[], bool],
    ) -> None:
        self.node = node
        self.images: dict[Path, State] = {}
        self.generation = 0
        self.newest_worker = -1
        self.writer: SimulatedWriter
        self._loop, self._listener = loop, listener
        self._make, self._is_led = make, is_led
        self._workers: dict[int, tuple[WorkerHistory, Trainer]] = {}
        loop.post(partial(listener.on_word, WARM))

    @property
    def attempt(self) -> int:
        return self._listener.attempt()

    @property
    def is_led(self) -> bool:
        """Tell whether a lead hears what workers say."""
        return self._is_led()

    @property
    def histories(self) -> list[WorkerHistory]:
        """The histories of all workers here, the oldest first."""
        return [history for history, _ in self._workers.values()]

    def do(self, request: Message) -> None:
        """Take a request."""
        match request["do"]:
            case "start":
                self._start(request["worker"], request["slot"], request["gpu"])
            case "tell":
                self._tell(request["to"], request["word"])
            case "kill":
                self.kill(request["worker"], request["signal"])
            case "rendezvous":
                where = {"host": self.node, "port": next(_ports)}
                word = {"is": "rendezvous", "store": request["store"], **where}
                say = partial(self._listener.on_word, word)
                self._loop.alarm((self, "store"), self._loop.now_s() + STORE_S, say)
            case "save":
                self.writer.save(Path(request["path"]), self._listener.on_word)
            case unknown:
                raise AssertionError(unknown)

    def _start(self, number: int, slot: int, gpu: str | None) -> None:
        self.newest_worker = max(self.newest_worker, number)
        self._workers[number] = (WorkerHistory(number, slot, gpu), self._make(self, number, slot))

    def _tell(self, numbers: list[int], word: Message) -> None:
        for number in numbers:
            if number in self._workers:
                history, trainer = self._workers[number]
                history.told(word)
                self.generation = max(self.generation, history.generation)
                self.newest_worker = max(self.newest_worker, history.newest_worker)
                trainer.tell(word)

    def kill(self, number: int, signal_: int = signal.SIGKILL) -> None:
        """Send a worker a signal, if it still lives."""
        if number in self._workers:
            self._workers[number][1].be_killed(signal_)

    def kill_all(self) -> None:
        """Kill every worker; `exited` is said of each."""
        for number in list(self._workers):
            self.kill(number)

    def close(self) -> None:
        """End everything that runs."""
        self._loop.silence((self, "store"))
        self.kill_all()

    # What workers do: heard when the process runs.

    def hear(self, worker: int, word: Message) -> None:
        """Hear what a worker says."""
        self._loop.post(partial(self._hear, worker, word))

    def _hear(self, worker: int, word: Message) -> None:
        if (known := self._workers.get(worker)) is None:
            return
        if word["is"] == "forked":
            self._listener.on_word({"is": "forked", "worker": worker, "pid": None})
            return
        known[0].heard(word)
        self._listener.on_word({"is": "said", "worker": worker, "word": word})

    def on_exit(self, worker: int, code: int) -> None:
        """Hear that a worker is gone."""
        self._loop.post(partial(self._part, worker, code))

    def _part(self, worker: int, code: int) -> None:
        history, _ = self._workers.pop(worker)
        about = {"worker": worker, "code": code, "because": None}
        self._listener.on_word({"is": "exited", **about, "has_ended": history.has_ended})

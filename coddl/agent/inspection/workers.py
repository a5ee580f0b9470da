"""The workers of an inspection on this node: forks like those of jobs, asked and answering."""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from coddl.agent.inspection.sweeps import InspectionSlot
from coddl.agent.job_environments import base_env
from coddl.agent.node_resources import threads_of
from coddl.core.errors import UserError
from coddl.runtime.supervisor.environment import ON_ONE_GPU, SURVIVING
from coddl.runtime.supervisor.fork_server_client import ForkServerClient, Interpreter
from coddl.runtime.supervisor.loop import Channel, LogPipe, Loop
from coddl.runtime.wire import Message

ANSWER_S: Final = 300.0  # for one sweep; shared machines are slow
LAST_LINES: Final = 5  # of a worker's output that are kept
DEADLINE: Final = "deadline"  # the name of an alarm
SCRIPT: Final = Path(__file__).parents[2] / "runtime" / "inspection" / "worker.py"

OnAnswer = Callable[[Message], None]


class MeasurementFailed(Exception):
    """Something could not be measured; the rest may be."""


def until(loop: Loop, is_done: Callable[[], bool], within_s: float) -> bool:
    """Turn the loop until that holds; False if time runs out first."""
    at_s = time.monotonic() + within_s
    loop.alarm(DEADLINE, at_s, lambda: None)
    try:
        while not is_done():
            if time.monotonic() >= at_s:
                return False
            loop.turn()
        return True
    finally:
        loop.silence(DEADLINE)


class InspectionWorkers:
    """Workers on the slots of this node; all are gone at the end."""

    def __init__(self, slots: Sequence[InspectionSlot], devices: int, cores: int) -> None:
        self.loop = Loop()
        self._slots = slots
        env = base_env(os.environ, threads_of(devices, cores)) | SURVIVING
        interpreter = Interpreter(sys.executable, Path.cwd(), env)
        self._fork_server = ForkServerClient(self.loop, interpreter, self._hear)
        self._channels: list[Channel] = []
        self._pipes: list[LogPipe] = []
        self._pending: dict[int, OnAnswer] = {}  # by worker
        self._lines: list[str] = []
        self._store_ports: list[int] = []
        self._problem: UserError | None = None

    def __enter__(self) -> Self:
        self._fork_server.start()
        for number, slot in enumerate(self._slots):
            env = {"CODDL_WORKER": f"{number}", "CUDA_VISIBLE_DEVICES": slot.gpu or ""}
            if ON_ONE_GPU in os.environ:
                env |= {"NCCL_HOSTID": f"inspect-{number}", "NCCL_SOCKET_IFNAME": "lo"}
            pipes = self._fork_server.fork(number, [str(SCRIPT)], env, slot.cores)
            self._channels.append(Channel(self.loop, pipes.control, partial(self._answer, number)))
            for end in (pipes.stdout, pipes.stderr):
                self._pipes.append(LogPipe(self.loop, end, self._keep))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for channel in self._channels:
            channel.close()
        self._fork_server.close()
        for pipe in self._pipes:
            pipe.finish()
        self.loop.close()

    def __len__(self) -> int:
        return len(self._slots)

    def wait_warm(self) -> None:
        """Wait until torch is imported and workers are forked."""
        self._until(lambda: self._fork_server.is_warm)

    def store_at(self, host: str) -> tuple[str, int]:
        """Host a store by which workers find each other, at an address of this machine."""
        self.wait_warm()
        self._store_ports.clear()
        self._fork_server.rendezvous(host, 0)
        self._until(lambda: bool(self._store_ports))
        return host, self._store_ports[0]

    def send(self, worker: int, request: Message, on_answer: OnAnswer) -> None:
        """Have a worker do something; `on_answer` is called when the loop hears of it."""
        self._pending[worker] = on_answer
        self._channels[worker].send(request)

    def ask(self, requests: Mapping[int, Message]) -> dict[int, Message]:
        """Have workers do something, each its own, and wait for all of them.

        Raises MeasurementFailed if one of them can't.
        """
        answers: dict[int, Message] = {}
        for worker, request in requests.items():
            self.send(worker, request, partial(answers.__setitem__, worker))
        self._until(lambda: len(answers) == len(requests))
        for answer in answers.values():
            if answer["is"] == "failed":
                raise MeasurementFailed(answer["because"])
        return answers

    def check(self) -> None:
        """Raise UserError if workers are gone."""
        if self._problem is not None:
            raise self._problem

    def _until(self, is_done: Callable[[], bool]) -> None:
        if not until(self.loop, lambda: self._problem is not None or is_done(), ANSWER_S):
            because = f"its workers have not answered for {ANSWER_S:.0f} s"
            raise UserError("the inspection is given up", because, "coddl inspect --again")
        self.check()

    def _answer(self, worker: int, answer: Message) -> None:
        if (on_answer := self._pending.pop(worker, None)) is not None:
            on_answer(answer)

    def _hear(self, message: Message) -> None:
        match message["is"]:
            case "rendezvous":
                if "error" in message:
                    self._fail(message["error"], "--listen with an address of this machine")
                else:
                    self._store_ports.append(message["port"])
            case "exited" | "storeless":
                for pipe in self._pipes:
                    pipe.finish()
                said = self._lines[-1:] or [f"it exited with code {message.get('code')}"]
                self._fail(f"a worker has ended: {said[0]}", "coddl doctor")
            case "lost":
                said = self._fork_server.last_words[-1:] or [f"exit code {message['code']}"]
                self._fail(said[0], "pip install 'coddl[runtime]'; coddl doctor")

    def _fail(self, because: str, try_: str) -> None:
        if self._problem is None:
            self._problem = UserError("this machine can't be inspected", because, try_)

    def _keep(self, line: str) -> None:
        self._lines = [*self._lines, line][-LAST_LINES:]

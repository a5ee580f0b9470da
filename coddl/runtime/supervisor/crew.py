"""The workers of a job as processes: started, spoken to, listened to, ended."""

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor.generations import Plan
from coddl.runtime.supervisor.job import Job
from coddl.runtime.supervisor.ledger import WorkerNotes
from coddl.runtime.supervisor.loop import Channel, LogPipe, Loop
from coddl.runtime.supervisor.warmpool import Interpreter, WarmPool
from coddl.runtime.wire import Message

LEAVER_WAIT_S: Final = 5.0  # after its swap a leaver has nothing to do but exit
STOP_WAIT_S: Final = 3.0  # between SIGTERM and SIGKILL
HOST: Final = "127.0.0.1"
STORES_MAX: Final = 5  # that may end in a row before they served

# What only a worker's main thread says; its other threads speak even while that one hangs.
MAIN_THREAD: Final = frozenset(
    {"arrived", "swapped", "stepped", "broken", "image", "alive", "metrics", "ended"}
)


class Listener(Protocol):
    """Whoever leads the crew."""

    def tell(self, event: Message) -> None: ...
    def fail(self, error: TrainingError, code: int) -> None: ...
    def on_warm(self) -> None: ...
    def on_store(self) -> None: ...
    def on_store_lost(self) -> None: ...
    def on_word(self, notes: WorkerNotes, message: Message) -> None: ...
    def on_gone(self, notes: WorkerNotes, code: int) -> None: ...


class _Worker:
    """A worker's notes and what connects us with it."""

    def __init__(self, notes: WorkerNotes, channel: Channel, logs: tuple[LogPipe, LogPipe]) -> None:
        self.notes = notes
        self.channel = channel
        self.logs = logs

    def close(self) -> None:
        """Hear the last words of a process that is gone."""
        for log in self.logs:
            log.finish()
        self.channel.drain()
        self.channel.close()


class Crew:
    """The zygote, the store and the workers; calls its listener from the loop."""

    def __init__(self, loop: Loop, job: Job, stash: str, listener: Listener) -> None:
        self._loop = loop
        self._job = job
        self._listener = listener
        self._pool = WarmPool(loop, Interpreter(job.python, job.cwd, job.env), self._on_pool)
        self._workers: dict[int, _Worker] = {}
        self._env = {
            "CODDL_JOB": job.name,
            "CODDL_STASH": stash,
            "CODDL_HOST": HOST,
            "CODDL_TRACE": "1" if job.trace else "",
        }
        self.gpus: int | None = None  # until torch is imported
        self._stores_lost = 0  # in a row
        self.store: tuple[str, int] | None = None

    def open(self) -> None:
        """Start the zygote and the store."""
        self.store = None
        self._pool.start()
        self._pool.rendezvous(self._job.port)

    def close(self) -> None:
        """End everything that runs."""
        self._pool.close()
        for worker in self._workers.values():
            worker.close()

    @property
    def notes(self) -> list[WorkerNotes]:
        """Everybody who runs, the oldest first."""
        return [worker.notes for worker in self._workers.values()]

    def start(self, number: int, slot: int, *, joins: bool) -> None:
        """Start a worker on a slot; one that joins others while they train may take its time."""
        env = {**self._env, "CODDL_WORKER": str(number), "CODDL_SLOT": str(slot)}
        env["CODDL_REHEARSE"] = "1" if joins else ""
        env["CODDL_MAIN"] = "" if self._workers else "1"
        if (gpu := self._job.gpu_of(slot, self.gpus or 0)) is not None:
            env["CUDA_VISIBLE_DEVICES"] = gpu
        now_s = time.monotonic()
        notes = WorkerNotes(number, slot, started_s=now_s, heard_s=now_s)
        pipes = self._pool.fork(number, self._job.argv, env)
        channel = Channel(self._loop, pipes.control, lambda message: self._hear(notes, message))
        logs = (
            LogPipe(self._loop, pipes.stdout, lambda line: self._log(number, "stdout", line)),
            LogPipe(self._loop, pipes.stderr, lambda line: self._log(number, "stderr", line)),
        )
        self._workers[number] = _Worker(notes, channel, logs)

    def send(self, numbers: Iterable[int], message: Message) -> None:
        """Send a message to workers; those that are gone hear nothing."""
        for number in numbers:
            if number in self._workers:
                self._workers[number].channel.send(message)

    def build(self, plan: Plan, to: Iterable[int], image: Path | None, *, regroup: bool) -> None:
        """Have workers build the group of a plan: beside their own, or in its place."""
        assert self.store is not None
        slots = [notes.slot for notes in self.notes if notes.number in plan.members + plan.bridge]
        # NCCL refuses two workers on one GPU.
        alone = self.gpus and len({slot % self.gpus for slot in slots}) == len(slots)
        message = {
            "do": "regroup" if regroup else "prepare",
            "generation": plan.generation,
            "members": plan.members,
            "counts": plan.counts,
            "bridge": plan.bridge,
            "image": None if image is None else str(image),
            "store": self.store,
            "backend": "nccl" if alone else "gloo",
        }
        self.send(to, message)
        if regroup:
            self.guard(plan.members)

    def stop(self, number: int) -> None:
        """End a worker that owns nothing."""
        if number in self._workers:
            self._workers[number].notes.is_unwanted = True
            self.send([number], {"do": "stop"})
            self._pool.kill(number)

    def kill(self, number: int) -> None:
        """Kill a worker that can't be helped; it counts as lost."""
        self._pool.kill(number)

    def stop_all(self) -> None:
        """Ask every worker to end, and see to it that it does."""
        for number, worker in self._workers.items():
            worker.notes.is_unwanted = True
            self._pool.kill(number, signal.SIGTERM)
        self._loop.alarm("stop", time.monotonic() + STOP_WAIT_S, self.kill_all)

    def kill_all(self) -> None:
        for number in self._workers:
            self._pool.kill(number)

    def expect_exit(self, number: int) -> None:
        """Kill a leaver that does not leave."""
        at_s = time.monotonic() + LEAVER_WAIT_S
        self._loop.alarm(("leaver", number), at_s, lambda: self._pool.kill(number))

    def guard(self, numbers: Iterable[int]) -> None:
        """Kill workers, from now on, whenever their main thread is silent for too long."""
        for number in numbers:
            if number in self._workers:
                self._workers[number].notes.heard_s = time.monotonic()
                self._watch(number)

    def _watch(self, number: int) -> None:
        worker = self._workers.get(number)
        if worker is None or worker.notes.has_ended or worker.notes.has_left:
            return
        limit_s, silent_s = self._job.watchdog_s, time.monotonic() - worker.notes.heard_s
        if silent_s < limit_s:
            at_s = worker.notes.heard_s + limit_s
            self._loop.alarm(("watchdog", number), at_s, lambda: self._watch(number))
            return
        problem = TrainingError(
            f"worker {number} was killed",
            f"its training loop gave no sign for {silent_s:.0f} s",
            "a longer --watchdog, if its steps take that long",
        )
        self._listener.tell({"is": "problem", **problem.parts()})
        self._pool.kill(number)

    def _log(self, number: int, stream: str, line: str) -> None:
        self._listener.tell({"is": "log", "worker": number, "stream": stream, "text": line})

    def _hear(self, notes: WorkerNotes, message: Message) -> None:
        if message["is"] in MAIN_THREAD:
            notes.heard_s = time.monotonic()
        self._listener.on_word(notes, message)

    def _on_pool(self, message: Message) -> None:
        match message["is"]:
            case "warm":
                self.gpus = message["gpus"]
                self._listener.tell(message)
                self._listener.on_warm()
            case "rendezvous" if "error" in message:
                error = TrainingError(
                    f"port {self._job.port} can't be used",
                    f"{message['error']}",
                    "another --port, or none: then a free one is taken",
                )
                self._listener.fail(error, 2)
            case "rendezvous":
                self._stores_lost = 0
                self.store = (HOST, message["port"])
                self._listener.on_store()
            case "storeless":
                self.store = None
                self._stores_lost += 1
                if self._stores_lost > STORES_MAX:
                    words = self._pool.last_words or ["it did not say why"]
                    what = "workers have no place to meet"
                    error = TrainingError(what, f"the store ends at once: {words[-1]}", "coddl run")
                    self._listener.fail(error, 1)
                    return
                self._pool.rendezvous(self._job.port)
                self._listener.on_store_lost()
            case "forked":
                self._workers[message["worker"]].notes.pid = message["pid"]
            case "exited":
                self._part(message["worker"], message["code"])
            case "lost":
                self._on_zygote_lost(message["code"])

    def _part(self, number: int, code: int) -> None:
        """Let go of a worker that has exited, once its last words are heard."""
        worker = self._workers[number]
        worker.close()
        del self._workers[number]
        for name in ("leaver", "watchdog"):
            self._loop.silence((name, number))
        self._listener.on_gone(worker.notes, code)

    def _on_zygote_lost(self, code: int) -> None:
        """Start anew: the kernel has ended every worker along with the zygote."""
        if self.gpus is None:
            words = [line for line in self._pool.last_words if line.strip()]
            because = words[-1] if words else f"it ended with code {code}"
            error = TrainingError(
                f"{self._job.python} can't run workers",
                because,
                "--python with the interpreter that has torch and coddl installed",
            )
            self._listener.fail(error, 2)
            return
        for notes in self.notes:
            if notes.pid is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(notes.pid, signal.SIGKILL)  # and what it has started itself
        lost = list(self._workers)
        self.open()
        for number in lost:
            self._part(number, -signal.SIGKILL)

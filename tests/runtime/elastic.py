"""A job under a real supervisor, with real processes, for tests to push around."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor import control_socket, local_job
from coddl.runtime.supervisor.environment import ON_ONE_GPU
from coddl.runtime.supervisor.job import Job
from coddl.runtime.supervisor.supervisor import Supervisor
from coddl.runtime.supervisor.worker_host import WorkerHostConfig
from coddl.runtime.wire import Message
from tests.runtime.warm import Warm

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).parents[2]
PATIENCE_S = 300.0  # how long a test waits for what must come; machines are shared and slow


def environment(**extra: str) -> dict[str, str]:
    """Give a worker's environment: one thread each, so that workers don't fight."""
    kept = {k: v for k, v in os.environ.items() if k == ON_ONE_GPU or not k.startswith("CODDL_")}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **extra}


def alone(script: str, *args: str) -> str:
    """Run a script by plain python; give what it printed."""
    run = subprocess.run(
        [sys.executable, str(SCRIPTS / script), *args],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    return run.stdout


warm = cache(Warm)


class Elastic:
    """Runs a script under a supervisor in a thread; a context that leaves nothing running.

    Its fork server is a fork of one that all tests share; with `cold`, it is started as users do.
    """

    def __init__(
        self,
        folder: Path,
        script: str,
        *args: str,
        workers: int = 1,
        env: Mapping[str, str] | None = None,
        cold: bool = False,
        **fields: Any,
    ) -> None:
        # A name of its own: images in memory are found by it, checkpoints by the folder.
        self.name = f"test-{os.getpid()}-{time.monotonic_ns()}"
        path = SCRIPTS / script
        self.job = Job(
            name=self.name,
            script=path,
            argv=(str(path), *args),
            cwd=folder,
            env=environment(TO_BE_HURRIED="1", **(env or {})),
            folder=folder / "checkpoints",
            workers=workers,
            **fields,
        )
        self._cold = cold
        self._hurry = folder / "hurry"
        self.events: list[Message] = []
        self.code: int | None = None
        self._news = threading.Condition()
        self._supervisor = Supervisor(self.job, self._hear)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self.job.cwd.mkdir(exist_ok=True)
        self._hurry.unlink(missing_ok=True)  # an earlier job's, in the same folder
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self._supervisor.interrupt()
            self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the supervisor does not end"

    def _run(self) -> None:
        mine = WorkerHostConfig if self._cold else partial(WorkerHostConfig, factory=warm())
        local_job.WorkerHostConfig = mine  # type: ignore[assignment,attr-defined]
        try:
            self.code = self._supervisor.run()
        finally:
            local_job.WorkerHostConfig = WorkerHostConfig  # type: ignore[attr-defined]

    def _hear(self, event: Message) -> None:
        with self._news:
            self.events.append({**event, "heard_s": time.monotonic()})
            self._news.notify_all()

    def wait(self, when: Callable[[Message], bool], since: int = 0) -> Message:
        """Give the first event that fits, waiting for it."""
        deadline_s = time.monotonic() + PATIENCE_S
        with self._news:
            while True:
                for event in self.events[since:]:
                    if when(event):
                        return event
                ended = self.events and self.events[-1]["is"] == "ended"
                assert not ended, f"it never came; the job ended:\n{self.story()}"
                assert time.monotonic() < deadline_s, f"it never came:\n{self.story()}"
                self._news.wait(1.0)

    def wait_step(self, step: int) -> None:
        """Wait until the job is said to have made that many steps."""
        self.wait(lambda event: event["is"] == "progress" and event["step"] >= step)

    def wait_kind(self, kind: str, since: int = 0) -> Message:
        """Wait for an event of a kind."""
        return self.wait(lambda event: event["is"] == kind, since)

    def ask(self, do: str, **fields: Any) -> Message:
        """Ask over the control socket, as the command line does."""
        return control_socket.asked(self.name, {"do": do, **fields})

    def status(self) -> Message:
        """Give the job's status; a machine that stands still for seconds is asked again."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self.ask("status")
            except TrainingError as error:
                if "gave no answer" not in error.what or time.monotonic() > deadline_s:
                    raise

    def pids(self) -> dict[int, int]:
        """Give the process of each worker."""
        return {each["worker"]: each["pid"] for each in self.status()["workers"]}

    def kill(self, *workers: int, with_: signal.Signals = signal.SIGKILL) -> None:
        """Kill workers' processes, one right after the other."""
        pids = self.pids()
        for worker in workers:
            os.kill(pids[worker], with_)

    def settle(self, size: int) -> Message:
        """Wait until it runs at a size, with no process besides its members; give its status."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            status = self.status()
            if status["state"] == "RUNNING" and len(status["workers"]) == status["size"] == size:
                return status
            assert time.monotonic() < deadline_s, self.story()
            time.sleep(0.05)

    def finish(self) -> str:
        """Wait for the job's end, which must be good; give what the workers printed.

        Nothing more is done to it, so it need not be slow any more.
        """
        self._hurry.touch()
        self.wait_kind("ended")
        self._thread.join(PATIENCE_S)
        assert self.code == 0, self.story()
        return self.printed()

    def end(self) -> int:
        """Wait for the job's end; give its exit code."""
        self.wait_kind("ended")
        self._thread.join(PATIENCE_S)
        assert self.code is not None
        return self.code

    def printed(self) -> str:
        """Give all that workers wrote, without saying who."""
        return "\n".join(event["text"] for event in self.events if event["is"] == "log")

    def sizes(self) -> list[int]:
        """Give the sizes the job has had, in order."""
        return [e["to"] for e in self.events if e["is"] in ("started", "resized", "regrouped")]

    def story(self) -> str:
        """Tell what happened, for a failing test."""
        told = [event for event in self.events if event["is"] not in ("progress", "ended")]
        return "\n".join(f"{event}" for event in told[-80:])


def line_of(printed: str, word: str) -> str:
    """Give the one line that begins with a word."""
    (line,) = [line for line in printed.splitlines() if line.startswith(f"{word} ")]
    return line

"""Runs a training script under a supervisor in this process, as `coddl run` would."""

import contextlib
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from coddl.runtime.supervisor.control_socket import asked
from coddl.runtime.supervisor.job import Job
from coddl.runtime.supervisor.supervisor import Supervisor

HERE = Path(__file__).parent
# One thread per worker on all sides: what is compared must not differ in the cores it takes.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


class RunningJob:
    """A job that trains; leave its `with` block to end it."""

    def __init__(
        self,
        script: str,
        arguments: list[str],
        workers: int,
        env: Mapping[str, str] = ENVIRONMENT,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="coddl-bench-")
        path = HERE / script
        self.name = f"bench-{path.stem}-{os.getpid()}"
        self._job = Job(
            name=self.name,
            script=path,
            argv=(str(path), *arguments),
            cwd=HERE,
            env=env,
            folder=Path(self._folder.name),
            workers=workers,
        )
        self._words: list[str] = []
        self._events: list[dict[str, Any]] = []
        self._supervisor = Supervisor(self._job, self._hear)
        self._code: int | None = None
        self._thread = threading.Thread(target=self._run, name="supervisor")

    def __enter__(self) -> "RunningJob":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self._supervisor.interrupt()
            self._thread.join()
        self._folder.cleanup()

    def ask(self, do: str) -> dict[str, Any]:
        """Ask for something that needs no more than its name."""
        return asked(self.name, {"do": do})

    def last(self, kind: str) -> dict[str, Any]:
        """Give the newest event of a kind."""
        return self.events(kind)[-1]

    def wait(self, kind: str) -> dict[str, Any]:
        """Wait for the first event of a kind; its `heard_s` tells when it was heard."""
        while not any(event["is"] == kind for event in self._events):
            self.check()
            time.sleep(0.01)
        return next(event for event in self._events if event["is"] == kind)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Give all events of a kind."""
        return [event for event in self._events if event["is"] == kind]

    def resize(self, workers: int, *, wait: bool = True) -> dict[str, Any]:
        """Resize it, by default until that serves; gives the supervisor's account of it."""
        answer = asked(self.name, {"do": "resize", "workers": workers, "wait": wait})
        return answer.get("change") or {}

    def check(self) -> None:
        """Raise if the job has ended, with its last words."""
        if not self._thread.is_alive():
            raise SystemExit("\n".join([f"the job ended with {self._code}", *self._words[-30:]]))

    def finish(self) -> None:
        """Wait until the script has ended well; raise if it has not."""
        self._thread.join()
        if self._code != 0:
            self.check()

    def _run(self) -> None:
        self._code = self._supervisor.run()

    def _hear(self, event: dict[str, Any]) -> None:
        self._events.append({**event, "heard_s": time.monotonic()})
        if event["is"] == "log":
            self._words.append(event["text"].rstrip())
        elif event["is"] in ("error", "problem"):
            self._words.append(str(event))


def machine() -> dict[str, Any]:
    """Say on what was measured."""
    return {
        "torch": version("torch"),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
    }


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Give a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="coddl-bench-") as folder:
        yield Path(folder)


def torchrun(script: str, arguments: list[str], workers: int) -> list[str]:
    """Give the command that runs a script with torchrun on this machine."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*command, f"--nproc-per-node={workers}", str(HERE / script), *arguments]

"""What a job host looks after on its node: the workers of a job, and their images."""

import itertools
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from coddl.runtime.supervisor import jobdir
from coddl.runtime.supervisor.checkpoint_writer import CheckpointWriter
from coddl.runtime.supervisor.fork_server_client import ForkServerFactory, Interpreter
from coddl.runtime.supervisor.loop import Loop
from coddl.runtime.supervisor.remote_checkpoints import checkpoints_of_host
from coddl.runtime.supervisor.slots import JobEnvironment
from coddl.runtime.supervisor.worker_history import WorkerHistory
from coddl.runtime.supervisor.worker_host import LocalWorkerHost, WorkerHostConfig
from coddl.runtime.wire import Message

_serial = itertools.count()  # a job host that ends must not remove its successor's images


class HostedWorkers(Protocol):
    """The workers of a job on this node."""

    generation: int  # the highest that workers here were told
    newest_worker: int  # the highest number heard of

    @property
    def histories(self) -> Sequence[WorkerHistory]: ...
    def do(self, request: Message) -> None: ...
    def kill(self, number: int, signal_: int = signal.SIGKILL) -> None: ...
    def kill_all(self) -> None: ...
    def close(self) -> None: ...


class ImageWriter(Protocol):
    """Saves the images of a job on this node, and brings checkpoints here."""

    @property
    def is_busy(self) -> bool: ...
    def fetch(self, checkpoint: Path, on_end: Callable[[Path | Exception], None]) -> None: ...
    def close(self, *, wait: bool) -> None: ...


class OpenedWorkers(NamedTuple):
    """The workers of a job, and what saves their images."""

    host: HostedWorkers
    writer: ImageWriter
    stash: Path | None  # a folder of images, which is removed in the end


@dataclass(frozen=True, slots=True)
class HostedListener:
    """What hears of the workers of a job."""

    on_word: Callable[[Message], None]
    on_log: Callable[[WorkerHistory, str, str], None]
    attempt: Callable[[], int]  # of the newest lead


WorkersOpener = Callable[[str, JobEnvironment, HostedListener], OpenedWorkers]  # of a job, by id


def process_workers(loop: Loop, name: str, host: str, factory: ForkServerFactory) -> WorkersOpener:
    """Have workers be processes of this machine; `name`: of the folders of their images."""

    def opened(job: str, environment: JobEnvironment, listener: HostedListener) -> OpenedWorkers:
        stash = jobdir.stash_of(f"{name}/{job}-{next(_serial)}")
        writer = CheckpointWriter(
            loop, lambda: checkpoints_of_host(environment, listener.attempt())
        )
        interpreter = Interpreter(environment.python, environment.cwd, environment.env)
        config = WorkerHostConfig(interpreter, stash, host, environment.cpus, factory)
        worker_host = LocalWorkerHost(loop, config, writer, listener.on_word, listener.on_log)
        worker_host.open()
        return OpenedWorkers(worker_host, writer, stash)

    return opened

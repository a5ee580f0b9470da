"""A job of `coddl run`: its lock, its images in memory and its worker host on this machine."""

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count, islice
from typing import Final

from coddl.runtime.supervisor import jobdir
from coddl.runtime.supervisor.checkpoint_store import CheckpointStore
from coddl.runtime.supervisor.checkpoint_writer import CheckpointWriter
from coddl.runtime.supervisor.checkpointing import Checkpointing
from coddl.runtime.supervisor.fork_server_client import Interpreter
from coddl.runtime.supervisor.job import Job
from coddl.runtime.supervisor.loop import Loop, SupervisorLoop
from coddl.runtime.supervisor.slots import Slot
from coddl.runtime.supervisor.worker_history import WorkerHistory
from coddl.runtime.supervisor.worker_host import LocalWorkerHost, WorkerHostConfig
from coddl.runtime.supervisor.workers import HostFactory
from coddl.runtime.wire import Message

HERE: Final = ""  # the node of a job that has no pool


def opened(
    job: Job, loop: SupervisorLoop, tell: Callable[[Message], None], stack: contextlib.ExitStack
) -> tuple[Checkpointing, HostFactory]:
    """Lock the job's folder; give its checkpointing and a factory of its worker host."""
    assert isinstance(loop, Loop), "what runs here is read from descriptors"
    checkpoints = CheckpointStore(job.folder)
    stack.enter_context(jobdir.claimed(job.folder, job.script, fresh=job.fresh))
    stash = jobdir.stash_folder(job.name, job.folder, job.script, fresh=job.fresh)
    writer = CheckpointWriter(loop, lambda: checkpoints)
    config = WorkerHostConfig(Interpreter(job.python, job.cwd, job.env), stash)

    def log(history: WorkerHistory, stream: str, text: str) -> None:
        tell({"is": "log", "worker": history.worker, "stream": stream, "text": text})

    def host_of(_node: str, on_word: Callable[[Message], None]) -> LocalWorkerHost:
        worker_host = LocalWorkerHost(loop, config, writer, on_word, log)
        worker_host.open()
        return worker_host

    return Checkpointing(checkpoints, stash, tell, writer), host_of


def local_slots(job: Job, workers: int, gpus: int, taken: Sequence[int]) -> list[Slot]:
    """Choose slots for that many workers: those with the oldest workers, then free ones.

    `taken` are the slots of the workers there are, the oldest first. Where GPUs are shared, no
    GPU gets another worker before the others have as many.
    """
    left = [*taken, *islice((slot for slot in count() if slot not in taken), workers)]
    on_gpu: Counter[str | None] = Counter()
    slots: list[Slot] = []
    for _ in range(workers):
        slot = min(left, key=lambda each: on_gpu[job.gpu_of(each, gpus)])  # the first of equals
        left.remove(slot)
        slots.append(Slot(slot, HERE, job.gpu_of(slot, gpus)))
        on_gpu[slots[-1].gpu] += 1
    return slots

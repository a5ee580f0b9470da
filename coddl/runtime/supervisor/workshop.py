"""What a job needs on this machine, when nobody hosts it: a lock, a stash, a station."""

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count, islice
from typing import Final

from coddl.runtime.supervisor import jobdir
from coddl.runtime.supervisor.checkpoints import Checkpoints
from coddl.runtime.supervisor.crew import Reach
from coddl.runtime.supervisor.job import Job
from coddl.runtime.supervisor.keeper import Keeper
from coddl.runtime.supervisor.loop import Loop
from coddl.runtime.supervisor.memory import Memory
from coddl.runtime.supervisor.saving import Saving
from coddl.runtime.supervisor.seats import Seat
from coddl.runtime.supervisor.station import Site, Station
from coddl.runtime.supervisor.warmpool import Interpreter
from coddl.runtime.wire import Message

HERE: Final = ""  # the node of a job that nobody hosts


def opened(
    job: Job, loop: Loop, tell: Callable[[Message], None], stack: contextlib.ExitStack
) -> tuple[Saving, Reach]:
    """Make the job's folder ours; give what keeps its state, and the way to its station."""
    checkpoints = Checkpoints(job.folder)
    stack.enter_context(jobdir.claimed(job.folder, job.script, fresh=job.fresh))
    stash = jobdir.stash_folder(job.name, job.folder, job.script, fresh=job.fresh)
    keeper = Keeper(loop, lambda: checkpoints)
    site = Site(Interpreter(job.python, job.cwd, job.env), stash)

    def log(memory: Memory, stream: str, text: str) -> None:
        tell({"is": "log", "worker": memory.worker, "stream": stream, "text": text})

    def reach(_node: str, on_word: Callable[[Message], None]) -> Station:
        station = Station(loop, site, keeper, on_word, log)
        station.open()
        return station

    return Saving(checkpoints, stash, tell, keeper), reach


def seats_here(job: Job, workers: int, gpus: int, taken: Sequence[int]) -> list[Seat]:
    """Choose seats for that many workers: those with the oldest workers, then free ones.

    `taken` are the slots of the workers there are, the oldest first. Where GPUs are shared, no
    GPU gets another worker before the others have as many.
    """
    left = [*taken, *islice((slot for slot in count() if slot not in taken), workers)]
    on_gpu: Counter[str | None] = Counter()
    seats: list[Seat] = []
    for _ in range(workers):
        slot = min(left, key=lambda each: on_gpu[job.gpu_of(each, gpus)])  # the first of equals
        left.remove(slot)
        seats.append(Seat(slot, HERE, job.gpu_of(slot, gpus)))
        on_gpu[seats[-1].gpu] += 1
    return seats

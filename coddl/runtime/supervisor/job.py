"""What a job is told to be when it starts; never changes."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor.memory_fit import RememberedLimit
from coddl.runtime.supervisor.slots import RemoteFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One elastic job.

    `workers` is a fixed number to start with, or None: as many as there are GPUs, else one. With
    `workers_max` it starts with as many as fit and stays within `workers_min` and that.
    """

    name: str
    script: Path
    argv: tuple[str, ...]  # as the script sees it: its own name, then its arguments
    cwd: Path
    env: Mapping[str, str]
    folder: Path  # of the checkpoints
    remote: RemoteFiles | None = None  # then they are there, and copies in the folder
    python: str = sys.executable
    workers: int | None = None
    workers_min: int = 1
    workers_max: int | None = None
    resizes: tuple[tuple[int, int], ...] = ()  # (step, workers), by step
    checkpoint_every_s: float = 60.0
    keep_checkpoints: bool = False
    fresh: bool = False
    port: int = 0  # of the store; 0: any
    watchdog_s: float = 1800.0
    trace: Path | None = None
    id: str = ""  # in a pool
    attempt: int = 1  # grows with every new lead of the job, and every new start
    restart_reason: str = ""  # why there is more than one attempt
    must_prepare: bool = True  # False: a script that ends well without coddl.prepare has succeeded
    grace_s: float = 3.0  # between SIGTERM and SIGKILL
    limits: tuple[RememberedLimit, ...] = ()  # that other jobs have found

    def first_size(self, gpus: int) -> int:
        """Decide with how many workers to start."""
        if self.workers is not None:
            return self.workers
        if self.workers_max is not None:
            return max(self.workers_min, min(self.workers_max, gpus or os.cpu_count() or 1))
        return gpus or 1

    def check_size(self, workers: int, most_useful: int | None) -> None:
        """Raise if the job can't have that many workers."""
        most = min(n for n in (self.workers_max, most_useful, sys.maxsize) if n is not None)
        if self.workers_min <= workers <= most:
            return
        if most_useful is not None and workers > most_useful:
            because = f"its global batch can be shared by at most {most_useful} workers"
        elif self.workers_max is not None:
            because = f"it was started with --workers {self.workers_min}..{self.workers_max}"
        else:
            because = "a job has at least 1 worker"
        raise TrainingError(
            f"{self.name} can't run on {workers} workers",
            because,
            "1 worker"
            if (fits := max(self.workers_min, min(workers, most))) == 1
            else f"{fits} workers",
        )

    def check_sizes(self, most_useful: int) -> None:
        """Raise if it was told, when it started, to have more workers than it can."""
        least = self.workers_min if self.workers is None else self.workers
        for workers in (least, *(workers for _, workers in self.resizes)):
            self.check_size(workers, most_useful)

    def gpu_of(self, slot: int, gpus: int) -> str | None:
        """Name the GPU of a slot as CUDA_VISIBLE_DEVICES wants it; several slots may share one."""
        if not gpus:
            return None
        visible = [each for each in self.env.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
        return (visible or [str(index) for index in range(gpus)])[slot % gpus]

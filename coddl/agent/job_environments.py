"""Environments of the jobs that run here or will: prepared in the background."""

import asyncio
import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol

from coddl.agent.job_directories import JobDirectories
from coddl.agent.node_resources import THREADS
from coddl.agent.orphans import MARK
from coddl.core.errors import UserError
from coddl.core.pool.records import Outcome, Trouble
from coddl.core.pool.spec import JobSpec
from coddl.runtime.supervisor.slots import JobEnvironment

PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0)  # between tries to get what the system or the line refused

# What would mislead a job: our own settings, and a place in another group.
HIDDEN_PREFIXES: Final = ("CODDL_", "PET_", "TORCHELASTIC_")
HIDDEN: Final = frozenset(
    {
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK"),
        *("MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "NOTIFY_SOCKET", THREADS),
        *("PWD", "OLDPWD"),
    }
)


def base_env(environ: Mapping[str, str], threads: int) -> dict[str, str]:
    """Give what every job here finds: our own environment, less what would mislead it."""
    kept = {
        name: value
        for name, value in environ.items()
        if name not in HIDDEN and not name.startswith(HIDDEN_PREFIXES)
    }
    return {**kept, THREADS: str(threads)}


def one_run(uid: str, folder: Path) -> dict[str, str]:
    """Have trackers see one run per job, however often the job is started."""
    of_folder = hashlib.blake2b(str(folder.resolve()).encode(), digest_size=8).hexdigest()
    name = uid or of_folder  # a version that gave no ids went by the folder
    return {"WANDB_RUN_ID": name, "WANDB_RESUME": "allow"}


class Environments(Protocol):
    """The environments of the jobs that are ordered on a node."""

    ready: dict[int, JobEnvironment]
    failed: dict[int, tuple[Outcome, Trouble]]  # why there will be none

    def want(self, specs: Mapping[int, JobSpec], also: Iterable[int]) -> None:
        """Have these environments, and those of `also` if there are any, and no others."""
        ...

    def tidy(self, job: int, spec: JobSpec, attempt: int, *, forget: bool) -> None:
        """Remove what a job that is over has no use for."""
        ...


class JobEnvironments:
    """Holds the environment of every job that is ordered here, once it is ready."""

    def __init__(
        self,
        directories: JobDirectories,
        env: Mapping[str, str],
        mark: str,
        cores: Mapping[int, tuple[int, ...]],
        on_ready: Callable[[], None],
    ) -> None:
        self._directories = directories
        self._env = env
        self._mark = mark
        self._cores = cores
        self._on_ready = on_ready
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="home")
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self.ready: dict[int, JobEnvironment] = {}
        self.failed: dict[int, tuple[Outcome, Trouble]] = {}  # why there will be none

    def want(self, specs: Mapping[int, JobSpec], also: Iterable[int]) -> None:
        """Prepare these environments; drop others, except those of `also`."""
        kept = {*specs, *also}
        self.ready = {job: environment for job, environment in self.ready.items() if job in kept}
        self.failed = {job: why for job, why in self.failed.items() if job in specs}
        for job, spec in specs.items():
            if job not in self.ready and job not in self._under_way and job not in self.failed:
                self._under_way[job] = asyncio.create_task(self._prepare(job, spec))

    def tidy(self, job: int, spec: JobSpec, attempt: int, *, forget: bool) -> None:
        """Remove what a job that is over has no use for."""
        self._threads.submit(self._directories.tidy, job, spec, attempt, forget=forget)

    def close(self) -> None:
        """Wait for what is under way."""
        for task in self._under_way.values():
            task.cancel()
        self._threads.shutdown(wait=True, cancel_futures=False)

    async def _prepare(self, job: int, spec: JobSpec) -> None:
        try:
            self.ready[job] = await self._made(job, spec)
        except UserError as error:
            self.failed[job] = ("failed", Trouble(error.what, error.because, error.try_))
        except OSError as error:
            what = "the job's folder can't be prepared"
            trouble = Trouble(
                what, f"{error}", "check permissions and free space of the jobs folder"
            )
            self.failed[job] = ("lost", trouble)
        finally:
            del self._under_way[job]
        self._on_ready()

    async def _made(self, job: int, spec: JobSpec) -> JobEnvironment:
        loop = asyncio.get_running_loop()
        for pause_s in (*PAUSES_S, None):
            try:
                cwd = await loop.run_in_executor(
                    self._threads, self._directories.prepare, job, spec
                )
                break
            except OSError:
                if pause_s is None:
                    raise
                await asyncio.sleep(pause_s)
        return JobEnvironment(
            python=spec.launch.python or sys.executable,
            cwd=cwd,
            env={
                **self._env,
                "PWD": str(cwd),
                **one_run(spec.uid, self._directories.checkpoints(job)),
                **spec.launch.env,
                MARK: self._mark,
            },
            folder=self._directories.checkpoints(job),
            remote=self._directories.remote(job, spec),
            cpus=self._cores,
        )

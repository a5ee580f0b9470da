"""The server of a pool as a job of Slurm, for clusters whose login nodes are not for servers.

The job runs `coddl up --foreground`, and what it keeps is in the state folder, on a disk that login
node and nodes share. Before its time limit it hands in its successor, then stops the pool: jobs are
saved, and continue under the successor. After a preemption, or the death of its machine, Slurm
starts it anew.

    python -m coddl.engines.slurm.server_job FOLDER WORD...     as a job of Slurm
"""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from coddl.core.errors import UserError
from coddl.engines.engine import EngineUnavailable
from coddl.engines.processes import LEAVE_S
from coddl.engines.slurm.commands import SlurmCommands, SlurmJob, duration
from coddl.engines.slurm.engine import ENDING, LIVE, WAITING
from coddl.engines.slurm.pilot import SHELL

if TYPE_CHECKING:
    from coddl.engines.pool import PoolOptions

FILE: Final = "server-job.json"  # in the state folder: the words for `sbatch`
LOG: Final = "server-job.log"
ENDED: Final = "server-job.ended.json"  # the same, while the pool stops
NOTICE_S: Final = 300.0  # before the limit, to save all jobs
NOTICE_PART: Final = 0.25  # of a short limit
SHORT_S: Final = 3600.0
LOOK_EVERY_S: Final = 1.0
TELL_S: Final = 5.0


def name_of(folder: Path) -> str:
    """Name the job of a pool's server."""
    return f"coddl-server-{hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:8]}"


def server_jobs(folder: Path, commands: SlurmCommands | None = None) -> list[SlurmJob]:
    """List the jobs that run a pool's server, or will; without Slurm there are none."""
    if not ((folder / FILE).exists() or (folder / ENDED).exists()):
        return []
    found = (commands or SlurmCommands()).jobs(name_of(folder))
    return [job for job in found if job.state in (*WAITING, *LIVE, *ENDING)]


def start_in_job(
    options: "PoolOptions",
    words: list[str],
    is_ready: Callable[[], bool],
    tell: Callable[[str], None] = print,
) -> None:
    """Start a pool whose server is a job; return when it is ready, or raise what it said."""
    from coddl.engines.pool import make_folder

    folder, commands = options.folder, SlurmCommands()
    make_folder(folder)
    ours = [f"--job-name={name_of(folder)}", f"--comment=CoDDL server of {folder}"]
    ours += ["--nodes=1", "--ntasks=1", "--cpus-per-task=2", "--requeue", "--open-mode=append"]
    notice_s = _notice_s(options.slurm.server_words)
    ours += [f"--signal=B:USR1@{notice_s:.0f}", f"--chdir={folder / 'output'}", f"--output={LOG}"]
    run = [str(SHELL), sys.executable, "-P", "-m", "coddl.engines.slurm.server_job", str(folder)]
    sbatch = [*ours, *options.slurm.server_words, *run, *words]
    (folder / FILE).write_text(json.dumps({"sbatch": sbatch}), "utf-8")
    (folder / ENDED).unlink(missing_ok=True)
    try:
        job = commands.submit(sbatch)
    except EngineUnavailable as error:
        (folder / FILE).unlink()
        try_ = "--server-sbatch-arg with another --partition, --time or --account"
        raise UserError("Slurm did not take the server's job", error.because, try_) from None
    if (limit_s := _limit_s(options.slurm.server_words)) is not None and limit_s < SHORT_S:
        tell(
            f"the server's job ends after {limit_s / 60:.0f} min, and each time all jobs are saved "
            "and started again: --server-sbatch-arg=--time=... gives it longer"
        )
    try:
        _await_ready(folder, commands, job, is_ready, tell)
    except BaseException:
        commands.cancel(job)
        raise


def _await_ready(
    folder: Path,
    commands: SlurmCommands,
    job: int,
    is_ready: Callable[[], bool],
    tell: Callable[[str], None],
) -> None:
    """Wait for the server: as long as it takes in the queue, and until it answers."""
    told = ""
    while not is_ready():
        found = {each.id: each for each in server_jobs(folder, commands)}.get(job)
        if found is None:
            log = folder / "output" / LOG
            lines = log.read_text(errors="replace").split("\n") if log.exists() else []
            because = next(
                (line.strip() for line in lines[::-1] if line.strip()), "it said nothing"
            )
            raise UserError(f"the server's Slurm job {job} has ended", because, f"see {log}")
        waits = f"Slurm job {job} waits in the queue ({found.reason})"
        if found.state in WAITING and found.reason and told != waits:
            tell(waits)
            told = waits
        time.sleep(LOOK_EVERY_S)


def end_in_job(folder: Path, tell: Callable[[str], None] = print) -> bool:
    """End the job of a pool's server and wait for that; return whether there was one."""
    commands = SlurmCommands()
    with contextlib.suppress(FileNotFoundError):
        (folder / FILE).rename(folder / ENDED)  # no job hands in another one from here on
    begin_s, is_told = time.monotonic(), False
    told: set[int] = set()  # jobs that were signalled to end while they ran
    was_up = False
    while live := server_jobs(folder, commands):
        was_up = True
        for job in live:
            if job.id not in told:  # one that waited may have started meanwhile
                _end(job, commands)
        told |= {job.id for job in live if job.state not in WAITING}
        if time.monotonic() - begin_s > TELL_S and not is_told:
            tell("waiting for jobs to save their state")
            is_told = True
        if time.monotonic() - begin_s > LEAVE_S + 60.0:
            ids = " ".join(str(job.id) for job in live)
            raise UserError(
                "the pool did not stop", f"Slurm job {ids} is still there", f"scancel {ids}"
            )
        time.sleep(LOOK_EVERY_S)
    (folder / ENDED).unlink(missing_ok=True)
    return was_up


def _end(job: SlurmJob, commands: SlurmCommands) -> None:
    if job.state in WAITING:
        commands.cancel(job.id)
    else:
        commands.signal(job.id, "USR2")


def _limit_s(sbatch_words: Sequence[str]) -> float | None:
    """Read the time limit that a job is asked for with; None: it is Slurm's default."""
    given = [word.partition("=")[2] for word in sbatch_words if word.startswith("--time=")]
    return duration(given[-1]) if given else None


def _notice_s(sbatch_words: Sequence[str]) -> float:
    """Return how long before its limit a job hands over to the next one."""
    limit_s = _limit_s(sbatch_words)
    return NOTICE_S if limit_s is None else min(NOTICE_S, limit_s * NOTICE_PART)


class ServerJob:
    """Runs the pool in a job, and hands in the next job before this one's time is over."""

    def __init__(self, folder: Path, words: list[str]) -> None:
        self._folder = folder
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("SLURM_", "CODDL_"))}
        conf = {n: v for n, v in os.environ.items() if n == "SLURM_CONF"}
        self._pool = subprocess.Popen(words, env=kept | conf, start_new_session=True)

    def run(self) -> int:
        """Wait for the end of the pool; give its exit code."""
        for number in (signal.SIGTERM, signal.SIGUSR2):  # of Slurm, and of `coddl down`
            signal.signal(number, lambda _number, _frame: self._stop())
        signal.signal(signal.SIGUSR1, lambda _number, _frame: self._hand_over())
        return self._pool.wait()

    def _stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._pool.terminate()

    def _hand_over(self) -> None:
        """Hand in the next job; it starts when this one has ended."""
        try:
            words = json.loads((self._folder / FILE).read_text("utf-8"))["sbatch"]
        except FileNotFoundError:  # by `coddl down`, at this very moment
            self._stop()
            return
        after = f"--dependency=afterany:{os.environ['SLURM_JOB_ID']}"
        try:
            print(f"followed by Slurm job {SlurmCommands().submit([after, *words])}", flush=True)  # noqa: T201  # the job's log
        except UserError as error:
            print(f"no job follows: {error.what}: {error.because}", flush=True)  # noqa: T201
        self._stop()


if __name__ == "__main__":
    sys.exit(ServerJob(Path(sys.argv[1]), sys.argv[2:]).run())

"""Nodes of a Slurm cluster for a pool. Needs Slurm's commands, as on a login node.

A node is a pilot job: a job of Slurm on one machine that runs an agent (`pilot`). All of a pool are
called `coddl-<pool>`, and each node `slurm-<job>`, so that a restarted engine finds them again.

    a time limit    Another node is asked for in time (`expires_at_s`). Shortly before the limit the
                    pool has the node left at last, whether the other has come or not.
    a preemption    With a grace time, Slurm shows an earlier end of the job: the same. Without, the
                    pilot job gets SIGTERM and notifies the pool itself, through its agent.
    a drain         of the machine: the pool leaves it, then the pilot job ends.

Pilot jobs are not requeued: under its old name a node would meet what it was before.

Slurm's commands are a load on its controller: they are run every few seconds, whatever the pool
asks.
"""

import re
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from coddl.core.errors import UserError
from coddl.engines.engine import AgentLaunch, EngineNode, EngineStatus
from coddl.engines.slurm.commands import (
    KILL_WAIT_S,
    SlurmCommands,
    SlurmJob,
    SlurmNode,
    duration,
    seconds_of,
)
from coddl.engines.slurm.options import SlurmOptions
from coddl.engines.slurm.pilot import SHELL, PilotOrder, write_order
from coddl.engines.slurm.pilot_words import pilot_words, would_wait

ASK_EVERY_S: Final = 5.0
LEAVING_S: Final = 1.0  # and while pilot jobs are about to end
LATE_S: Final = 30.0  # after which a pilot job that should have ended is cancelled
DRAIN_S: Final = 600.0  # for jobs to leave a machine that Slurm drains
RENEW_S: Final = 1800.0  # before its limit, another pilot job is asked for
RENEW_PART: Final = 0.25  # of a short limit
NOTICE_S: Final = 120.0  # before its limit, a node is left at last
NOTICE_PART: Final = 0.125
GONE_S: Final = 5.0  # before the limit, nothing is left
AVOIDED_S: Final = 600.0  # a machine where a pilot job has failed
LOGS_KEPT: Final = 50
TAIL_BYTES: Final = 4096
NODE: Final = re.compile(r"slurm-([0-9]+)")
WAITING: Final = (
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "RESV_DEL_HOLD",
)
LIVE: Final = ("RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING")
ENDING: Final = ("COMPLETING", "STAGE_OUT")
FAILED: Final = ("FAILED", "OUT_OF_MEMORY", "BOOT_FAIL", "SPECIAL_EXIT")


@dataclass(slots=True)
class _Memory:
    """What can't be found out anew; without it, things are only done once more."""

    released: dict[int, float] = field(default_factory=dict)  # jobs, and when they are cancelled
    started: set[int] = field(default_factory=set)
    told: set[int] | None = None  # ended jobs that were reported; None: before the first look
    draining_since_s: dict[str, float] = field(default_factory=dict)
    failed_on: dict[str, float] = field(default_factory=dict)  # machines, and when


class SlurmEngine:
    """The nodes that a pool has in a Slurm cluster."""

    def __init__(
        self,
        launch: AgentLaunch,
        options: SlurmOptions,
        folder: Path,
        *,
        gpus_per_node: int,
        commands: SlurmCommands | None = None,
        ask_every_s: float = ASK_EVERY_S,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """Check that Slurm would take pilot jobs.

        The folder is on a disk that the nodes share: pilot jobs find there what to do, and write
        their logs. With `launch.slots`, agents offer CPU slots; as many as GPUs, and they have
        Slurm's GPU ids.
        """
        _check(launch, gpus_per_node)
        self._options = options
        self._gpus = gpus_per_node
        self._folder = folder
        self._commands = commands or SlurmCommands()
        self._ask_every_s = ask_every_s
        self._wall_s = wall_s
        self._name = f"coddl-{launch.pool}"
        self._comment = f"CoDDL pool {launch.pool} at {launch.server}"
        self._memory = _Memory()
        self._jobs: dict[int, SlurmJob] = {}  # that have not ended
        self._status: EngineStatus | None = None
        self._ask_at_s = 0.0
        kill_wait_s = seconds_of(self._commands.settings().get("KillWait", ""), KILL_WAIT_S)
        order = PilotOrder(launch, gpus_per_node, self._notice_s, kill_wait_s)
        try:
            write_order(folder, order)
        except OSError as error:
            because = f"{error.filename}: {error.strerror}"
            raise UserError(f"{folder} can't be used", because, "another --jobs-dir") from None
        machines = self._commands.nodes(partition=options.partition)
        self._words = self._sbatch_words(machines)
        self._check_accepted(machines)

    def look(self) -> EngineStatus:
        """Return what Slurm has for this pool, as of a few seconds ago at most."""
        now_s = self._wall_s()
        if self._status is None or now_s >= self._ask_at_s:
            self._status = self._asked(now_s)
            # A caller waits for the end of what was released.
            pause_s = LEAVING_S if self._memory.released else self._ask_every_s
            self._ask_at_s = now_s + min(pause_s, self._ask_every_s)
        return self._status

    def acquire(self) -> str:
        """Hand in one more pilot job."""
        job = self._commands.submit([*self._excluded(), *self._words])
        self._status = None
        self._forget_logs()
        return f"slurm-{job}"

    def release(self, node: str, within_s: float) -> None:
        """End a pilot job, or withdraw it from the queue."""
        found = NODE.fullmatch(node)
        if found is None:
            return
        self._status = None
        if int(found[1]) not in self._jobs:
            self.look()  # the first word after a restart
        if (job := self._jobs.get(int(found[1]))) is not None:
            self._memory.released[job.id] = self._wall_s() + within_s + LATE_S
            self._end(job)

    def close(self) -> None:
        """Release the engine; the pilot jobs stay."""

    def _end(self, job: SlurmJob) -> None:
        """End a job that was released."""
        if self._wall_s() > self._memory.released[job.id]:
            self._commands.cancel(job.id)
        elif job.state in WAITING:
            self._commands.cancel(job.id, only_pending=True)  # or it has just started: see `look`
        else:
            self._commands.signal(job.id, "USR2")
        self._status = None

    # What there is.

    def _asked(self, now_s: float) -> EngineStatus:
        jobs = {job.id: job for job in sorted(self._commands.jobs(self._name))}
        ended = {n: job for n, job in jobs.items() if job.state not in (*WAITING, *LIVE, *ENDING)}
        self._jobs = {n: job for n, job in jobs.items() if n not in ended}
        told = ended.keys() if self._memory.told is None else self._memory.told
        self._memory.told = set(ended)
        self._memory.started |= {n for n, job in jobs.items() if job.state in LIVE}
        self._memory.released = {
            n: at_s for n, at_s in self._memory.released.items() if n in self._jobs
        }
        failed = [job for n, job in ended.items() if n not in told and job.state in FAILED]
        self._memory.failed_on |= {job.host: now_s for job in failed if job.host}
        draining = self._draining(now_s)
        nodes = [self._described(job, draining, now_s) for job in self._jobs.values()]
        nodes += [
            EngineNode(f"slurm-{job.id}", "releasing", because=self._said(job)) for job in failed
        ]
        # The pilot job has ended by itself, which it does after all that it had started.
        gone = tuple(f"slurm-{n}" for n, job in ended.items() if job.state == "COMPLETED")
        return EngineStatus(tuple(nodes), ended=gone)

    def _described(
        self, job: SlurmJob, draining: dict[str, tuple[float, str]], now_s: float
    ) -> EngineNode:
        name = f"slurm-{job.id}"
        if job.id in self._memory.released:
            if job.state in LIVE or now_s > self._memory.released[job.id]:
                self._end(job)  # it was waiting when it was released, or does not end
            return EngineNode(name, "releasing")
        if job.state in ENDING:
            return EngineNode(name, "releasing")
        if job.state in WAITING:
            if job.id in self._memory.started:  # by an operator; its agent is gone
                self._commands.cancel(job.id)
                return EngineNode(name, "releasing", leaves_at_s=now_s)
            return EngineNode(name, "starting", because=_waits_for(job))
        if job.host in draining:
            leaves_at_s, reason = draining[job.host]
            return EngineNode(name, "up", leaves_at_s, f"Slurm drains its machine: {reason}")
        if job.state != "RUNNING":
            return EngineNode(name, "up", because=f"its Slurm job is {job.state}")
        return self._with_end(EngineNode(name, "up"), job, now_s)

    def _with_end(self, node: EngineNode, job: SlurmJob, now_s: float) -> EngineNode:
        """Return when a node leaves, if that is soon."""
        if job.ends_at_s is None or job.limit_s is None:
            return node
        left_s = job.ends_at_s - now_s
        if left_s <= min(NOTICE_S, job.limit_s * NOTICE_PART) + self._ask_every_s:
            because = "its Slurm job reaches its time limit"
            if job.is_cut_short:
                because = "Slurm preempts its job"
            return EngineNode(node.name, "up", job.ends_at_s - GONE_S, because)
        if left_s <= min(RENEW_S, job.limit_s * RENEW_PART):
            return EngineNode(node.name, "up", expires_at_s=job.ends_at_s)
        return node

    def _draining(self, now_s: float) -> dict[str, tuple[float, str]]:
        """Return which machines of ours Slurm drains: when they are left at last, and why."""
        hosts = sorted({job.host for job in self._jobs.values() if job.state in LIVE and job.host})
        nodes = self._commands.nodes(names=hosts) if hosts else []
        found = {node.name: node.reason for node in nodes if node.is_draining}
        since_s = self._memory.draining_since_s
        self._memory.draining_since_s = {name: since_s.get(name, now_s) for name in found}
        return {
            name: (self._memory.draining_since_s[name] + DRAIN_S, reason)
            for name, reason in found.items()
        }

    def _said(self, job: SlurmJob) -> str:
        """Return the last words of a pilot job that has failed."""
        log = self._folder / f"{job.id}.log"
        try:
            with log.open("rb") as file:
                file.seek(max(0, log.stat().st_size - TAIL_BYTES))
                lines = file.read().decode("utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        said = [line.strip() for line in lines if line.strip()]
        avoided = f"; {job.host} is avoided for {AVOIDED_S / 60:.0f} minutes" if job.host else ""
        words = said[-1] if said else job.reason or f"it left no word in {log}"
        return f"its Slurm job ended as {job.state}: {words}{avoided}"

    # What is asked for.

    def _sbatch_words(self, machines: Iterable[SlurmNode]) -> list[str]:
        words = ["--job-name=" + self._name, "--comment=" + self._comment]
        words += [f"--signal=B:USR1@{self._notice_s:.0f}"] if self._notice_s else []
        words += [f"--chdir={self._folder}", "--output=%j.log"]
        words += pilot_words(self._options, self._gpus, machines)
        return [*words, str(SHELL), sys.executable, "-P", "-m", "coddl.engines.slurm.pilot", "."]

    def _excluded(self) -> list[str]:
        """Keep away from machines where pilot jobs have failed: Slurm finds them free at once.

        Not from all of them: it may be the pool's fault, and fixed by now.
        """
        since_s = self._wall_s() - AVOIDED_S
        hosts = [host for host, at_s in self._memory.failed_on.items() if at_s > since_s]
        if not hosts:
            return []
        machines = self._commands.nodes(partition=self._options.partition)
        others = [m for m in machines if m.gpus >= self._gpus and m.name not in hosts]
        return [f"--exclude={','.join(hosts)}"] if any(m.takes_jobs for m in others) else []

    @property
    def _notice_s(self) -> float:
        """Return how long before its limit a pilot job is signalled, in case no connector runs.

        Slurm may send it half a minute earlier, which is too early for a short limit: 0, none.
        """
        limit_s = duration(self._options.time)
        is_long = limit_s is None or limit_s * NOTICE_PART >= NOTICE_S
        return NOTICE_S / 2.0 if is_long else 0.0

    def _check_accepted(self, machines: Iterable[SlurmNode]) -> None:
        """Raise UserError if Slurm would not take a pilot job, now or later."""
        large = [machine for machine in machines if machine.gpus >= self._gpus]
        if large and not any(machine.takes_jobs for machine in large):
            return  # Slurm lets jobs wait for them, but `--test-only` says otherwise
        because = self._commands.try_submit(self._words)
        if because and not would_wait(because):
            raise UserError(
                "Slurm would not take a job of this pool",
                because.removeprefix("allocation failure: "),
                "coddl doctor --engine slurm with the same options, which says what there is",
            )

    def _forget_logs(self) -> None:
        """Remove the logs of the oldest pilot jobs."""
        logs = [path for path in self._folder.glob("*.log") if path.stem.isdecimal()]
        logs.sort(key=lambda path: int(path.stem))
        for path in logs[:-LOGS_KEPT]:
            if int(path.stem) not in self._jobs:
                path.unlink(missing_ok=True)


def _waits_for(job: SlurmJob) -> str:
    """Say what a job waits for that has not started."""
    if job.state == "CONFIGURING":
        return "its machine is being started"
    at = f", expected at {_local_time(job.starts_at_s)}" if job.starts_at_s is not None else ""
    reason = job.reason or "Slurm has not said why yet"
    return f"Slurm job {job.id} waits in the queue ({reason}{at})"


def _local_time(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at_s))


def _check(launch: AgentLaunch, gpus_per_node: int) -> None:
    if launch.slots not in (None, gpus_per_node):
        because = f"{launch.slots} CPU slots can't have the ids of {gpus_per_node} GPUs"
        raise UserError("the slots of a node can't be granted by Slurm", because, "equal numbers")

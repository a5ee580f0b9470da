"""Slurm's commands, and what they print, read.

Only what has been the same in all versions for years: explicit formats of `squeue` and `sinfo`,
`sbatch --parsable`, and two values of `scontrol show config`. Fields are separated by `|`.
"""

import os
import re
import secrets
import signal
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from coddl.core.errors import UserError
from coddl.engines.engine import EngineUnavailable

ANSWER_S: Final = 30.0  # Slurm's commands try again for a while by themselves
JOB_FIELDS: Final = "%i|%T|%e|%l|%S|%N|%r"
NODE_FIELDS: Final = "%N|%T|%c|%G|%E"
SRUN_ENDS_S: Final = 10.0  # after it was signalled
KILL_WAIT_S: Final = 30.0  # between SIGTERM and SIGKILL, where Slurm does not report it
OUT_OF_USE: Final = ("down", "drain", "fail", "error", "inval", "maint", "unknown", "reboot")
SAME_S: Final = 5.0  # two times that are this close are one
SUBMITTED: Final = re.compile(r"^([0-9]+)(?:;\S+)?\s*\Z", re.MULTILINE)
TIME: Final = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
START: Final = re.compile(r"to start at (\S+)")
GPUS: Final = re.compile(r"\bgpu(?::[^:,()]+)?:(\d+)")


class SlurmJob(NamedTuple):
    """A job, as `squeue` shows it."""

    id: int
    state: str  # PENDING, RUNNING, COMPLETING, …
    ends_at_s: float | None = None  # by its limit, or by a preemption that was announced
    limit_s: float | None = None
    starts_at_s: float | None = None  # it has started, or Slurm expects it to
    host: str = ""
    reason: str = ""  # why it waits

    @property
    def is_cut_short(self) -> bool:
        """Return whether it ends before its limit: it is preempted, after a grace time."""
        if self.ends_at_s is None or self.limit_s is None or self.starts_at_s is None:
            return False
        return self.ends_at_s < self.starts_at_s + self.limit_s - SAME_S


class SlurmNode(NamedTuple):
    """A machine, as `sinfo` shows it."""

    name: str
    state: str
    cpus: int
    gpus: int
    reason: str = ""  # it is drained or down

    @property
    def is_draining(self) -> bool:
        """Return whether its operator wants it empty."""
        return "drain" in self.state

    @property
    def takes_jobs(self) -> bool:
        """Return whether jobs can start there, now or later; one with a * is silent."""
        return not self.state.startswith(OUT_OF_USE) and not self.state.endswith("*")


class SlurmVerdict(NamedTuple):
    """What Slurm says of a job that was not handed in."""

    is_taken: bool
    said: str
    starts_at_s: float | None = None


class SlurmCommands:
    """Runs commands of Slurm where they are installed."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """Without an environment, it is this process's."""
        self._environment = environment

    def jobs(self, name: str) -> list[SlurmJob]:
        """List our jobs of a name, also those that have ended a few minutes ago."""
        words = ["squeue", "--noheader", "--states=all", f"--user={os.getuid()}", f"--name={name}"]
        lines = self._asked(*words, f"--format={JOB_FIELDS}").splitlines()
        return [_job_of(line) for line in lines if line.count("|") >= JOB_FIELDS.count("|")]

    def nodes(self, *, partition: str = "", names: Sequence[str] = ()) -> list[SlurmNode]:
        """List machines: of a partition, or by their names; each once."""
        words = ["sinfo", "--noheader", "--Node", f"--format={NODE_FIELDS}"]
        words += [f"--partition={partition}"] if partition else []
        words += [f"--nodes={','.join(names)}"] if names else []
        lines = self._asked(*words).splitlines()
        found = [_node_of(line) for line in lines if line.count("|") >= NODE_FIELDS.count("|")]
        return list({node.name: node for node in found}.values())

    def submit(self, words: Sequence[str]) -> int:
        """Hand in a job; give its number. Raises EngineUnavailable if Slurm does not take it."""
        done = self._run("sbatch", "--parsable", *words)
        if done.returncode:
            because = _last_line(done.stderr)
            raise EngineUnavailable("Slurm did not take a job", because, "sbatch --test-only")
        # A cluster's name may follow, and what an administrator's wrapper prints may come before.
        if (number := SUBMITTED.search(done.stdout)) is None:
            because = f"sbatch --parsable printed no job number: {done.stdout.strip()[:80]!r}"
            raise EngineUnavailable("Slurm did not take a job", because, "sbatch --parsable")
        return int(number[1])

    def try_submit(self, words: Sequence[str]) -> str:
        """Ask Slurm whether it would take a job; return why not, or an empty string."""
        verdict = self.verdict(words)
        return "" if verdict.is_taken else verdict.said

    def verdict(self, words: Sequence[str]) -> SlurmVerdict:
        """Ask Slurm whether it would take a job, and when it would start it."""
        done = self._run("sbatch", "--test-only", *words, TZ="UTC")
        if done.returncode:
            return SlurmVerdict(False, _last_line(done.stderr))
        found = START.search(done.stderr)
        starts_at_s = clock_time(found[1]) if found else None
        return SlurmVerdict(True, _last_line(done.stderr), starts_at_s)

    def signal(self, job: int, name: str) -> None:
        """Send a signal to the process that a job began with, and to no other."""
        self._run("scancel", f"--signal={name}", "--batch", str(job))  # one that has ended is fine

    def cancel(self, job: int, *, only_pending: bool = False) -> None:
        """End a job, or withdraw one that has not started."""
        words = ["--state=PENDING"] if only_pending else []
        self._run("scancel", *words, str(job))

    def settings(self) -> dict[str, str]:
        """Return the configuration of the cluster, by name."""
        lines = self._asked("scontrol", "show", "config").splitlines()
        pairs = (line.partition("=") for line in lines if "=" in line)
        return {name.strip(): value.strip() for name, _, value in pairs}

    def version(self) -> str:
        """Return the version of the commands here."""
        return self._asked("sinfo", "--version").strip().rpartition(" ")[2]

    def partitions(self) -> list[dict[str, str]]:
        """Return the settings of each partition, by name."""
        lines = self._asked("scontrol", "--all", "--oneliner", "show", "partition").splitlines()
        return [
            {name: value for name, _, value in (word.partition("=") for word in line.split())}
            for line in lines
            if line.startswith("PartitionName=")
        ]

    def run_on_node(
        self, words: Sequence[str], within_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a command through `srun`, in a job of its own that does not outlive this call.

        The return code is negative if it did not end in time.
        """
        name = f"coddl-{secrets.token_hex(4)}"
        try:
            process = subprocess.Popen(
                ["srun", f"--job-name={name}", *words],
                env=self._env(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # a Ctrl-C is for us, and we end it
            )
        except FileNotFoundError:
            raise _not_found("srun") from None
        try:
            printed, said = process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            printed, said = self._ended(process, name)
            return subprocess.CompletedProcess(words, -signal.SIGTERM, printed, said)
        except BaseException:  # such as Ctrl-C
            self._ended(process, name)
            raise
        return subprocess.CompletedProcess(words, process.returncode, printed, said)

    def _ended(self, srun: subprocess.Popen[str], name: str) -> tuple[str, str]:
        """End a command of `srun` and its job; give what it has printed and said."""
        srun.terminate()  # it cancels its job
        try:
            return srun.communicate(timeout=SRUN_ENDS_S)
        except subprocess.TimeoutExpired:
            srun.kill()
            return srun.communicate()
        finally:
            self._run("scancel", f"--user={os.getuid()}", f"--name={name}")

    def _asked(self, *words: str) -> str:
        """Return what a command prints; raises EngineUnavailable if it fails."""
        done = self._run(*words, TZ="UTC")
        if done.returncode:
            raise _unavailable(_last_line(done.stderr))
        return done.stdout

    def _run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                words,
                env={**self._env(), **env},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=ANSWER_S,
            )
        except FileNotFoundError:
            raise _not_found(words[0]) from None
        except subprocess.TimeoutExpired:
            raise _unavailable(f"no answer within {ANSWER_S:.0f} s") from None

    def _env(self) -> dict[str, str]:
        """Return the environment, less what an allocation that we may be in has set for itself."""
        found = os.environ if self._environment is None else self._environment
        return {n: v for n, v in found.items() if not n.startswith("SLURM_") or n == "SLURM_CONF"}


def _not_found(command: str) -> UserError:
    try_ = "a machine with Slurm's commands, such as a login node"
    return UserError("Slurm can't be used", f"{command} is not found", try_)


def _unavailable(because: str) -> EngineUnavailable:
    return EngineUnavailable("Slurm does not answer", because, "scontrol ping")


def _last_line(text: str) -> str:
    """Return the line that says why; some say again what was asked for below it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith("Try ")]
    return said[-1].removeprefix("sbatch: error: ") if said else "it said nothing"


def _job_of(line: str) -> SlurmJob:
    id_, state, ends, limit, starts, host, reason = line.split("|", JOB_FIELDS.count("|"))
    return SlurmJob(
        int(id_),
        state,
        clock_time(ends),
        duration(limit),
        clock_time(starts),
        host,
        "" if reason == "None" else reason,
    )


def _node_of(line: str) -> SlurmNode:
    name, state, cpus, gres, reason = line.split("|", NODE_FIELDS.count("|"))
    gpus = sum(int(count) for count in GPUS.findall(gres))
    return SlurmNode(name, state, int(cpus), gpus, "" if reason == "none" else reason)


def clock_time(text: str) -> float | None:
    """Read a time such as 2026-11-17T22:14:48, in UTC; None: there is none."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None  # N/A, Unknown


def duration(text: str) -> float | None:
    """Read a limit: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS; None: there is none."""
    found = TIME.fullmatch(text.strip())
    if found is None:
        return None  # UNLIMITED, INVALID, NOT_SET
    days, first, second, third = (int(part) if part else None for part in found.groups())
    assert first is not None
    if days is not None:
        return days * 86400.0 + first * 3600.0 + (second or 0) * 60.0 + (third or 0)
    if second is None:
        return first * 60.0
    if third is None:
        return first * 60.0 + second
    return first * 3600.0 + second * 60.0 + third


def seconds_of(setting: str, default_s: float) -> float:
    """Read a setting such as `30 sec`."""
    number = setting.split()[0] if setting.split() else ""
    return float(number) if number.isdecimal() else default_s

"""What Slurm is asked for with each pilot job: one machine, with some of its GPUs and CPUs."""

from collections.abc import Iterable
from typing import Final

from coddl.engines.slurm.commands import SlurmNode
from coddl.engines.slurm.options import SlurmOptions

CPU_PART: Final = 0.75
# What `sbatch --test-only` says of a job that would only have to wait.
WAITS: Final = ("busy", "down, drained or reserved")


def pilot_words(options: SlurmOptions, gpus: int, nodes: Iterable[SlurmNode]) -> list[str]:
    """Return the options of `sbatch`; the machines are those of the partition."""
    words = ["--nodes=1", "--ntasks=1", f"--gres=gpu:{gpus}", "--no-requeue"]
    if not options.says_cpus and (cpus := cpu_share(nodes, gpus)):
        words += [f"--cpus-per-task={cpus}"]
    return words + options.sbatch_words


def cpu_share(nodes: Iterable[SlurmNode], gpus: int) -> int:
    """Count the CPUs that come with some GPUs of a machine: most of their share of its CPUs.

    With all of it, a node would wait for a machine without any other job.
    """
    shares = [n.cpus * gpus / n.gpus * CPU_PART for n in nodes if n.gpus >= gpus]
    return max(1, int(min(shares))) if shares else 0


def would_wait(said: str) -> bool:
    """Return whether Slurm would take the job, though it can't start it now."""
    return any(each in said for each in WAITS)

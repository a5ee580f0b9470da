"""How a pool asks Slurm for nodes."""

from dataclasses import dataclass, replace
from typing import Final

# An option of the user's that says how many CPUs a pilot job gets.
CPU_OPTIONS: Final = ("--cpus-per-", "-c", "--exclusive", "--ntasks", "-n", "--mincpus")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """What pilot jobs are submitted with; empty: Slurm's own default."""

    partition: str = ""
    time: str = ""  # the limit of a pilot job, as Slurm writes it
    account: str = ""
    sbatch_args: tuple[str, ...] = ()  # further ones, which hold over ours
    server_args: tuple[str, ...] | None = None  # of the server's job; None: it has none

    @property
    def words(self) -> list[str]:
        """Return the options of `coddl` that say so."""
        named = {"partition": self.partition, "time": self.time, "account": self.account}
        words = [word for name, value in named.items() if value for word in (f"--{name}", value)]
        return words + [f"--sbatch-arg={each}" for each in self.sbatch_args]

    @property
    def sbatch_words(self) -> list[str]:
        """Return the options of `sbatch` that say so."""
        named = {"partition": self.partition, "time": self.time, "account": self.account}
        words = [f"--{name}={value}" for name, value in named.items() if value]
        return [*words, *self.sbatch_args]

    @property
    def server_words(self) -> list[str]:
        """Return the options of `sbatch` for the server's job."""
        own = replace(self, sbatch_args=self.server_args or ())
        return own.sbatch_words

    @property
    def says_cpus(self) -> bool:
        """Return whether the user has said how many CPUs a pilot job gets."""
        return any(each.startswith(CPU_OPTIONS) for each in self.sbatch_args)


NO_OPTIONS: Final = SlurmOptions()

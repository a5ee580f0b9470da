"""How a pool asks Slurm for nodes: options of `coddl up`, `coddl connector` and `coddl doctor`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from coddl.core.errors import UserError

if TYPE_CHECKING:
    from coddl.engines.slurm.options import SlurmOptions

NO_LIMIT: Final = ("infinite", "unlimited")  # as Slurm writes it, in any case
# What has an option of its own, so that the pool knows it.
OWN: Final = {"partition": "-p", "time": "-t", "account": "-A"}

Partition = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Partition that Slurm's nodes come from (default: Slurm's default)."
    ),
]
TimeLimit = Annotated[
    str,
    typer.Option(
        "--time",
        metavar="TIME",
        help="Time limit of each Slurm job, which is one node: 8:00:00, 2-12 (default: Slurm's).",
    ),
]
Account = Annotated[
    str, typer.Option(metavar="NAME", help="Account that Slurm charges (default: Slurm's default).")
]
SbatchArgs = Annotated[
    list[str] | None,
    typer.Option(
        "--sbatch-arg",
        metavar="ARG",
        help="Option of sbatch for each Slurm job: --sbatch-arg=--mem=200G. May be repeated.",
    ),
]


def slurm_options(
    partition: str, time: str, account: str, sbatch_args: Iterable[str] | None
) -> "SlurmOptions":
    """Read how nodes are asked for; raises UserError for what `sbatch` would not understand."""
    from coddl.engines.slurm.commands import duration
    from coddl.engines.slurm.options import SlurmOptions

    if time and time.lower() not in NO_LIMIT and duration(time) is None:
        because = "Slurm writes limits as minutes, HH:MM:SS, D-HH or D-HH:MM:SS"
        raise UserError(f"--time {time} can't be used", because, "--time 8:00:00")
    args = tuple(sbatch_args or ())
    for each in args:
        if not each.startswith("-") or " " in each.partition("=")[0]:
            because = "it is not one option of sbatch, with its value after ="
            raise UserError(f"--sbatch-arg {each} can't be used", because, "--sbatch-arg=--mem=64G")
        for name, letter in OWN.items():
            if each.partition("=")[0] == f"--{name}" or each.startswith(letter):
                because = f"coddl has an option --{name}"
                raise UserError(f"--sbatch-arg {each} can't be used", because, f"--{name}")
    return SlurmOptions(partition=partition, time=time, account=account, sbatch_args=args)


def check_engine_is_slurm(engine: str, options: "SlurmOptions") -> None:
    """Refuse options of Slurm for other engines, which would ignore them."""
    if engine != "slurm" and options.words:
        name = options.words[0].partition("=")[0]
        raise UserError(f"{name} can't be used", "it is an option of Slurm alone", "--engine slurm")

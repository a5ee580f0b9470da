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
# What makes a job one node, found again by its name.
FIXED: Final = {
    "nodes": "-N",
    "ntasks": "-n",
    "array": "-a",
    "job-name": "-J",
    "chdir": "-D",
    "output": "-o",
    "requeue": "--requeue",
    "signal": "--signal",
}

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
ServerInJob = Annotated[
    bool,
    typer.Option("--server-in-job", help="Run the pool's server in a Slurm job, not here."),
]
ServerSbatchArgs = Annotated[
    list[str] | None,
    typer.Option(
        "--server-sbatch-arg",
        metavar="ARG",
        help="Option of sbatch for the server's Slurm job: --server-sbatch-arg=--partition=cpu.",
    ),
]


def server_job_args(is_in_job: bool, args: Iterable[str] | None) -> tuple[str, ...] | None:
    """Return the arguments of the server's job; None: it has none."""
    if args and not is_in_job:
        because = "the server has no Slurm job"
        raise UserError("--server-sbatch-arg can't be used", because, "--server-in-job, too")
    return tuple(args or ()) if is_in_job else None


def slurm_options(
    engine: str,
    asked: tuple[str, str, str],
    sbatch_args: Iterable[str] | None,
    server_args: Iterable[str] | None = None,
) -> "SlurmOptions":
    """Read how nodes are asked for: partition, time limit, account and further arguments.

    With `server_args`, the server has a job as well. Raises UserError for what `sbatch` would not
    understand, and for another engine, which would ignore it.
    """
    from coddl.engines.slurm.commands import duration
    from coddl.engines.slurm.options import SlurmOptions

    partition, time, account = asked
    if time and time.lower() not in NO_LIMIT and duration(time) is None:
        because = "Slurm writes limits as minutes, MM:SS, HH:MM:SS, D-HH or D-HH:MM:SS"
        raise UserError(f"--time {time} can't be used", because, "--time 8:00:00")
    args = tuple(sbatch_args or ())
    for each in (*args, *(server_args or ())):
        if not each.startswith("-") or " " in each.partition("=")[0]:
            because = "it is not one option of sbatch, with its value after ="
            raise UserError(f"--sbatch-arg {each} can't be used", because, "--sbatch-arg=--mem=64G")
    for each in args:
        for name, letter in (OWN | FIXED).items():
            if each.partition("=")[0] != f"--{name}" and not each.startswith(letter):
                continue
            if name in OWN:
                because, try_ = f"coddl has an option --{name}", f"--{name}"
            else:
                because, try_ = "coddl sets it: each node is one job on one machine", "no such arg"
            raise UserError(f"--sbatch-arg {each} can't be used", because, try_)
    options = SlurmOptions(
        partition=partition,
        time=time,
        account=account,
        sbatch_args=args,
        server_args=None if server_args is None else tuple(server_args),
    )
    words = [*options.words, *(["--server-in-job"] if server_args is not None else [])]
    if words and engine != "slurm":
        name = words[0].partition("=")[0]
        raise UserError(f"{name} can't be used", "it is an option of Slurm alone", "--engine slurm")
    return options

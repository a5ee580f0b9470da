"""Check whether this machine, or a cluster of an engine, is fit for a pool."""

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from coddl.cli.connect import Server, StateDir, needs
from coddl.cli.engines import EngineAddress, GpusPerNode, JobsDir
from coddl.cli.output import AsJson, Output, wants_json
from coddl.cli.slurm_options import (
    Account,
    Partition,
    SbatchArgs,
    TimeLimit,
    slurm_options,
)
from coddl.core.errors import UserError

if TYPE_CHECKING:
    from coddl.engines.doctor.results import CheckResult
    from coddl.engines.slurm.options import SlurmOptions

EXAMPLES = """
Examples:

  coddl doctor                       this machine, and its pool if there is one

  coddl doctor --engine ray --gpus-per-node 4 --jobs-dir /shared/jobs

  coddl doctor --engine ray --address 10.0.0.5:6379 -o json

  coddl doctor --engine slurm --partition gpu --gpus-per-node 4 --time 8:00:00
"""
CheckedEngine = Annotated[
    str, typer.Option("--engine", metavar="NAME", help="Check this engine, too: ray or slurm.")
]
ENGINES = ("", "ray", "slurm")
STYLES = {"OK": "green", "WARN": "yellow", "FAIL": "red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What a user wants to have checked."""

    engine: str
    address: str
    slurm: "SlurmOptions"
    gpus: int
    jobs_dir: str
    server: str
    state_dir: str


def doctor(
    *,
    engine: CheckedEngine = "",
    address: EngineAddress = "",
    partition: Partition = "",
    time: TimeLimit = "",
    account: Account = "",
    sbatch_args: SbatchArgs = None,
    gpus_per_node: GpusPerNode = None,
    jobs_dir: JobsDir = "",
    server: Server = "",
    state_dir: StateDir = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Check whether this machine is fit for a pool; with `--engine`, the engine's cluster, too.

    Changes nothing. In a Slurm cluster, a job with one free GPU runs for a moment.

    The exit code is 1 if a check has failed.
    """
    if engine not in ENGINES:
        because = "the engines that can be checked are: ray, slurm"
        raise UserError(f"--engine {engine} can't be used", because, "--engine ray")
    asked = _Question(
        engine=engine,
        address=address,
        slurm=slurm_options(engine, (partition, time, account), sbatch_args),
        gpus=gpus_per_node or 1,
        jobs_dir=jobs_dir,
        server=server,
        state_dir=state_dir,
    )
    if address and engine != "ray":
        because = "Slurm's commands know their cluster" if engine else "it is the address of Ray"
        raise UserError("--address can't be used", because, "--engine ray")
    with needs("agent"):
        found = list(_results(asked))
    from coddl.engines.doctor.results import counts, has_failed

    is_fit = not has_failed(found)
    if wants_json(output, as_json):
        print(json.dumps({"ok": is_fit, "checks": [each.parts() for each in found]}, indent=2))
    else:
        _show(found)
        print(counts(found))
    raise typer.Exit(0 if is_fit else 1)


def _results(asked: _Question) -> "Iterable[CheckResult]":
    """Make all checks, one concern after the other."""
    from pathlib import Path

    from coddl.api.client import Unreachable, find, state_folder
    from coddl.engines.doctor.machine import gather_machine, machine_results
    from coddl.engines.doctor.server import ServerFacts, gather_server, server_results

    folder = state_folder(asked.state_dir)
    jobs = Path(asked.jobs_dir).absolute() if asked.jobs_dir else folder / "jobs"
    yield from machine_results(gather_machine(folder, jobs))
    about: ServerFacts | None = None
    with contextlib.suppress(Unreachable):  # there is no pool
        about = gather_server(find(asked.server, asked.state_dir))
    yield from server_results(about)
    server = about.url if about is not None else ""
    if asked.engine == "ray":
        yield from _ray_results(asked, server, str(jobs) if asked.jobs_dir or server else "")
    elif asked.engine == "slurm":
        yield from _slurm_results(asked, server, str(jobs))


def _ray_results(asked: _Question, server: str, jobs_dir: str) -> "Iterable[CheckResult]":
    from coddl.engines.doctor.ray import ray_results
    from coddl.engines.doctor.ray_gather import RayQuestion, gather_ray

    question = RayQuestion(
        address=asked.address or "auto",
        gpus_per_node=asked.gpus,
        server=server,
        jobs_dir=jobs_dir,
    )
    return ray_results(gather_ray(question))


def _slurm_results(asked: _Question, server: str, jobs_dir: str) -> "Iterable[CheckResult]":
    from coddl.engines.doctor.slurm import slurm_results
    from coddl.engines.doctor.slurm_gather import SlurmQuestion, gather_slurm

    question = SlurmQuestion(
        options=asked.slurm, gpus_per_node=asked.gpus, server=server, jobs_dir=jobs_dir
    )
    return slurm_results(gather_slurm(question))


def _show(results: "Iterable[CheckResult]") -> None:
    from rich.text import Text

    from coddl.cli.poolview import show

    found = list(results)
    width = max(len(each.check) for each in found)
    for each in found:
        state = Text(f"{each.state:4}", style=STYLES[each.state])
        lines = [state + Text(f"  {each.check:{width}}  {each.what}")]
        if each.state != "OK":
            gap = " " * (width + 8)
            lines += [Text(f"{gap}because {each.because}"), Text(f"{gap}try     {each.try_}")]
        show(lines)

"""Check whether this machine, or a cluster of an engine, is fit for a pool."""

import contextlib
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from coddl.cli.connect import Server, StateDir, needs
from coddl.cli.engines import EngineAddress, GpusPerNode, JobsDir
from coddl.cli.output import AsJson, Output, wants_json
from coddl.core.errors import UserError

if TYPE_CHECKING:
    from coddl.engines.doctor.results import CheckResult

EXAMPLES = """
Examples:

  coddl doctor                       this machine, and its pool if there is one

  coddl doctor --engine ray --gpus-per-node 4 --jobs-dir /shared/jobs

  coddl doctor --engine ray --address 10.0.0.5:6379 -o json
"""
CheckedEngine = Annotated[
    str, typer.Option("--engine", metavar="NAME", help="Check this engine, too: ray.")
]
STYLES = {"OK": "green", "WARN": "yellow", "FAIL": "red"}


def doctor(
    *,
    engine: CheckedEngine = "",
    address: EngineAddress = "",
    gpus_per_node: GpusPerNode = None,
    jobs_dir: JobsDir = "",
    server: Server = "",
    state_dir: StateDir = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Check whether this machine is fit for a pool; with `--engine`, the engine's cluster, too.

    Changes nothing. The exit code is 1 if a check has failed.
    """
    if engine not in ("", "ray"):
        because = "the engine that can be checked is: ray"
        raise UserError(f"--engine {engine} can't be used", because, "--engine ray")
    with needs("agent"):
        found = list(_results(engine, address, gpus_per_node, jobs_dir, (server, state_dir)))
    from coddl.engines.doctor.results import counts, has_failed

    is_fit = not has_failed(found)
    if wants_json(output, as_json):
        print(json.dumps({"ok": is_fit, "checks": [each.parts() for each in found]}, indent=2))
    else:
        _show(found)
        print(counts(found))
    raise typer.Exit(0 if is_fit else 1)


def _results(
    engine: str, address: str, gpus: int | None, jobs_dir: str, pool: tuple[str, str]
) -> "Iterable[CheckResult]":
    """Make all checks, one concern after the other."""
    from pathlib import Path

    from coddl.api.client import Unreachable, find, state_folder
    from coddl.engines.doctor.machine import gather_machine, machine_results
    from coddl.engines.doctor.server import ServerFacts, gather_server, server_results

    server, state_dir = pool
    folder = state_folder(state_dir)
    jobs = Path(jobs_dir).absolute() if jobs_dir else folder / "jobs"
    yield from machine_results(gather_machine(folder, jobs))
    about: ServerFacts | None = None
    with contextlib.suppress(Unreachable):  # there is no pool
        about = gather_server(find(server, state_dir))
    yield from server_results(about)
    if engine == "ray":
        from coddl.engines.doctor.ray import ray_results
        from coddl.engines.doctor.ray_gather import RayQuestion, gather_ray

        question = RayQuestion(
            address=address or "auto",
            gpus_per_node=gpus or 1,
            server=about.url if about is not None else "",
            jobs_dir=str(jobs) if jobs_dir or about is not None else "",
        )
        yield from ray_results(gather_ray(question))


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

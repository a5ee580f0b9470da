"""What brings nodes to a pool: options of `coddl up`, and the process that it runs for them."""

import difflib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from coddl.cli.addresses import TlsCa
from coddl.cli.connect import StateDir, note
from coddl.cli.slurm_options import (
    Account,
    Partition,
    SbatchArgs,
    TimeLimit,
    slurm_options,
)
from coddl.cli.spans import read_span
from coddl.core.errors import UserError

if TYPE_CHECKING:
    from coddl.core.node_count import NodeBounds
    from coddl.engines.pool import PoolOptions

CONNECTOR_EXAMPLES = "Examples:  coddl connector --engine ray --nodes 0..8 --gpus-per-node 4"
NODES: Final = "0..8"  # that an engine may bring
ENGINE_FILE: Final = "engine"  # in the state folder: how the pool's engine was named last


def _complete_engines(incomplete: str) -> list[str]:
    return [each for each in ("local", "ray", "slurm", "none") if each.startswith(incomplete)]


Slots = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1024,
        metavar="N",
        help="Number of CPU slots (default: use the GPUs; without GPUs, one per core).",
    ),
]
AgentServer = Annotated[
    str,
    typer.Option(
        metavar="URL", envvar="CODDL_SERVER", help="Server of the pool (default: this machine's)."
    ),
]
JobsDir = Annotated[
    str,
    typer.Option(
        metavar="DIR", help="Directory for checkpoints of jobs, shared by all agents of the pool."
    ),
]
Checkpoints = Annotated[
    str,
    typer.Option(
        metavar="URI",
        help="Where jobs keep checkpoints if nodes share no directory: s3://bucket/folder, …",
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="What brings nodes as jobs need them: local (agents of this machine), ray, slurm; "
        "none: nothing any more.",
        autocompletion=_complete_engines,
    ),
]
NodeRange = Annotated[
    str,
    typer.Option(
        "--nodes", metavar="MIN..MAX", help="How many nodes the engine may bring (default: 0..8)."
    ),
]
GpusPerNode = Annotated[
    int | None,
    typer.Option(min=1, max=1024, metavar="N", help="GPUs of each node that the engine brings."),
]
EngineAddress = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Address of the engine (default: it is found).")
]
Idle = Annotated[
    str,
    typer.Option(metavar="TIME", help="How long a node that no job needs is kept."),
]


def folder_at(option: str, path: str) -> Path:
    """Return the whole path of a directory; raises UserError if it is a URI."""
    if "://" in path:
        try_ = f"--checkpoints {path}, of coddl up or coddl server"
        raise UserError(f"{option} {path} can't be used", "it is a URI, not a directory", try_)
    return Path(path).absolute()


def engine_bounds(engine: str, nodes: str, gpus: int | None, idle: str) -> "NodeBounds":
    """Read within which bounds an engine brings nodes."""
    from coddl.core.node_count import NodeBounds, node_range
    from coddl.engines.connector import ENGINES

    if engine not in ENGINES:
        near = difflib.get_close_matches(engine, ENGINES, 1) or ["ray"]
        because = f"the engines are: {', '.join(ENGINES)}"
        raise UserError(f"--engine {engine} can't be used", because, f"--engine {near[0]}")
    least, most = node_range(nodes or NODES)
    if gpus is None:
        raise UserError(
            "the engine can't bring nodes",
            "how many GPUs each of them has is not given",
            "--slots 2" if engine == "local" else "--gpus-per-node 4",
        )
    idle_s = read_span("--idle", idle)
    return NodeBounds(least, most, gpus, ENGINES[engine], idle_s)


def checkpoint_uri(text: str) -> str:
    """Return where jobs keep checkpoints; raises UserError if that is no such URI."""
    from coddl.api.checkpoint_uri import check_uri

    return check_uri(text) if text else ""


def named_engine(engine: str, state_dir: str) -> str:
    """Return the engine of a pool; `none` says that it has none any more."""
    from coddl.api.client import state_folder

    if engine != "none":
        return engine
    (state_folder(state_dir) / ENGINE_FILE).unlink(missing_ok=True)
    return ""


def check_same_engine(options: "PoolOptions") -> None:
    """Raise UserError if a pool has had an engine, and none is named now.

    Without its engine, jobs would run on the machine where the command was typed.
    """
    path = options.folder / ENGINE_FILE
    if not options.engine and path.exists():
        raise UserError(
            "the pool can't be started like this",
            "its nodes were brought by an engine, which is not named",
            f"coddl up {path.read_text().strip()}; or --engine none, to use this machine instead",
        )


def remember_engine(options: "PoolOptions") -> None:
    """Note how the engine of a pool that has started was named."""
    if not options.engine:
        return
    words = engine_words(options)
    words += ["--slots", str(options.slots)] if options.slots is not None else []
    words += ["--host", options.host] if options.engine != "local" else []
    words += ["--jobs-dir", options.jobs_dir] if options.jobs_dir else []
    if (server_args := options.slurm.server_args) is not None:
        words += ["--server-in-job", *(f"--server-sbatch-arg={each}" for each in server_args)]
    (options.folder / ENGINE_FILE).write_text(shlex.join(words) + "\n")


def engine_words(options: "PoolOptions") -> list[str]:
    """Return the options that say what brings nodes to a pool."""
    if (bounds := options.bounds) is None:
        return []
    words = ["--engine", options.engine, "--nodes", f"{bounds.least}..{bounds.most}"]
    words += ["--gpus-per-node", str(bounds.gpus), "--idle", f"{bounds.idle_s:g}s"]
    words += ["--address", options.address] if options.address else []
    return words + options.slurm.words


def engine_address(engine: str, address: str) -> str:
    """Return the address of an engine; raises UserError for one that has none."""
    if address and engine != "ray":
        because = "it is the address of a Ray cluster"
        raise UserError(f"--address {address} can't be used", because, "--engine ray")
    return address


def reachable_host(engine: str, host: str) -> str:
    """Return the address to listen on; raises UserError if the nodes of an engine can't reach it.

    Nodes of Slurm are always other machines, so asking for them asks for this, too.
    """
    if engine == "slurm":
        return host or "0.0.0.0"
    if engine == "ray" and not host:
        raise UserError(
            f"--engine {engine} can't be used",
            "the server would listen on 127.0.0.1, which other machines can't reach",
            "--host 0.0.0.0; or --host 127.0.0.1 if all its nodes are on this machine",
        )
    return host


def connector(
    *,
    engine: Engine = "",
    node_range: NodeRange = "",
    gpus_per_node: GpusPerNode = None,
    slots: Slots = None,
    address: EngineAddress = "",
    partition: Partition = "",
    time: TimeLimit = "",
    account: Account = "",
    sbatch_arg: SbatchArgs = None,
    idle: Idle = "5m",
    server: AgentServer = "",
    tls_ca: TlsCa = "",
    jobs_dir: JobsDir = "",
    state_dir: StateDir = "",
) -> None:
    """Have an engine bring nodes to a pool; `coddl up --engine` runs it."""
    from coddl.api.client import Credentials, find, state_folder
    from coddl.engines.connector import ConnectorOptions, run_connector

    found = find(server, state_dir, given=Credentials(tls_ca=tls_ca))
    slurm = slurm_options(engine, (partition, time, account), sbatch_arg)
    options = ConnectorOptions(
        engine=engine,
        folder=state_folder(state_dir),
        server=found.for_agents,
        tls_ca=found.ca,
        bounds=engine_bounds(engine, node_range, gpus_per_node or slots, idle),
        slots=slots,
        jobs_dir=str(folder_at("--jobs-dir", jobs_dir)) if jobs_dir else "",
        address=engine_address(engine, address),
        slurm=slurm,
    )
    raise typer.Exit(run_connector(options, note))

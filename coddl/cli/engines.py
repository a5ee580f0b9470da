"""What brings nodes to a pool: options of `coddl up`, and the process that it runs for them."""

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

CONNECTOR_EXAMPLES = "Examples:  coddl connector --engine ray --nodes 0..8 --gpus-per-node 4"
NODES: Final = "0..8"  # that an engine may bring

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
        help="What brings nodes as jobs need them: local (agents of this machine), ray or slurm.",
    ),
]
NodeRange = Annotated[
    str,
    typer.Option("--nodes", metavar="MIN..MAX", help="How many nodes the engine may bring."),
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
    """Give the whole path of a directory; raises UserError if it is a URI."""
    if "://" in path:
        try_ = f"--checkpoints {path}, of coddl up or coddl server"
        raise UserError(f"{option} {path} can't be used", "it is a URI, not a directory", try_)
    return Path(path).absolute()


def engine_bounds(engine: str, nodes: str, gpus: int | None, idle: str) -> "NodeBounds":
    """Read within which bounds an engine brings nodes."""
    from coddl.core.node_count import NodeBounds, node_range
    from coddl.engines.connector import ENGINES

    if engine not in ENGINES:
        raise UserError(
            f"--engine {engine} can't be used",
            f"the engines are: {', '.join(ENGINES)}",
            "--engine ray",
        )
    least, most = node_range(nodes or NODES)
    if gpus is None:
        raise UserError(
            "the engine can't bring nodes",
            "how many GPUs each of them has is not given",
            "--slots 2" if engine == "local" else "--gpus-per-node 4",
        )
    idle_s = read_span("--idle", idle)
    return NodeBounds(least, most, gpus, ENGINES[engine], idle_s)


def reachable_host(engine: str, host: str) -> str:
    """Give the address to listen on; raises UserError if the nodes of an engine can't reach it.

    Nodes of Slurm are always other machines, so who asks for them asks for this, too.
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
        address=address,
        slurm=slurm,
    )
    raise typer.Exit(run_connector(options, note))

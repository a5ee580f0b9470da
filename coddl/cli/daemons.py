"""Run the parts of a pool by themselves, in the foreground: server, agent."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from coddl.cli.addresses import (
    LOOPBACK,
    PORT,
    Advertise,
    AgentHost,
    Host,
    Port,
    TlsCa,
    TlsCert,
    TlsKey,
    TokenFile,
    tls_files,
)
from coddl.cli.connect import StateDir, needs
from coddl.cli.engines import AgentServer, Checkpoints, JobsDir, Slots, folder_at
from coddl.cli.memory_size import read_memory
from coddl.cli.retention_options import Keep, retention_of
from coddl.cli.sharing_options import ClusterFile, CoolDown, Placement, Plugins, Policy
from coddl.core.errors import UserError

if TYPE_CHECKING:
    from coddl.agent.options import AgentOptions

SERVER_EXAMPLES = """
Examples:

  coddl server --host 0.0.0.0      agents on other machines can connect

  coddl server --host 0.0.0.0 --tls-cert head.pem --tls-key head.key --tls-ca ca.pem

  coddl server --log-format json
"""
AGENT_EXAMPLES = """
Examples:

  coddl agent --server http://head:7433 --token-file token --jobs-dir /nfs/jobs

  coddl agent --server https://head:7433 --token-file token --tls-ca ca.pem --jobs-dir /nfs/jobs

  coddl agent --slots 8            8 CPU slots for the pool on this machine
"""
SlotIds = Annotated[
    str,
    typer.Option(
        metavar="1,3", help="Numbers of the CPU slots, as an engine gave them.", hidden=True
    ),
]
EndsWithLease = Annotated[
    bool,
    typer.Option(
        "--ends-with-lease",
        help="End when the server has not answered for as long as the lease, as for an engine.",
        hidden=True,
    ),
]
HostMemory = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        envvar="CODDL_HOST_MEMORY",
        help="Host memory for suspended jobs and for jobs that wait for their turn, such as 64GiB "
        "(default: half of the memory, or of /dev/shm).",
    ),
]
GpuMemory = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        envvar="CODDL_GPU_MEMORY",
        help="Memory of each GPU that jobs taking turns may use together, and stay in (default: "
        "all of it; 0: only the job that has the turn).",
    ),
]
ReadTokenFile = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        help="File with a second token, which may only read (default: read-token in the state "
        "directory).",
    ),
]
LogFormat = Annotated[Literal["console", "json"], typer.Option(help="Format of the log.")]
Lease = Annotated[
    float,
    typer.Option(
        "--lease",
        min=1,
        metavar="S",
        help="Seconds without the server after which agents save and stop their jobs.",
    ),
]
NodeName = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Name of the node (default: the machine's).")
]
Warm = Annotated[
    bool,
    typer.Option(
        "--warm/--no-warm", help="Keep an interpreter with torch loaded, for fast starts."
    ),
]


def server(
    *,
    host: Host = "",
    port: Port = PORT,
    advertise: Advertise = "",
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    tls_ca: TlsCa = "",
    read_token_file: ReadTokenFile = "",
    policy: Policy = "",
    placement: Placement = "",
    plugin: Plugins = None,
    cluster: ClusterFile = "",
    cool_down_s: CoolDown = None,
    checkpoints: Checkpoints = "",
    lease_s: Lease = 120.0,
    keep: Keep = None,
    log_format: LogFormat = "console",
    state_dir: StateDir = "",
) -> None:
    """Run the server of a pool in the foreground; agents on any machine can join."""
    from coddl.api.client import state_folder

    with needs("server"):
        from coddl.server.main import ServeOptions, serve
    options = ServeOptions(
        state_dir=state_folder(state_dir),
        host=host or LOOPBACK,
        port=port,
        advertise=advertise,
        tls=tls_files(tls_cert, tls_key, tls_ca),
        read_token_file=read_token_file,
        policy=policy,
        placement=placement,
        plugins=tuple(plugin or ()),
        cluster=cluster,
        cool_down_s=cool_down_s,
        checkpoints=checkpoints,
        lease_s=lease_s,
        retention=retention_of(keep or ()),
        log_format=log_format,
    )
    raise typer.Exit(serve(options))


def agent(
    *,
    server: AgentServer = "",
    token_file: TokenFile = "",
    tls_ca: TlsCa = "",
    name: NodeName = "",
    slots: Slots = None,
    slot_ids: SlotIds = "",
    ends_with_lease: EndsWithLease = False,
    host: AgentHost = "",
    jobs_dir: JobsDir = "",
    warm: Warm = True,
    host_memory: HostMemory = "",
    gpu_memory: GpuMemory = "",
    log_format: LogFormat = "console",
    state_dir: StateDir = "",
) -> None:
    """Add this machine's GPUs to a pool, in the foreground. Jobs run as the current user."""
    from coddl.api.client import Credentials, find, state_folder

    folder = state_folder(state_dir)
    address = find(server, state_dir, given=Credentials(token_file, tls_ca))
    with needs("agent"):
        from coddl.agent.options import AgentOptions
    options = AgentOptions(
        server=address.for_agents,
        token=address.token,
        tls_ca=address.ca,
        state_dir=folder,
        jobs_dir=folder_at("--jobs-dir", jobs_dir) if jobs_dir else None,
        name=name,
        slots=slots,
        slot_ids=_numbers(slot_ids),
        host=host,
        warm=warm,
        log_format=log_format,
        ends_with_lease=ends_with_lease,
        host_memory_bytes=read_memory("--host-memory", host_memory),
        gpu_memory_bytes=read_memory("--gpu-memory", gpu_memory),
    )
    raise typer.Exit(_run(options))


def _run(options: "AgentOptions") -> int:
    """Run the agent of a node; or those of all nodes, where the state folder says so."""
    from coddl.agent.main import run_agent
    from coddl.api.emulation import emulation_in

    if (emulation := emulation_in(options.state_dir)) is None:
        return run_agent(options)
    with needs("sim"):
        from coddl.agent.emulated.main import run_emulated
    return run_emulated(options, emulation)


def _numbers(words: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in words.split(",")) if words else ()
    except ValueError:
        because = "it is not a list of numbers"
        raise UserError(f"--slot-ids {words} cannot be used", because, "--slot-ids 1,3") from None

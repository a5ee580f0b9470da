"""Start and end a pool: up, down."""

import itertools
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

import typer

from coddl.cli.addresses import (
    LOOPBACK,
    PORT,
    Advertise,
    Host,
    Port,
    TlsCa,
    TlsCert,
    TlsKey,
    tls_files,
)
from coddl.cli.connect import StateDir, note
from coddl.cli.emulation_options import (
    Emulate,
    EmulatedCost,
    EmulatedSpeeds,
    TimeScaleOption,
    emulation_of,
    emulation_words,
)
from coddl.cli.engines import (
    Checkpoints,
    Engine,
    EngineAddress,
    GpusPerNode,
    Idle,
    JobsDir,
    NodeRange,
    Slots,
    check_same_engine,
    checkpoint_uri,
    engine_address,
    engine_bounds,
    engine_words,
    folder_at,
    named_engine,
    reachable_host,
    remember_engine,
)
from coddl.cli.output import AsJson, Output, wants_json
from coddl.cli.retention_options import Keep, checked_keep
from coddl.cli.sharing_options import (
    ClusterFile,
    CoolDown,
    Placement,
    Plugins,
    Policy,
    sharing_options,
)
from coddl.cli.slurm_options import (
    Account,
    Partition,
    SbatchArgs,
    ServerInJob,
    ServerSbatchArgs,
    TimeLimit,
    server_job_args,
    slurm_options,
)
from coddl.core.errors import UserError

if TYPE_CHECKING:
    from coddl.api.client import Client
    from coddl.core.node_count import NodeBounds
    from coddl.engines.pool import PoolOptions

UP_EXAMPLES = """
Examples:

  coddl up               a pool with this machine's GPUs (or CPU cores)

  coddl up --slots 4     a pool with 4 CPU slots

  coddl up --policy afs-l --foreground

  coddl up --engine ray --nodes 0..8 --gpus-per-node 4 --host 0.0.0.0   nodes of a Ray cluster

  coddl up --engine slurm --partition gpu --nodes 0..8 --gpus-per-node 4 --time 8:00:00

  coddl up --plugin mine.py --policy mine.py:Mine     a policy of your own

  coddl up --emulate 16x4 --time-scale 100     16 emulated nodes, for jobs of coddl replay

  coddl down             stop it; jobs are saved and continue at the next up
"""
DOWN_EXAMPLES = "Examples:  coddl down   coddl down --cancel-jobs"
OWN_S: Final = 10.0  # within which a server on this machine answers
SLOW_START_S: Final = 4.0  # after which a start says why it takes long

Foreground = Annotated[
    bool, typer.Option("--foreground", help="Stay in the foreground; Ctrl-C stops the pool.")
]
Agents = Annotated[
    int, typer.Option(min=1, max=64, metavar="K", help="Number of agents on this machine.")
]
CancelJobs = Annotated[bool, typer.Option("--cancel-jobs", help="Cancel all jobs first.")]


def up(
    *,
    slots: Slots = None,
    emulate: Emulate = "",
    speeds: EmulatedSpeeds = "",
    time_scale: TimeScaleOption = 1.0,
    reconfigure: EmulatedCost = "none",
    engine: Engine = "",
    node_range: NodeRange = "",
    gpus_per_node: GpusPerNode = None,
    address: EngineAddress = "",
    partition: Partition = "",
    time: TimeLimit = "",
    account: Account = "",
    sbatch_arg: SbatchArgs = None,
    server_in_job: ServerInJob = False,
    server_sbatch_arg: ServerSbatchArgs = None,
    idle: Idle = "5m",
    host: Host = "",
    advertise: Advertise = "",
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    tls_ca: TlsCa = "",
    jobs_dir: JobsDir = "",
    checkpoints: Checkpoints = "",
    policy: Policy = "",
    placement: Placement = "",
    plugin: Plugins = None,
    cluster: ClusterFile = "",
    cool_down_s: CoolDown = None,
    keep: Keep = None,
    port: Port = PORT,
    agents: Agents = 1,
    foreground: Foreground = False,
    state_dir: StateDir = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Start a pool in the background: a server, and an agent here or what brings nodes."""
    from coddl.engines.pool import PoolOptions

    engine = named_engine(engine or ("local" if node_range else ""), state_dir)
    asked, in_job = (partition, time, account), (server_in_job, server_sbatch_arg)
    options = PoolOptions(
        folder=_folder(state_dir),
        port=port,
        agents=_checked_agents(agents, slots, engine, emulate),
        slots=slots,
        sharing=sharing_options(policy, placement, plugin, cool_down_s),
        slurm=slurm_options(engine, asked, sbatch_arg, server_job_args(*in_job)),
        host=reachable_host(engine, host) or LOOPBACK,
        advertise=advertise,
        tls=tls_files(tls_cert, tls_key, tls_ca),
        engine=engine,
        bounds=engine_bounds(engine, node_range, gpus_per_node or slots, idle) if engine else None,
        address=engine_address(engine, address),
        jobs_dir=str(folder_at("--jobs-dir", jobs_dir)) if jobs_dir else "",
        checkpoints=checkpoint_uri(checkpoints),
        emulation=emulation_of(state_dir, emulate, speeds, time_scale, reconfigure),
    )
    _begin(options, cluster, keep, foreground=foreground, as_json=wants_json(output, as_json))


def _checked_agents(agents: int, slots: int | None, engine: str, emulate: str) -> int:
    """Return the number of agents; raises UserError if options name different nodes."""
    other = f"--engine {engine}" if engine else f"--slots {slots}" if slots is not None else ""
    if emulate and other:
        because = "the nodes of the pool are emulated, as --emulate says"
        raise UserError(f"{other} can't be used", because, f"--emulate {emulate} alone")
    if agents > 1 and engine:
        because = f"nodes are brought by the engine {engine}"
        raise UserError(f"--agents {agents} can't be used", because, "--nodes 0..8")
    if agents > 1 and slots is None:
        raise UserError(
            f"--agents {agents} can't be used by itself",
            "all agents would use the same GPUs",
            f"--agents {agents} --slots 2",
        )
    return agents


def _folder(state_dir: str) -> Path:
    """Return the state folder of a pool."""
    from coddl.api.client import state_folder

    return state_folder(state_dir)


def _begin(
    options: "PoolOptions", cluster: str, keep: Keep, *, foreground: bool, as_json: bool
) -> None:
    """Start a pool, here or in the background; `cluster` says how its nodes are wired."""
    options = replace(options, keep=checked_keep(keep))
    options = with_cluster(options, cluster) if cluster else options
    if foreground:
        raise typer.Exit(_supervise(options))
    _start(options, as_json)


def _start(options: "PoolOptions", as_json: bool) -> None:
    """Start a pool in the background, unless it runs, and print its address."""
    from coddl.engines.pool import up
    from coddl.engines.slurm.server_job import start_in_job

    is_new = not _is_up(options.folder)
    if is_new:
        check_same_engine(options)
    if is_new and options.slurm.server_args is not None:
        # Other users may have servers on the machine that Slurm chooses.
        options = replace(options, port=0 if options.port == PORT else options.port)
        start_in_job(options, words_of_up(options), lambda: is_ready(options), note)
    elif is_new:
        up(options, words_of_up(options), told_if_slow(lambda: is_ready(options)))
    if is_new:
        remember_engine(options)
    if is_new and not options.engine:
        with own_client(options.folder) as client:
            client.delete("/engine")
    _tell_up(options, is_new, as_json)


def told_if_slow(is_ready: Callable[[], bool]) -> Callable[[], bool]:
    """Say once why a start takes long, where it does."""
    slow_at_s = monotonic() + SLOW_START_S

    def looked() -> bool:
        nonlocal slow_at_s
        if monotonic() > slow_at_s:
            slow_at_s = inf
            note("still starting: the first start of a version compiles the scheduler (about 20 s)")
        return is_ready()

    return looked


def _is_up(folder: Path) -> bool:
    """Return whether there is a pool, here or in a job of Slurm."""
    from coddl.engines.pool import supervisor_of
    from coddl.engines.slurm.server_job import server_jobs

    return bool(server_jobs(folder)) or supervisor_of(folder) is not None


def _tell_up(options: "PoolOptions", is_new: bool, as_json: bool) -> None:
    from coddl.api.client import LOOPBACK as LOOPBACK_NAMES
    from coddl.api.client import state_folder
    from coddl.engines.pool import server_of, supervisor_of

    about = server_of(options.folder)
    url = about.url if about else ""
    if as_json:
        told = {"state_dir": str(options.folder), "url": url, "started": is_new}
        told["read_token_file"] = f"{options.folder}/read-token"
        is_here = options.slurm.server_args is None
        pid = supervisor_of(options.folder) if is_here else None
        print(json.dumps({**told, "pid": pid}, indent=2))
    elif is_new:
        print(f"pool started at {url}: {_slots(options.folder, options.bounds)}")
        _note_problems(options.folder)
        tokens = f"{options.folder}/token, or {options.folder}/read-token to look only"
        print(f"dashboard: {url}   sign in with the token in {tokens}", file=sys.stderr)
        if urlsplit(url).hostname not in LOOPBACK_NAMES:
            ca = " --tls-ca FILE" if about and about.ca else ""
            more = f"coddl agent --server {url} --token-file FILE{ca}"
            more += "" if options.checkpoints else " --jobs-dir DIR"
            print(f"add a machine: {more} (FILE: {options.folder}/token)", file=sys.stderr)
        usual = state_folder(os.environ.get("CODDL_STATE_DIR", ""))
        of = "" if options.folder == usual else f" --state-dir {options.folder}"
        command = "submit" if options.emulation is None else "replay"
        what = "train.py" if options.emulation is None else "jobs.csv"
        submit, down = f"coddl {command}{of} {what}", f"coddl down{of}"
        print(f"submit a job: {submit}   stop the pool: {down}", file=sys.stderr)
    else:
        where = url or options.folder
        print(f"a pool is already running at {where}; its options are unchanged")
        if other := _not_applied(options):
            note(f"not applied: {other}; coddl down, then the same command again, would")


def _not_applied(options: "PoolOptions") -> str:
    """Return which options the running pool was not started with; usual ones do not count."""
    from coddl.engines.pool import PoolOptions, supervisor_of

    if (pid := supervisor_of(options.folder)) is None:
        return ""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text("utf-8").split("\0")
    except OSError:  # it has ended, or this is no Linux
        return ""
    usual = words_of_up(PoolOptions(folder=options.folder))
    known = {*itertools.pairwise(usual), *itertools.pairwise(words)}
    asked = itertools.pairwise(words_of_up(options))
    return ", ".join(
        f"{name} {value}"
        for name, value in asked
        if name.startswith("--") and (name, value) not in known
    )


def with_cluster(options: "PoolOptions", spec: str) -> "PoolOptions":
    """Return how the nodes of a pool are wired."""
    cluster = checked_cluster(spec, options.nodes)
    return replace(options, sharing=replace(options.sharing, cluster=cluster))


def checked_cluster(spec: str, agents: tuple[str, ...]) -> str:
    """Return the cluster for the server; print which agents it does not describe."""
    from coddl.traces.clusters import cluster_from, with_whole_path

    named = {node.name for node in cluster_from(spec).nodes}
    if strangers := ", ".join(agent for agent in agents if agent not in named):
        note(
            f"--cluster {spec} does not name {strangers}: only its links apply there; "
            f"name them in a file with names: [{strangers}]"
        )
    return with_whole_path(spec)


def _supervise(options: "PoolOptions") -> int:
    from coddl.engines.pool import PoolProcess

    check_same_engine(options)

    def tell(text: str) -> None:
        import datetime

        print(f"{datetime.datetime.now().astimezone():%H:%M:%S} {text}", flush=True)

    return PoolProcess(options, tell=tell).run()


def words_of_up(options: "PoolOptions") -> list[str]:
    """Return the command that keeps such a pool up."""
    from coddl.engines.processes import PROGRAM

    words = [*PROGRAM, "up", "--foreground", "--state-dir", str(options.folder)]
    words += ["--port", str(options.port), "--agents", str(options.agents)]
    words += ["--slots", str(options.slots)] if options.slots is not None else []
    words += options.sharing.words
    words += ["--host", options.host, *options.names]
    words += ["--jobs-dir", options.jobs_dir] if options.jobs_dir else []
    words += ["--checkpoints", options.checkpoints] if options.checkpoints else []
    return words + options.keep_words + engine_words(options) + emulation_words(options)


def own_client(folder: Path) -> "Client":
    """Reach for the server of a folder, whatever the environment says of others."""
    from coddl.api.client import Client, find

    return Client(find("", str(folder), env={}), within_s=OWN_S)


def is_ready(options: "PoolOptions") -> bool:
    """Return whether the server decides, and its agents or its engine have come."""
    try:
        with own_client(options.folder) as client:
            if not client.is_ready():
                return False
            if options.engine:
                return bool(client.get("/engine")["is_connected"])
            nodes = client.get("/nodes")["items"]
            back = {node["name"] for node in nodes if node["is_up"] and not node["is_awaited"]}
            return back.issuperset(options.nodes)
    except UserError:
        return False  # not yet


def _note_problems(folder: Path) -> None:
    """Print what the operator should fix, such as a policy whose plug-in was not given again."""
    with own_client(folder) as client:
        for problem in client.problems():
            note(problem)


def _slots(folder: Path, bounds: "NodeBounds | None") -> str:
    from coddl.cli.poolview import counted, unit_of

    with own_client(folder) as client:
        found, nodes = client.get("/pool"), client.get("/nodes")["items"]
    slots, count = counted(found["slots_total"], unit_of(nodes)), counted(found["nodes_up"], "node")
    policy = f"policy {found['policy']}"
    policy += f", checkpoints at {found['checkpoints']}" if found["checkpoints"] else ""
    if bounds is not None and not nodes:
        return f"{bounds.least}..{bounds.most} nodes of {bounds.gpus} as jobs need them, {policy}"
    return f"{slots} on {count}, {policy}"


def down(
    cancel_jobs: CancelJobs = False,
    state_dir: StateDir = "",
    output: Output = "table",
    as_json: AsJson = False,
) -> None:
    """Stop the pool of this machine; its jobs are saved and continue at the next `coddl up`."""
    from coddl.api.client import state_folder
    from coddl.cli.poolview import counted
    from coddl.engines.pool import NOT_RUNNING
    from coddl.engines.pool import down as end
    from coddl.engines.slurm.server_job import end_in_job

    folder = state_folder(state_dir)
    is_up = _is_up(folder)
    cancelled = _cancel_all(folder) if cancel_jobs and is_up else 0
    has_jobs = is_up and _has_jobs(folder)
    was_up = end_in_job(folder, note) or end(folder, note)
    if wants_json(output, as_json):
        print(json.dumps({"state_dir": str(folder), "was_up": was_up, "cancelled": cancelled}))
    elif not was_up:
        print(f"{NOT_RUNNING} ({folder})")
    else:
        jobs = "; coddl up continues its jobs" if has_jobs else ""
        jobs = f"; {counted(cancelled, 'job')} cancelled" if cancel_jobs else jobs
        print(f"pool stopped{jobs}")


def _has_jobs(folder: Path) -> bool:
    """Return whether a pool has jobs that are not over, or may have: its server does not answer."""
    from coddl.cli.waiting import OVER

    try:
        with own_client(folder) as client:
            return any(
                count for state, count in client.get("/pool")["jobs"].items() if state not in OVER
            )
    except UserError:
        return True


def _cancel_all(folder: Path) -> int:
    """Cancel all jobs and wait until they are over; return how many there were."""
    from coddl.cli.jobs import cancel_all
    from coddl.cli.waiting import wait_for

    with own_client(folder) as client:
        jobs = cancel_all(client)
        for job in jobs:
            wait_for(client, str(job["id"]))
    return len(jobs)

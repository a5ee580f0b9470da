"""`coddl agent`: starts what a node needs, and ends it in order.

The first SIGTERM suspends the jobs whose lead is this node; the second ends all processes. SIGUSR1
says that the machine goes away at a time that is in a file. (`leave_notice`)
"""

import asyncio
import contextlib
import fcntl
import getpass
import importlib.metadata
import logging
import os
import platform
import re
import secrets
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import structlog

from coddl import __version__
from coddl.agent import node_resources
from coddl.agent.command_runner import CommandRunner
from coddl.agent.devices import GpuDriver, are_hidden, discover, gpus_here, may_park
from coddl.agent.fence_process import FenceProcess
from coddl.agent.gpu_monitors import ForeignProcessMonitor, gpu_use_of
from coddl.agent.gpulocks import lock_gpus
from coddl.agent.inspection.store import known_links
from coddl.agent.job_directories import JobDirectories, fetch_from
from coddl.agent.job_environments import JobEnvironments, base_env
from coddl.agent.job_runner import ElasticRunner, JobRun, JobRunner, RunListener
from coddl.agent.lease_clock import now_s
from coddl.agent.lease_keeper import STOPPED, keep_lease
from coddl.agent.leave_notice import LeaveNotice
from coddl.agent.logs import LogSpool
from coddl.agent.memory_watch import watch_memory
from coddl.agent.node_agent import NodeAgent, NodeInfo
from coddl.agent.object_store import ObjectStore
from coddl.agent.options import SERVER_GONE, AgentOptions
from coddl.agent.orphans import OrphanProcesses, mark_of, process
from coddl.agent.server_line import WebSocketDialer
from coddl.agent.server_session import ReportOutbox, ServerSession
from coddl.agent.slot_table import AgentBridge
from coddl.api import jobsfolder
from coddl.api.jobsfolder import JobsFolder
from coddl.api.tls import trust
from coddl.api.wire import PROTOCOL, Hello
from coddl.core.errors import UserError
from coddl.core.pool.records import Device
from coddl.runtime.supervisor.job_host_server import JobHostServer
from coddl.runtime.supervisor.slots import HostAddress
from coddl.runtime.wire import Message

__all__ = ["AgentOptions", "run_agent"]

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LOOK_EVERY_S: Final = 1.0  # at slots whose processes should have left
GOODBYE_S: Final = 5.0  # that the last reports may take
STOP_S: Final = 600.0  # that jobs may take to make their state durable when we are told to stop

log = structlog.get_logger()


class ServerGone(UserError):
    """The server has not answered for so long that the agent has ended."""

    exit_code = SERVER_GONE

    def __init__(self, server: str, seconds: float) -> None:
        because = f"the server {server} has not answered for {seconds:.0f} s"
        super().__init__(
            "the agent has ended", because, "start it again with coddl up, or coddl server"
        )


def run_agent(options: AgentOptions) -> int:
    """Serve until told to stop; give the exit code. Raises UserError if it can't go on."""
    begin_log(options.log_format)
    if not NAME.fullmatch(options.node):
        because = "a name is at most 64 letters, digits, dots, dashes and underscores"
        raise UserError(f'"{options.node}" can\'t name a node', because, "--name node-1")
    if not options.token:
        because = f"{options.state_dir / 'token'}: No such file or directory"
        raise UserError("the token can't be read", because, "--token-file FILE")
    with _alone(options):
        return asyncio.run(_serve(options, trust(options.server, options.tls_ca)))


async def _serve(options: AgentOptions, tls: ssl.SSLContext | None) -> int:
    """Put an agent together, and take it apart when it is told to stop."""
    log.info("agent_started", node=options.node, jobs_run_as=getpass.getuser(), version=__version__)
    orphans = OrphanProcesses(options.folder)
    on_wait = lambda count: log.warning("waiting_for_old_processes", count=count)  # noqa: E731
    if killed := await asyncio.to_thread(orphans.end, on_wait):
        log.warning("stopped_processes_of_earlier_agent", processes=killed)
    boot = secrets.token_hex(8)
    jobs = await asyncio.to_thread(jobsfolder.make, options.jobs_folder, options.node, boot)
    cores = node_resources.own_cores()
    gpus = None if options.slots is not None or are_hidden() else gpus_here()
    devices = _devices(gpus, options, len(cores))
    locks = await asyncio.to_thread(lock_gpus, [each.gpu for each in devices if each.gpu])
    spool = LogSpool(options.folder / "logs")
    outbox = ReportOutbox(spool, lambda fact: node.on_safe(fact))
    mark = mark_of(options.folder)
    bridge = AgentBridge(
        spool,
        lambda *told: node.hear_holding(*told),
        _tell_warm,
        is_leased=lambda: session.is_leased,
    )
    address, hosts = _listening(options, mark, bridge)
    env = base_env(os.environ, node_resources.threads_of(len(devices), len(cores)))
    parts = node_resources.SlotCores(node_resources.cores_of(len(devices), cores))
    fetch = fetch_from(options.server, options.token, tls)
    directories = JobDirectories(options.jobs_folder, options.folder / "code", fetch)
    environments = JobEnvironments(directories, env, mark, parts, lambda: node.on_environment())
    info = _node_info(options, address, devices, gpus)
    node = NodeAgent(
        info, environments, bridge, hosts, _runner, sink=outbox, log_spool=spool, orphans=orphans
    )
    fence = FenceProcess(options.folder, locks)
    session = ServerSession(
        WebSocketDialer(options.server, options.token, tls),
        _hello(info, boot, jobs),
        outbox,
        on_pool=partial(_join, directories, jobs),
        on_store=partial(_use_store, directories),
        fence=fence.set,
        gpu_use=gpu_use_of(gpus, devices),
    )
    hosts.start()
    if gpus is not None:
        ForeignProcessMonitor(gpus, devices, node.gpus, node.hear_others).start()
    if options.warm:
        hosts.warm(sys.executable, env)
    end = partial(_end_processes, node, hosts)
    gone = partial(ServerGone, options.server) if options.ends_with_lease else None
    works = [session.run(node), keep_lease(node, session, gone), watch_memory(node, len(devices))]
    notice = LeaveNotice(options.folder)
    try:
        await _until_told(node, session, outbox, fence, works=works, notice=notice, end=end)
    finally:
        await end()
        environments.close()
        spool.close()
        await asyncio.to_thread(fence.close)
    log.info("agent_stopped")
    return 0


def _devices(gpus: GpuDriver | None, options: AgentOptions, cores: int) -> tuple[Device, ...]:
    found = discover(gpus, options.slots, cores, slot_ids=options.slot_ids)
    for problem in found.problems:
        log.warning("gpu_not_usable", problem=problem)
    kinds = sorted({each.kind for each in found.devices})
    log.info("slots_found", count=len(found.devices), kinds=kinds)
    return found.devices


def _node_info(
    options: AgentOptions,
    address: HostAddress,
    devices: tuple[Device, ...],
    gpus: GpuDriver | None,
) -> NodeInfo:
    links = known_links(options.state_dir, devices, len(node_resources.own_cores()))
    return NodeInfo(options.node, address, devices, *_memory(gpus, devices, options), links)


def _memory(
    gpus: GpuDriver | None, devices: tuple[Device, ...], options: AgentOptions
) -> tuple[int, int | None]:
    """Give the host memory for jobs without their GPUs, and that of a GPU for all that share it.

    None: there is no limit.
    """
    host_bytes, gpu_bytes = options.host_memory_bytes, options.gpu_memory_bytes
    if host_bytes is None:
        host_bytes = node_resources.parking_bytes()
    if gpu_bytes is None:
        gpu_bytes = min((each.memory_bytes for each in devices if each.gpu), default=None)
    return host_bytes if may_park(gpus, devices) else 0, gpu_bytes


def _runner(run: JobRun, listener: RunListener) -> JobRunner:
    return ElasticRunner(run, listener) if run.is_elastic else CommandRunner(run, listener)


def _join(directories: JobDirectories, jobs: JobsFolder, pool: str) -> None:
    """Be in a pool; raises UserError if the jobs folder is another's."""
    claim_jobs_folder(jobs, pool)
    directories.pool = pool


def claim_jobs_folder(jobs: JobsFolder, pool: str) -> None:
    """Have the jobs folder be that of the pool we are in; raises UserError if it is another's."""
    path = Path(jobs.path)
    try:
        found = jobsfolder.look(path)
        jobsfolder.check(found, pool, has_had_jobs=True)  # the server has judged what has no mark
        if found.pool != pool:
            jobsfolder.claim(path, pool)
    except OSError as error:
        because = f"{error.filename}: {error.strerror}"
        raise UserError(f"{path} can't be written", because, "another --jobs-dir") from None


def _use_store(directories: JobDirectories, uri: str) -> None:
    """Keep checkpoints where the pool does; raises UserError if that can't be reached from here."""
    if directories.pool:  # jobs may run that keep theirs where they began
        where = uri or "the jobs folders of its nodes"
        because = f"it now keeps checkpoints at {where}"
        raise UserError("the agent can't rejoin the pool", because, "start the agent again")
    store = ObjectStore(uri)
    store.check()
    directories.store = store
    log.info("checkpoints_at", uri=uri)


def _hello(info: NodeInfo, boot: str, jobs: JobsFolder) -> Hello:
    return Hello(
        protocol=PROTOCOL,
        version=__version__,
        node=info.name,
        boot=boot,
        host=info.address.host,
        port=info.address.port,
        peer_token=info.address.token,
        devices=info.devices,
        jobs=jobs,
        python=platform.python_version(),
        torch=_installed("torch"),
        parking_bytes=info.parking_bytes,
        links=dict(info.links),
    )


def _installed(package: str) -> str:
    """Tell which version of a package there is, without importing it; empty: none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


async def _end_processes(node: NodeAgent, job_hosts: JobHostServer) -> bool:
    """End what jobs have running here; tell whether nothing is left of it. Again does no harm."""
    pids = [*(pid for each in node.pids().values() for pid in each), *node.parked.pids]
    node.end_all(STOPPED)
    await _first(GOODBYE_S, node.idle())
    if job_hosts.is_alive:
        await asyncio.to_thread(job_hosts.close)
    found = [process(pid) for pid in pids]
    return not any(each is not None and not each.is_zombie for each in found)


async def _until_told(
    node: NodeAgent,
    session: ServerSession,
    outbox: ReportOutbox,
    fence: FenceProcess,
    *,
    works: Iterable[Coroutine[None, None, None]],
    notice: LeaveNotice,
    end: Callable[[], Coroutine[None, None, bool]],
) -> None:
    """Serve; at the first signal, or defect, let jobs leave; at the next signal return at once.

    Likewise at the end of one of the works, or when a notice is due.
    """
    loop = asyncio.get_running_loop()
    stop, kill = asyncio.Event(), asyncio.Event()

    defects: list[BaseException] = []

    def on_signal() -> None:
        (kill if stop.is_set() else stop).set()

    def on_notice() -> None:
        if notice.read() and notice.leaves_at_s is not None:
            log.warning("machine_goes_away", within_s=round(notice.leaves_at_s - now_s(), 1))
            outbox.notice(notice.leaves_at_s)

    def on_defect(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # A bug of ours may have spoilt more than is known: jobs are safer elsewhere.
        error = context.get("exception") or RuntimeError(context["message"])
        log.error("agent_defect", exc_info=error)
        defects.append(error)
        stop.set()

    loop.set_exception_handler(on_defect)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            loop.add_signal_handler(number, on_signal)
    loop.add_signal_handler(signal.SIGUSR1, on_notice)
    look = asyncio.ensure_future(_look_around(node, fence))
    due = asyncio.ensure_future(notice.due(lambda: node.is_free))
    tasks = [look, due, *(asyncio.ensure_future(work) for work in (*works, stop.wait()))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not due.done():  # after a notice the first signal is none of impatience
            stop.set()
        log.info("agent_stopping", jobs=[runner.run.job for runner in node.runners])
        outbox.leave()
        node.leave("its agent is stopping")
        await _first(STOP_S, node.idle(), kill.wait())
        while node.has_unsaved and not kill.is_set():  # what they have done must not be lost
            await _first(LOOK_EVERY_S, node.idle(), kill.wait())
        await _first(GOODBYE_S, _said(outbox, session), kill.wait())
        look.cancel()  # at what ends now
        if not kill.is_set() and await end():
            outbox.tell_left()
            await _first(GOODBYE_S, _hung_up(session), kill.wait())
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in (*ended, *defects):
        if isinstance(error, Exception):
            raise error


async def _look_around(node: NodeAgent, fence: FenceProcess) -> None:
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        node.look()
        fence.look()


async def _said(outbox: ReportOutbox, session: ServerSession) -> None:
    """Wait until the server knows all there was to say."""
    while session.is_up and not outbox.is_safe:
        await asyncio.sleep(0.02)


async def _hung_up(session: ServerSession) -> None:
    """Wait until the server has ended the line."""
    while session.is_up:
        await asyncio.sleep(0.02)


async def _first(within_s: float, *works: "Coroutine[None, None, object]") -> None:
    """Wait for the first of several things, or for some time."""
    tasks = [asyncio.ensure_future(work) for work in works]
    await asyncio.wait(tasks, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _listening(
    options: AgentOptions, mark: str, bridge: AgentBridge
) -> tuple[HostAddress, JobHostServer]:
    """Listen for job runners on other nodes; return the address and token that they need."""
    token = secrets.token_urlsafe(32)
    host = options.host or _own_address(options.server)
    try:
        job_hosts = JobHostServer(f"agent-{mark}", token, bridge, host=host)
    except OSError as error:
        because = f"{error.strerror or error}"
        raise UserError(
            f"{host} can't be listened on", because, "--host with an address of this machine"
        ) from None
    return HostAddress(options.node, host, job_hosts.address[1], token), job_hosts


def _tell_warm(python: str, about: Message) -> None:
    if "what" in about:
        log.warning("warm_up_failed", python=python, because=about["because"])
    else:
        log.info("interpreter_warm", python=python, torch=about.get("torch"))


def _own_address(server: str) -> str:
    """Tell by which of its addresses this machine reaches the server. Nothing is sent."""
    parts = urlsplit(server)
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)
        family, kind, _, _, address = found[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except (OSError, ValueError) as error:
        raise UserError(
            f"{server} can't be reached", f"{error}", "--server http://HOST:7433, or --host"
        ) from None


@contextlib.contextmanager
def _alone(options: AgentOptions) -> Iterator[None]:
    """Be the only agent of this folder; raise if there is another."""
    path = options.folder / "lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        because = f"{error.filename or path}: {error.strerror}"
        raise UserError("the agent can't start", because, "another --state-dir") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(lock, 32, 0).decode().strip() or "unknown"
            raise UserError(
                f'an agent named "{options.node}" is already running',
                f"process {pid} holds {path}",
                "--name with another name",
            ) from None
        except OSError as error:  # as of a network file system without locks
            because = f"{path} can't be locked: {error.strerror}"
            raise UserError("the agent can't start", because, "another --state-dir") from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def begin_log(format_: str) -> None:
    """Log to standard error, for people or for programs."""
    renderer: structlog.types.Processor = structlog.processors.JSONRenderer()
    if format_ == "console":
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )

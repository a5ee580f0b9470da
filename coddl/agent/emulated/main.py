"""Hosts the agents of all emulated nodes of a pool in one process, until it is told to stop.

Each node is a whole agent with its own line to the server. What it would start processes for is
computed; so is the time of the pool, which may pass faster than that of the machine. Lines, beats
and leases are real, and so is their time.
"""

import asyncio
import contextlib
import secrets
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import structlog

from coddl import __version__
from coddl.agent.emulated.nodes import EmulatedCluster, EmulatedEnvironments, Timer
from coddl.agent.emulated.runner import EmulatedRunner
from coddl.agent.logs import LogSpool
from coddl.agent.main import begin_log, claim_jobs_folder, keep_lease
from coddl.agent.node_agent import NodeAgent, NodeInfo
from coddl.agent.options import AgentOptions
from coddl.agent.orphans import OrphanProcesses
from coddl.agent.server_session import ReportOutbox, ServerSession
from coddl.agent.slot_table import AgentBridge
from coddl.api import jobsfolder
from coddl.api.emulation import INTERPRETER, Emulation
from coddl.api.tls import trust
from coddl.api.wire import PROTOCOL, Hello
from coddl.core.cluster import Cluster
from coddl.core.pool.records import Device
from coddl.core.reconfigure import reconfigure_of
from coddl.core.time_scale import TimeScale
from coddl.runtime.supervisor.slots import HostAddress
from coddl.traces.clusters import cluster_from
from coddl.traces.files import packaged_speeds, read_speeds

TELL_EVERY_S: Final = 5.0  # of the pool's time: how jobs are doing
TELL_EVERY_LEAST_S: Final = 0.05  # of the machine's time: more often would only heat it
LOOK_EVERY_S: Final = 1.0
LEAVE_S: Final = 30.0  # that the last reports may take
LOCAL: Final = "127.0.0.1"

log = structlog.get_logger()


class MachinePoolTime:
    """The time of a pool, by the clock of this machine."""

    def __init__(self, clock: TimeScale) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()

    def now_s(self) -> float:
        return self._clock.to_pool_s(time.time())

    def call_at(self, at_s: float, action: Callable[[], None]) -> Timer:
        return self._loop.call_later(self._clock.to_machine_s(at_s) - time.time(), action)


@dataclass(slots=True)
class _Node:
    """An emulated node, and its line to the server."""

    agent: NodeAgent
    session: ServerSession
    outbox: ReportOutbox

    def tell_progress(self) -> None:
        for runner in self.agent.runners:
            if isinstance(runner, EmulatedRunner) and (told := runner.progress) is not None:
                self.outbox.progress(told)
        self.outbox.flush()

    async def leave(self) -> None:
        """Save the jobs that it leads, and give up its lease."""
        self.outbox.leave()
        self.agent.leave("its agent is stopping")
        await self.agent.idle()
        while self.session.is_up and not self.outbox.is_safe:
            await asyncio.sleep(0.02)
        self.outbox.tell_left()
        while self.session.is_up:
            await asyncio.sleep(0.02)


def run_emulated(options: AgentOptions, emulation: Emulation) -> int:
    """Serve until told to stop; give the exit code. Raises UserError if it can't go on."""
    begin_log(options.log_format)
    asyncio.run(_serve(options, emulation))
    return 0


async def _serve(options: AgentOptions, emulation: Emulation) -> None:
    speeds = read_speeds(emulation.speeds) if emulation.speeds else packaged_speeds()
    clock = MachinePoolTime(emulation.clock)
    cluster = EmulatedCluster(clock, speeds, reconfigure_of(emulation.reconfigure))
    saved = _SavedProgress(options.state_dir / "emulated-progress.json", cluster)
    nodes = _nodes(options, cluster_from(emulation.cluster), cluster)
    log.info("emulated_nodes", count=len(nodes), time_scale=emulation.clock.scale)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    every_s = max(TELL_EVERY_LEAST_S, TELL_EVERY_S / emulation.clock.scale)
    works: list[Coroutine[None, None, object]] = [stop.wait(), _tell(nodes, every_s)]
    works += [_look(nodes), saved.keep()]
    works += [node.session.run(node.agent) for node in nodes]
    works += [keep_lease(node.agent, node.session) for node in nodes]
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await asyncio.gather(*(node.leave() for node in nodes))
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        saved.write()
    for error in ended:
        if isinstance(error, Exception):
            raise error


async def _tell(nodes: list[_Node], every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        for node in nodes:
            node.tell_progress()


async def _look(nodes: list[_Node]) -> None:
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        for node in nodes:
            node.agent.look()


class _SavedProgress:
    """Keeps on disk what jobs have done, for the next process of these nodes."""

    def __init__(self, path: Path, cluster: EmulatedCluster) -> None:
        self._path = path
        self._cluster = cluster
        with contextlib.suppress(FileNotFoundError):
            done = msgspec.json.decode(path.read_bytes(), type=dict[int, float])
            for job, iterations in done.items():
                cluster.save(job, iterations)

    async def keep(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.write()

    def write(self) -> None:
        half = self._path.with_suffix(".tmp")
        half.write_bytes(msgspec.json.encode(self._cluster.progress()))
        half.replace(self._path)


def _nodes(options: AgentOptions, site: Cluster, cluster: EmulatedCluster) -> list[_Node]:
    """Put the agents of all nodes together."""
    tls = trust(options.server, options.tls_ca)
    found = []
    for node in site.nodes:
        folder = options.state_dir / "agents" / node.name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        kind = site.kinds[node.kind]
        devices = tuple(Device(index, kind) for index in range(node.gpus))
        address = HostAddress(node.name, LOCAL, 1, secrets.token_urlsafe(8))
        hello = _hello(address, devices, options.jobs_folder)
        spool = LogSpool(folder / "logs")
        agent_of: list[NodeAgent] = []
        outbox = ReportOutbox(spool, lambda fact, agent=agent_of: agent[0].on_safe(fact))  # type: ignore[misc]
        session = ServerSession(
            options.server,
            options.token,
            hello,
            outbox,
            tls=tls,
            on_pool=partial(claim_jobs_folder, hello.jobs),
            on_store=lambda _uri: None,  # nothing is checkpointed
        )
        bridge = AgentBridge(
            spool,
            lambda *told, agent=agent_of: agent[0].hear_holding(*told),
            lambda _python, _about: None,
            is_leased=lambda session=session: session.is_leased,  # type: ignore[misc]
        )
        agent_of.append(
            NodeAgent(
                NodeInfo(node.name, address, devices),
                EmulatedEnvironments(),
                bridge,
                cluster.hosts_on(node.name, bridge),
                sink=outbox,
                log_spool=spool,
                orphans=OrphanProcesses(folder),
                runner_of=partial(EmulatedRunner, cluster=cluster),
            )
        )
        found.append(_Node(agent_of[0], session, outbox))
    return found


def _hello(address: HostAddress, devices: tuple[Device, ...], jobs_folder: Path) -> Hello:
    boot = secrets.token_hex(8)
    return Hello(
        protocol=PROTOCOL,
        version=__version__,
        node=address.node,
        boot=boot,
        host=address.host,
        port=address.port,
        peer_token=address.token,
        devices=devices,
        jobs=jobsfolder.make(jobs_folder, address.node, boot),
        python=INTERPRETER,
    )

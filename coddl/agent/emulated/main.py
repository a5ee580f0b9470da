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
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import structlog

from coddl.agent.emulated.node import EmulatedNode, EmulatedNodeParts, look, tell
from coddl.agent.emulated.nodes import EmulatedCluster, Timer
from coddl.agent.emulated.runner import EmulatedRunner
from coddl.agent.main import begin_log, claim_jobs_folder
from coddl.agent.options import AgentOptions
from coddl.agent.server_line import WebSocketDialer
from coddl.api import jobsfolder
from coddl.api.emulation import Emulation
from coddl.api.tls import trust
from coddl.core.cluster import Cluster
from coddl.core.pool.records import Device
from coddl.core.reconfigure import reconfigure_of
from coddl.core.time_scale import TimeScale
from coddl.traces.clusters import cluster_from
from coddl.traces.files import packaged_speeds, read_speeds

TELL_EVERY_S: Final = 5.0  # of the pool's time: how jobs are doing
TELL_EVERY_LEAST_S: Final = 0.05  # of the machine's time: more often would only heat it
SAVE_EVERY_S: Final = 1.0
LEAVE_S: Final = 30.0  # that the last reports may take

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
    works: list[Coroutine[None, None, object]] = [stop.wait(), saved.keep()]
    works += [tell(nodes, every_s), look(nodes)]
    works += [work for node in nodes for work in node.works()]
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
            await asyncio.sleep(SAVE_EVERY_S)
            self.write()

    def write(self) -> None:
        half = self._path.with_suffix(".tmp")
        half.write_bytes(msgspec.json.encode(self._cluster.progress()))
        half.replace(self._path)


def _nodes(options: AgentOptions, site: Cluster, cluster: EmulatedCluster) -> list[EmulatedNode]:
    """Put the agents of all nodes together."""
    dialer = WebSocketDialer(options.server, options.token, trust(options.server, options.tls_ca))
    found = []
    for node in site.nodes:
        folder = options.state_dir / "agents" / node.name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        kind = site.kinds[node.kind]
        boot = secrets.token_hex(8)
        jobs = jobsfolder.make(options.jobs_folder, node.name, boot)
        parts = EmulatedNodeParts(
            name=node.name,
            boot=boot,
            devices=tuple(Device(index, kind) for index in range(node.gpus)),
            jobs=jobs,
            folder=folder,
            dialer=dialer,
            on_pool=partial(claim_jobs_folder, jobs),
            hosts_on=cluster.hosts_on,
            runner_of=partial(EmulatedRunner, cluster=cluster),
            peer_token=secrets.token_urlsafe(8),
        )
        found.append(EmulatedNode(parts))
    return found

"""One emulated node: the real agent and its line to the server, around emulated workers."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coddl import __version__
from coddl.agent.emulated.nodes import EmulatedEnvironments
from coddl.agent.emulated.runner import EmulatedRunner
from coddl.agent.job_environments import Environments
from coddl.agent.job_runner import RunnerFactory
from coddl.agent.lease_clock import SYSTEM_CLOCK, NodeClock
from coddl.agent.lease_keeper import STOPPED, keep_lease
from coddl.agent.logs import LogSpool
from coddl.agent.node_agent import NodeAgent, NodeInfo
from coddl.agent.orphans import OrphanProcesses
from coddl.agent.server_line import Dialer
from coddl.agent.server_session import ReportOutbox, ServerSession
from coddl.agent.slot_table import AgentBridge, WorkerHosts
from coddl.api.emulation import INTERPRETER
from coddl.api.jobsfolder import JobsFolder
from coddl.api.wire import PROTOCOL, Hello
from coddl.core.pool.records import Device
from coddl.runtime.supervisor.slots import HostAddress

LOCAL: Final = "127.0.0.1"
LOOK_EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedNodeParts:
    """What an emulated node is put together from."""

    name: str
    boot: str
    devices: tuple[Device, ...]
    jobs: JobsFolder
    folder: Path  # of its agent
    dialer: Dialer
    on_pool: Callable[[str], None]
    hosts_on: Callable[[str, AgentBridge], WorkerHosts]
    runner_of: RunnerFactory
    peer_token: str = ""
    environments: Callable[[], Environments] = EmulatedEnvironments
    fence: Callable[[float], None] = lambda _at_s: None
    clock: NodeClock = SYSTEM_CLOCK
    chance: Callable[[], float] = random.random


class EmulatedNode:
    """An emulated node, and its line to the server. Made in the event loop that it runs in."""

    def __init__(self, parts: EmulatedNodeParts) -> None:
        spool = self._spool = LogSpool(parts.folder / "logs")
        address = HostAddress(parts.name, LOCAL, 1, parts.peer_token)
        self.outbox = ReportOutbox(spool, lambda fact: self.agent.on_safe(fact), parts.clock)
        self.session = ServerSession(
            parts.dialer,
            _hello(address, parts),
            self.outbox,
            on_pool=parts.on_pool,
            on_store=lambda _uri: None,  # nothing is checkpointed
            fence=parts.fence,
            clock=parts.clock,
            chance=parts.chance,
        )
        bridge = AgentBridge(
            spool,
            lambda *told: self.agent.hear_holding(*told),
            lambda _python, _about: None,
            is_leased=lambda: self.session.is_leased,
        )
        self.agent = NodeAgent(
            NodeInfo(parts.name, address, parts.devices),
            parts.environments(),
            bridge,
            parts.hosts_on(parts.name, bridge),
            sink=self.outbox,
            log_spool=spool,
            orphans=OrphanProcesses(parts.folder),
            runner_of=parts.runner_of,
            clock=parts.clock,
        )

    def works(self) -> list[Coroutine[None, None, None]]:
        """Give what it does until it is told to stop, beside `tell_progress` and `look`."""
        return [self.session.run(self.agent), keep_lease(self.agent, self.session)]

    def tell_progress(self) -> None:
        """Tell how jobs are doing."""
        for runner in self.agent.runners:
            if isinstance(runner, EmulatedRunner) and (told := runner.progress) is not None:
                self.outbox.progress(told)
        self.outbox.flush()

    async def leave(self) -> None:
        """Save the jobs that it leads, end the workers of others, and give up its lease."""
        self.outbox.leave()
        self.agent.leave("its agent is stopping")
        await self.agent.idle()
        while self.session.is_up and not self.outbox.is_safe:
            await asyncio.sleep(0.02)
        self.agent.end_all(STOPPED)  # workers may be here whose lead is another node
        await self.agent.idle()
        while self.agent.holding:  # a worker that was killed has its slot until it is gone
            await asyncio.sleep(0.02)
        self.outbox.tell_left()
        while self.session.is_up:
            await asyncio.sleep(0.02)

    def close(self) -> None:
        """Let go of its files."""
        self._spool.close()


async def tell(nodes: Iterable[EmulatedNode], every_s: float) -> None:
    """Have nodes tell how jobs are doing, now and then."""
    while True:
        await asyncio.sleep(every_s)
        for node in nodes:
            node.tell_progress()


async def look(nodes: Iterable[EmulatedNode]) -> None:
    """Have agents see to what time brings about."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        for node in nodes:
            node.agent.look()


def _hello(address: HostAddress, parts: EmulatedNodeParts) -> Hello:
    return Hello(
        protocol=PROTOCOL,
        version=__version__,
        node=address.node,
        boot=parts.boot,
        host=address.host,
        port=address.port,
        peer_token=address.token,
        devices=parts.devices,
        jobs=parts.jobs,
        python=INTERPRETER,
    )

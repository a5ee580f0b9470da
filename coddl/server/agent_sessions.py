"""Sessions with agents: one WebSocket each, read here, written by a task of its own.

An agent's messages go to the control loop. Its orders are sent when they change, from the newest
state: a slow reader skips outdated orders and delays no other session.
"""

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

import msgspec
import structlog

from coddl import __version__
from coddl.api import jobsfolder, wire
from coddl.core.errors import UserError
from coddl.core.pool.node_versions import NodeVersions
from coddl.core.pool.nodes import STOPPED
from coddl.core.pool.orders import Orders
from coddl.core.pool.records import (
    NodeJoined,
    NodeLost,
    NodeNoticed,
    NodeReported,
    NodeSilent,
    RunReported,
)
from coddl.core.pool.state import Pool
from coddl.server.loop import LoopRequest, Reply, RequestDone, fact

HELLO_WITHIN_S: Final = 10.0
CLOSE_WITHIN_S: Final = 1.0
OUTGOING_MAX: Final = 1_000  # messages that an agent may leave unread
DEVICES_MAX: Final = 4_096
BEATS_MISSED: Final = 3  # after which an agent counts as silent when another wants its name
REFUSED: Final = 4_000  # close codes that applications may use begin here
REPLACED: Final = 4_001
TOO_SLOW: Final = 4_002
DONE: Final = 1_000
LEASE_OVER: Final = 4_003
GOING_AWAY: Final = 1_012

NODE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

log = structlog.get_logger(__name__)


class AgentDisconnected(Exception):
    """The agent has closed the connection."""


class MessageSocket(Protocol):
    """A line that carries whole messages."""

    async def receive(self) -> bytes:
        """Wait for a message; raises AgentDisconnected."""

    async def send(self, data: bytes) -> None:
        """Send a message; raises AgentDisconnected."""

    async def close(self, code: int, reason: str) -> None:
        """Hang up."""


class SessionHost(Protocol):
    """What a session needs of the server."""

    lease_s: float
    beat_every_s: float
    pool_id: str
    checkpoints: str

    @property
    def pool(self) -> Pool:
        """The pool as the journal has it."""

    def put(self, ask: LoopRequest) -> None:
        """Queue a request for the control loop."""

    def steady_s(self) -> float:
        """The clock of leases."""

    def renew(self, node: str) -> None:
        """Renew a node's lease."""

    def hear_progress(self, agent: wire.Hello, runs: Iterable[wire.RunProgress]) -> None:
        """Take in the progress of runs, as reported by an agent."""

    def hear_logs(self, job: int, lines: tuple[wire.LogLine, ...]) -> None:
        """Take in what a job has printed."""


class AgentSession:
    """One agent on one connection."""

    def __init__(self, host: SessionHost, socket: MessageSocket, sessions: "AgentSessions") -> None:
        self._host, self._socket, self._sessions = host, socket, sessions
        self._outgoing: deque[wire.FromServer] = deque()
        self._wants_orders = False
        self._is_welcome = False
        self._news = asyncio.Event()
        self._over = asyncio.Event()
        self._hang_up: tuple[int, str] | None = None
        self.hello: wire.Hello
        self.heard_s = host.steady_s()
        self.holding: NodeReported | None = None
        self._holding_asked = False
        self.gpus: Mapping[int, wire.GpuUse] = {}  # by index, as last reported

    async def run(self) -> None:
        """Serve an agent until either side hangs up."""
        try:
            self.hello = await self._expect_hello()
        except UserError as error:
            await self._refuse(error)
            return
        except (AgentDisconnected, TimeoutError):
            return
        if self.hello.checkpoints != self._host.checkpoints:
            await self._end_with(
                wire.UseStore(checkpoints=self._host.checkpoints), "say hello again"
            )
            return
        self._sessions.enter(self)
        self._join()
        works = (self._read(), self._write(), self._hung_up())
        tasks = [asyncio.create_task(work) for work in works]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self._sessions.leave(self):
                log.info("agent_disconnected", node=self.hello.node)
                self._host.put(fact(NodeSilent(self.hello.node, self.hello.boot)))
            for task in tasks:
                task.cancel()  # one may be stuck: the other side reads nothing
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for failure in ended:
            if isinstance(failure, Exception) and not isinstance(failure, AgentDisconnected):
                raise failure
        if self._hang_up is not None:
            with contextlib.suppress(AgentDisconnected, TimeoutError):
                async with asyncio.timeout(CLOSE_WITHIN_S):
                    await self._socket.close(*self._hang_up)

    def tell_orders(self) -> None:
        """Send the agent its orders, as they are when its connection is free."""
        self._wants_orders = True
        self._news.set()

    def drop(self, code: int, reason: str) -> None:
        """Hang up; an agent that is alive comes back."""
        self._hang_up = self._hang_up or (code, reason)
        self._over.set()

    async def _expect_hello(self) -> wire.Hello:
        async with asyncio.timeout(HELLO_WITHIN_S):
            data = await self._socket.receive()
        self.heard_s = self._host.steady_s()
        hello = _read_hello(data)
        self._sessions.check_free(hello, self._host)
        has_had_jobs = self._host.pool.next_job > 1
        jobsfolder.check(hello.jobs, self._host.pool_id, has_had_jobs=has_had_jobs)
        self._sessions.check_shared(hello, self._host.pool)
        return hello

    async def _refuse(self, error: UserError) -> None:
        log.warning("agent_refused", what=error.what, because=error.because)
        refused = wire.Refused(what=error.what, because=error.because, try_=error.try_)
        await self._end_with(refused, error.what[:100])

    async def _end_with(self, message: wire.Refused | wire.UseStore, reason: str) -> None:
        with contextlib.suppress(AgentDisconnected):
            await self._socket.send(wire.encoded(message))
            await self._socket.close(REFUSED, reason)

    def _join(self) -> None:
        hello = self.hello
        self._host.renew(hello.node)
        joined = NodeJoined(
            *(hello.node, hello.boot, hello.host, hello.devices),
            folder=self._host.checkpoints or hello.jobs.id,
            versions=NodeVersions(hello.python, hello.torch, hello.version),
            parking_bytes=max(0, hello.parking_bytes),
            links=hello.links,
        )
        self._host.put(fact(joined, self._on_joined))

    def _on_joined(self, reply: Reply) -> None:
        if not isinstance(reply, RequestDone):
            self.drop(REFUSED, "the node cannot join now")
            return
        log.info("agent_joined", node=self.hello.node, slots=len(self.hello.devices))
        self._say(
            wire.Welcome(
                version=__version__,
                pool=self._host.pool_id,
                lease_s=self._host.lease_s,
                beat_every_s=self._host.beat_every_s,
            )
        )
        self._is_welcome = True
        self.tell_orders()
        self._sessions.tell_leads(self._host.pool, self.hello.node)

    def _on(self, message: wire.FromAgent) -> None:
        self.heard_s = self._host.steady_s()
        match message:
            case wire.Beat(number=number, gpus=gpus):
                self.gpus = gpus
                # A session that lost its node's name or lease is not renewed: it must release its
                # GPUs.
                if self._hang_up is None and self._sessions.is_current(self):
                    self._host.renew(self.hello.node)
                    self._say(wire.Renewed(number=number))
            case wire.Holding():
                self.holding = NodeReported(
                    self.hello.node,
                    self.hello.boot,
                    message.version,
                    message.slots,
                    message.runs,
                    message.others,
                    message.parked,
                    message.turns,
                )
                self._ask_holding()
            case wire.Report(number=number):
                told = RunReported(self.hello.node, self.hello.boot, message.fact)
                self._host.put(fact(told, lambda reply: self._acknowledge(number, reply)))
            case wire.Progress(runs=progress):
                self._host.hear_progress(self.hello, progress)
            case wire.Logs(job=job, lines=lines):
                self._host.hear_logs(job, lines)
            case wire.Leaving(within_s=float() as within_s):
                node, boot = self.hello.node, self.hello.boot
                self._host.put(fact(NodeNoticed(node, boot, within_s)))
            case wire.Leaving():
                self._host.put(fact(NodeSilent(self.hello.node, self.hello.boot)))
            case wire.Left():
                lost = NodeLost(self.hello.node, self.hello.boot, STOPPED)
                self._host.put(fact(lost, lambda _reply: self.drop(DONE, "the node has left")))
            case wire.Hello():
                if self._hang_up is None and self._sessions.is_current(self):
                    self._join()

    def _ask_holding(self) -> None:
        """Queue the newest report once, however many arrive before it is handled."""
        if self._holding_asked:
            return
        self._holding_asked = True

        def events(_pool: Pool) -> tuple[NodeReported, ...]:
            return (self.holding,) if self.holding is not None else ()

        def reply(_reply: Reply) -> None:
            self._holding_asked = False

        self._host.put(LoopRequest(events, reply, must=True))

    def _acknowledge(self, number: int, reply: Reply) -> None:
        if isinstance(reply, UserError):
            log.warning("report_not_applied", node=self.hello.node, because=str(reply))
        self._say(wire.Ack(number=number))  # even if it met a bug: it would again

    def _say(self, message: wire.FromServer) -> None:
        if len(self._outgoing) >= OUTGOING_MAX:
            self.drop(TOO_SLOW, f"{OUTGOING_MAX} messages are unread")
            return
        self._outgoing.append(message)
        self._news.set()

    async def _read(self) -> None:
        """Take in what the agent says."""
        try:
            while True:
                self._on(wire.from_agent(await self._socket.receive()))
        except msgspec.DecodeError as error:
            log.warning("agent_message_invalid", node=self.hello.node, because=str(error))
            self.drop(REFUSED, "a message that this server does not understand")

    async def _write(self) -> None:
        """Send what there is to say."""
        while True:
            await self._news.wait()
            self._news.clear()
            while (message := self._next()) is not None:
                await self._socket.send(wire.encoded(message))

    async def _hung_up(self) -> None:
        await self._over.wait()

    def _next(self) -> wire.FromServer | None:
        if self._outgoing:
            return self._outgoing.popleft()
        if self._wants_orders and self._is_welcome:
            self._wants_orders = False
            return self._orders()
        return None

    def _orders(self) -> wire.NewOrders:
        orders = self._host.pool.orders(self.hello.node)
        return wire.NewOrders(orders=orders, peers=self._sessions.peers_for(orders))


class AgentSessions:
    """The sessions by node, and how nodes reach one another."""

    def __init__(self) -> None:
        self._by_node: dict[str, AgentSession] = {}
        self._peers: dict[str, wire.Peer] = {}  # of nodes that were here; never stored

    def __iter__(self) -> Iterator[AgentSession]:
        return iter(list(self._by_node.values()))

    def of(self, node: str) -> AgentSession | None:
        """Return a node's session, if there is one."""
        return self._by_node.get(node)

    def is_current(self, session: AgentSession) -> bool:
        """Return whether a session is its node's current one."""
        return self._by_node.get(session.hello.node) is session

    def check_free(self, hello: wire.Hello, host: SessionHost) -> None:
        """Raise if another agent of that name is connected and alive, or has one of its GPUs."""
        self._check_gpus(hello, host.pool)
        other = self._by_node.get(hello.node)
        if other is None or other.hello.boot == hello.boot:
            return
        if host.steady_s() - other.heard_s < BEATS_MISSED * host.beat_every_s:
            raise UserError(
                f'node "{hello.node}" cannot join',
                f"a node of that name is connected, from {other.hello.host}",
                "--name with another name",
            )

    def _check_gpus(self, hello: wire.Hello, pool: Pool) -> None:
        """Raise if a GPU is that of a node that is connected, or whose lease holds."""
        owners = {
            device.gpu: session.hello.node
            for session in self._by_node.values()
            for device in session.hello.devices
        }
        for node in pool.nodes.values():
            if node.is_up:
                owners |= {pool.slots[slot].device.gpu: node.name for slot in node.slots}
        for device in hello.devices:
            owner = owners.get(device.gpu, hello.node) if device.gpu else hello.node
            if owner != hello.node:
                raise UserError(
                    f'node "{hello.node}" cannot join',
                    f"its GPU {device.gpu} already belongs to node {owner}",
                    f"stop the agent of {owner} and wait until its lease expires",
                )

    def check_shared(self, hello: wire.Hello, pool: Pool) -> None:
        """Raise if a node names a jobs folder by the id of another's, and neither sees the other.

        Both write before they read, so whichever was later has seen the other. Of a node that is
        not connected only an earlier boot may be known: one that has shared the folder before is
        not compared with it, and is when that node says hello.
        """
        jobs, known = hello.jobs, pool.nodes.get(hello.node)
        if not jobs.id or (known is not None and known.is_up and known.boot == hello.boot):
            return
        # The journal may not have a node yet that has just connected.
        for other in [session.hello for session in self._by_node.values()]:
            is_seen = jobs.nodes.get(other.node) == other.boot
            sees = other.jobs.nodes.get(hello.node) == hello.boot
            if other.node != hello.node and other.jobs.id == jobs.id and not (is_seen or sees):
                raise _copied(hello, other.node)
        has_shared = known is not None and known.folder == jobs.id
        for node in pool.nodes.values():
            if node.name in (hello.node, *self._by_node) or not node.is_up:
                continue
            mark = jobs.nodes.get(node.name, "")
            is_seen = mark == node.boot or (has_shared and bool(mark))
            if node.folder == jobs.id and not is_seen:
                raise _copied(hello, node.name)

    def enter(self, session: AgentSession) -> None:
        """Make a session its node's current one."""
        hello = session.hello
        if (older := self._by_node.get(hello.node)) is not None:
            older.drop(REPLACED, "the agent has reconnected")
        self._by_node[hello.node] = session
        self._peers[hello.node] = wire.Peer(hello.node, hello.host, hello.port, hello.peer_token)

    def leave(self, session: AgentSession) -> bool:
        """Note that a connection is closed; return whether it was its node's current one."""
        if not self.is_current(session):
            return False
        del self._by_node[session.hello.node]
        return True

    def tell_leads(self, pool: Pool, node: str) -> None:
        """Send orders to the leads of jobs with slots on a node: its address may be new."""
        owners = {job for slot in pool.nodes[node].slots for job in pool.slots[slot].owners}
        leads = {pool.jobs[job].lead for job in owners}
        for name, session in self._by_node.items():
            if name in leads and name != node:
                session.tell_orders()

    def peers_for(self, orders: Orders) -> tuple[wire.Peer, ...]:
        """Return the addresses of the nodes where the jobs that an agent leads have slots."""
        nodes = dict.fromkeys(seat.node for lead in orders.leads for seat in lead.seats)
        return tuple(self._peers[node] for node in nodes if node in self._peers)


class _HelloHeader(msgspec.Struct):
    """The fields of a hello that every protocol version has."""

    is_: str = msgspec.field(name="is", default="")
    protocol: int | None = None


def _copied(hello: wire.Hello, other: str) -> UserError:
    jobs = hello.jobs
    return UserError(
        f'node "{hello.node}" cannot join',
        f"its jobs folder {jobs.path} is a copy of the one of node {other}: "
        f"they have the same id, {jobs.id}, and neither node sees the other there",
        "--jobs-dir with a folder that both nodes share; or, for a separate folder, "
        f"remove {jobs.path}/{jobsfolder.MARKS}/id",
    )


def _read_hello(data: bytes) -> wire.Hello:
    """Read an agent's first words; raises UserError in words it can show."""
    what = "the agent cannot join"
    try:
        header = msgspec.json.decode(data, type=_HelloHeader)
        if header.is_ == "hello" and header.protocol != wire.PROTOCOL:
            raise UserError(
                what,
                f"it speaks protocol {header.protocol} and the server, coddl {__version__}, "
                f"protocol {wire.PROTOCOL}",
                f"an agent of coddl {__version__}",
            )
        hello = wire.from_agent(data)
    except msgspec.DecodeError as error:
        raise UserError(what, f"its first message is not understood: {error}", "hello") from None
    if not isinstance(hello, wire.Hello):
        raise UserError(what, f"its first message is {header.is_}", "hello")
    _check_hello(hello)
    return hello


def _check_hello(hello: wire.Hello) -> None:
    what = f'node "{hello.node[:128]}" cannot join'
    if not NODE_NAME.fullmatch(hello.node):
        rule = "a name is at most 128 letters, digits, dots, dashes and underscores"
        raise UserError(what, rule, "--name node-1")
    gpus = [device.gpu for device in hello.devices if device.gpu]
    if twice := sorted({gpu for gpu in gpus if gpus.count(gpu) > 1}):
        raise UserError(
            what, f"it has GPU {twice[0]} twice", "CUDA_VISIBLE_DEVICES without duplicates"
        )
    indices = {device.index for device in hello.devices}
    if not 1 <= len(hello.devices) <= DEVICES_MAX or len(indices) != len(hello.devices):
        raise UserError(
            what,
            f"it reports {len(hello.devices)} GPUs or CPU slots with {len(indices)} numbers",
            f"1..{DEVICES_MAX} GPUs or CPU slots, each with its own number",
        )

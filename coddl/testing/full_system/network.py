"""The lines between agents and the server, in memory: whole messages as bytes, in order.

A line keeps its order, as TCP does, and nothing else is promised: messages are late, a way that is
cut carries nothing until it is mended (what was sent then arrives, unless the line has been given
up), and a line breaks at both ends or, if a way is cut, at one. Of two lines of one node the later
may carry its words first.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final, Literal

from coddl.server.agent_sessions import AgentDisconnected
from coddl.testing.full_system.virtual_time import SimulatedProcess, VirtualTime

BUFFER: Final = 64  # messages that a line carries at most before its sender waits
WITHIN_S: Final = (0.0005, 0.004)  # that a message takes
Way = Literal["up", "down"]  # to the server, from the server


class Network:
    """All lines, and what keeps them from working."""

    def __init__(self, time: VirtualTime, chance: random.Random) -> None:
        self.time = time
        self._chance = chance
        self._cut: set[tuple[str, Way]] = set()
        self._late_s: dict[str, float] = {}  # by node
        self._lines: dict[Line, None] = {}
        self._accept: Callable[[ServerEnd], Coroutine[Any, Any, None]] | None = None
        self._server: SimulatedProcess | None = None
        self.is_over = False

    def listen(
        self,
        server: SimulatedProcess,
        accept: Callable[["ServerEnd"], Coroutine[Any, Any, None]],
    ) -> None:
        """Have a server process accept lines."""
        self._server, self._accept = server, accept

    async def dial(self, node: str, agent: SimulatedProcess, within_s: float) -> "AgentEnd":
        """Open a line; raises OSError."""
        opened: asyncio.Future[AgentEnd] = agent.loop.create_future()
        self.time.call_later(self.delay_s(node), self._arrive, node, agent, opened)
        async with asyncio.timeout(within_s):
            return await opened

    def _arrive(
        self, node: str, agent: SimulatedProcess, opened: "asyncio.Future[AgentEnd]"
    ) -> None:
        """Have the wish for a line come to the server's machine."""
        if self.is_cut(node, "up") or self.is_over:
            return  # it is repeated, until the side that dials gives up
        server = self._server
        if server is None or not server.is_alive or self._accept is None:
            if not self.is_cut(node, "down"):
                self._answer(opened, ConnectionRefusedError("nothing listens"))
            return
        line = Line(self, node, agent, server)
        self._lines[line] = None
        work = self._accept(ServerEnd(line.server))
        server.spawn(work)
        if not self.is_cut(node, "down"):
            self.time.call_later(self.delay_s(node), self._answer, opened, AgentEnd(line.agent))

    def _answer(self, opened: "asyncio.Future[AgentEnd]", answer: "AgentEnd | OSError") -> None:
        if opened.done():
            return
        if isinstance(answer, OSError):
            opened.set_exception(answer)
        else:
            opened.set_result(answer)

    # What goes wrong.

    def cut(self, node: str, way: Way) -> None:
        """Have nothing come through, one way."""
        self._cut.add((node, way))

    def mend(self, node: str, way: Way) -> None:
        """Let it come through again: what was sent meanwhile, too."""
        self._cut.discard((node, way))
        for line in list(self._lines):
            if line.node == node:
                line.resume(way)

    def is_cut(self, node: str, way: Way) -> bool:
        """Tell whether nothing comes through."""
        return (node, way) in self._cut

    def slow_down(self, node: str, by_s: float) -> None:
        """Have messages of a node be late; 0: no more."""
        self._late_s[node] = by_s

    def break_lines(self, node: str) -> None:
        """Have the lines of a node break, for both ends."""
        for line in list(self._lines):
            if line.node == node:
                line.reset("up")
                line.reset("down")

    def end_of(self, process: SimulatedProcess, *, quietly: bool = False) -> None:
        """Close the lines of a process that has died; `quietly`: its machine has, too."""
        for line in list(self._lines):
            if line.agent.process is process or line.server.process is process:
                if quietly:
                    self.forget(line)
                else:
                    end = line.agent if line.agent.process is process else line.server
                    end.abort()

    def delay_s(self, node: str) -> float:
        """Draw how long a message takes."""
        late_s = self._late_s.get(node, 0.0)
        return self._chance.uniform(*WITHIN_S) + (self._chance.random() * late_s if late_s else 0.0)

    def forget(self, line: "Line") -> None:
        """Let go of a line that carries nothing more."""
        self._lines.pop(line, None)


class Line:
    """A line of a node, which has two ends."""

    def __init__(
        self, network: Network, node: str, agent: SimulatedProcess, server: SimulatedProcess
    ) -> None:
        self.network, self.node = network, node
        self.agent = _End(self, "up", agent)
        self.server = _End(self, "down", server)

    def reset(self, way: Way) -> None:
        """Tell the end to which a way leads that the line is broken, if word comes through."""
        self.network.time.call_later(self.network.delay_s(self.node), self._reset, way)

    def _reset(self, way: Way) -> None:
        if not self.network.is_cut(self.node, way):
            self.end_of(way).break_off()

    def resume(self, way: Way) -> None:
        """Carry on what was stuck."""
        end = self.end_of(way)
        stuck, end.stuck = end.stuck, []
        for message in stuck:
            end.take(message)

    def end_of(self, way: Way) -> "_End":
        """Give the end to which a way leads."""
        return self.server if way == "up" else self.agent

    def drop(self) -> None:
        """Be forgotten, if both ends are closed."""
        if not self.agent.is_open and not self.server.is_open:
            self.network.forget(self)


class _End:
    """One end: what has arrived there, and whether it is open."""

    def __init__(self, line: Line, way: Way, process: SimulatedProcess) -> None:
        self.line, self.process = line, process
        self.stuck: list[bytes | None] = []  # had arrived here, but for a cut
        self.is_open = True
        self.is_finished = False  # the other side has hung up in order
        self._way = way  # by which this end sends
        self._free_s = 0.0  # when the way has carried all so far
        self._inbox: deque[bytes] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._under_way = 0  # of what this end has sent

    @property
    def peer(self) -> "_End":
        return self.line.end_of(self._way)

    async def send(self, data: bytes) -> None:
        """Send a message; raises ConnectionError."""
        while self.is_open and self._under_way >= BUFFER:
            self._writer = self.process.loop.create_future()
            await self._writer
        if not self.is_open:
            raise ConnectionResetError("the line is broken")
        self._carry(data)

    def _carry(self, data: bytes | None) -> None:
        network = self.line.network
        if network.is_over:
            return
        self._under_way += 1
        at_s = max(self._free_s, network.time.now_s + network.delay_s(self.line.node))
        self._free_s = at_s
        network.time.call_at(at_s, self._deliver, data)

    def _deliver(self, data: bytes | None) -> None:
        peer = self.peer
        if peer.stuck or self.line.network.is_cut(self.line.node, self._way):
            peer.stuck.append(data)
        else:
            peer.take(data)

    async def receive(self) -> bytes:
        """Wait for a message; raises ConnectionError when the line is broken, or EOFError."""
        while not self._inbox:
            if not self.is_open:
                raise ConnectionResetError("the line is broken")
            if self.is_finished:
                raise EOFError
            self._reader = self.process.loop.create_future()
            await self._reader
        self.peer.read_one()
        return self._inbox.popleft()

    def take(self, data: bytes | None) -> None:
        """Have something arrive; None: the other side hangs up."""
        if data is None:
            self.is_finished = True
        elif self.is_open:
            self._inbox.append(data)
        else:
            self.line.reset(self._way)  # as an operating system answers for a closed line
        self._wake()

    def read_one(self) -> None:
        """Note that one message less is under way."""
        self._under_way -= 1
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    def break_off(self) -> None:
        """Be broken; what has not been read is lost."""
        self.is_open = False
        self._inbox.clear()
        self._wake()
        self.line.drop()

    def abort(self) -> None:
        """Break it, for the other end too."""
        if self.is_open:
            self.break_off()
            self.line.reset(self._way)

    def hang_up(self) -> None:
        """Close it in order."""
        if self.is_open and not self.line.network.is_over:
            self._carry(None)
        self.is_open = False
        self._wake()
        self.line.drop()

    def _wake(self) -> None:
        for waiter in (self._reader, self._writer):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)


class AgentEnd:
    """The agent's end, as its session uses it."""

    def __init__(self, end: _End) -> None:
        self._end = end

    async def send(self, data: bytes) -> None:
        """Send a message."""
        await self._end.send(data)

    async def receive(self) -> bytes | str:
        """Wait for a message."""
        try:
            return await self._end.receive()
        except EOFError:
            raise ConnectionError("the server hung up") from None

    def abort(self) -> None:
        """Break it."""
        self._end.abort()

    async def close(self) -> None:
        """Hang up."""
        self._end.hang_up()

    async def __aiter__(self) -> AsyncIterator[bytes | str]:
        while True:
            try:
                data = await self._end.receive()
            except EOFError:
                return
            yield data


class ServerEnd:
    """The server's end, as its session uses it."""

    def __init__(self, end: _End) -> None:
        self._end = end

    async def receive(self) -> bytes:
        """Wait for a message; raises AgentDisconnected."""
        try:
            return await self._end.receive()
        except (ConnectionError, EOFError):
            self._end.break_off()
            raise AgentDisconnected from None

    async def send(self, data: bytes) -> None:
        """Send a message; raises AgentDisconnected."""
        try:
            await self._end.send(data)
        except ConnectionError:
            raise AgentDisconnected from None

    async def close(self, code: int, reason: str) -> None:  # noqa: ARG002 - the agent reads neither
        """Hang up."""
        self._end.hang_up()


class SimulatedDialer:
    """How the agent of a node reaches the server."""

    url: Final = "simulated"

    def __init__(self, network: Network, node: str, agent: SimulatedProcess) -> None:
        self._network, self._node, self._agent = network, node, agent

    async def dial(self, within_s: float) -> AgentEnd:
        """Open a line; raises OSError."""
        return await self._network.dial(self._node, self._agent, within_s)

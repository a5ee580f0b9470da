"""The lines between nodes: leads reach worker hosts over them, and workers of a group each other.

A line keeps its order. A way that is cut carries nothing until it is mended; if that takes long,
both ends find that the line is gone, as TCP's keepalive does. Nothing is cut within a node.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import Final

from coddl.runtime.supervisor.remote_worker_host import DialListener
from coddl.runtime.supervisor.slots import HostAddress
from coddl.runtime.wire import Lines, Message, encoded
from coddl.testing.full_system.network import WITHIN_S
from coddl.testing.full_system.virtual_loop import VirtualLoop
from coddl.testing.full_system.virtual_time import SimulatedProcess, VirtualTime

NOTICED_S: Final = 0.003  # after which the end of a process is seen at other ends
KEEPALIVE_S: Final = 10.0  # after which a line that carries nothing is given up

Accept = Callable[["PeerEnd"], None]


class PeerNetwork:
    """All lines between nodes, and the ways that are cut."""

    def __init__(self, time: VirtualTime, chance: random.Random) -> None:
        self.time = time
        self._chance = chance
        self._cuts: dict[tuple[str, str], int] = {}  # ways, and how many faults have cut each
        self._late_s: dict[str, float] = {}  # by node
        self._servers: dict[str, tuple[VirtualLoop, Accept]] = {}  # by node
        self._lines: dict[PeerLine, None] = {}

    def listen(self, node: str, loop: VirtualLoop, accept: Accept) -> None:
        """Have a process of a node accept lines, in place of an earlier one."""
        self._servers[node] = (loop, accept)

    def reaches(self, one: str, other: str) -> bool:
        """Tell whether two nodes can talk: TCP needs both ways."""
        return not (self._cuts.get((one, other)) or self._cuts.get((other, one)))

    def cut(self, from_node: str, to_node: str) -> None:
        """Have nothing come through, one way, until it is mended as often."""
        way = (from_node, to_node)
        self._cuts[way] = self._cuts.get(way, 0) + 1
        for line in [each for each in self._lines if each.joins(*way)]:
            self.time.call_later(KEEPALIVE_S, self._look_at, line)

    def mend(self, from_node: str, to_node: str) -> None:
        """Let it come through again: what was sent meanwhile, too."""
        way = (from_node, to_node)
        if self._cuts.get(way):
            self._cuts[way] -= 1
        if not self._cuts.get(way):
            for line in [each for each in self._lines if each.joins(*way)]:
                line.resume(from_node)

    def mend_all(self) -> None:
        """Mend all ways."""
        for way in [way for way, faults in self._cuts.items() if faults]:
            self._cuts[way] = 1
            self.mend(*way)

    def is_cut(self, from_node: str, to_node: str) -> bool:
        """Tell whether nothing comes through."""
        return bool(self._cuts.get((from_node, to_node)))

    def slow_down(self, node: str, by_s: float) -> None:
        """Have messages from and to a node be late; 0: no more."""
        self._late_s[node] = by_s

    def end_of(self, process: SimulatedProcess, *, quietly: bool) -> None:
        """Break the lines of a process that has died; `quietly`: its machine has, too."""
        for line in [each for each in self._lines if each.is_of(process)]:
            line.lose(process, KEEPALIVE_S if quietly else NOTICED_S)

    def delay_s(self, one: str, other: str) -> float:
        """Draw how long a message between two nodes takes."""
        delay_s = self._chance.uniform(*WITHIN_S)
        late_s = 0.0 if one == other else max(self._late_s.get(n, 0.0) for n in (one, other))
        return delay_s + (self._chance.random() * late_s if late_s else 0.0)

    def dialler(self, node: str, loop: VirtualLoop) -> Callable[..., "PeerDialing"]:
        """Give what a lead on a node reaches worker hosts with."""
        return partial(PeerDialing, self, node, loop)

    def open(self, node: str, loop: VirtualLoop, address: HostAddress) -> "PeerEnd | None":
        """Open a line; None: nothing listens."""
        found = self._servers.get(address.node)
        if found is None or not found[0].process.is_alive:
            return None
        server, accept = found
        line = PeerLine(self, (node, loop), (address.node, server))
        self._lines[line] = None
        server.post(partial(accept, line.ends[1]))
        return line.ends[0]

    def forget(self, line: "PeerLine") -> None:
        """Let go of a line that carries nothing more."""
        self._lines.pop(line, None)

    def _look_at(self, line: "PeerLine") -> None:
        one, other = (end.node for end in line.ends)
        if line in self._lines and not self.reaches(one, other):
            line.break_off()


class PeerDialing:
    """An attempt of a lead to connect to the worker hosts of a node."""

    def __init__(
        self,
        network: PeerNetwork,
        node: str,
        loop: VirtualLoop,
        address: HostAddress,
        listener: DialListener,
    ) -> None:
        self._network, self._node, self._loop = network, node, loop
        self._address, self._listener = address, listener
        self._is_over = False
        network.time.call_later(network.delay_s(node, address.node), self._arrive)

    def cancel(self) -> None:
        """Give it up."""
        self._is_over = True

    def _arrive(self) -> None:
        network, node = self._network, self._address.node
        if self._is_over or not network.reaches(self._node, node):
            return  # the side that dials gives up
        if not self._loop.process.is_alive:
            return
        end = network.open(self._node, self._loop, self._address)
        self._loop.post(partial(self._answer, end))

    def _answer(self, end: "PeerEnd | None") -> None:
        if self._is_over:
            if end is not None:
                end.close()
        elif end is None:
            self._listener.on_refused("ECONNREFUSED")
        else:
            end.hand_over(self._listener.on_message, self._listener.on_hung_up)
            self._listener.on_connected(end)


class PeerLine:
    """A line between two processes, which may be of one node."""

    def __init__(
        self, network: PeerNetwork, one: tuple[str, VirtualLoop], other: tuple[str, VirtualLoop]
    ) -> None:
        self.network = network
        self.ends = (PeerEnd(self, *one), PeerEnd(self, *other))

    def joins(self, one: str, other: str) -> bool:
        """Tell whether it is between these nodes."""
        return {end.node for end in self.ends} == {one, other}

    def is_of(self, process: SimulatedProcess) -> bool:
        """Tell whether an end is a process's."""
        return any(end.loop.process is process for end in self.ends)

    def other(self, end: "PeerEnd") -> "PeerEnd":
        """Give the other end."""
        return self.ends[self.ends[0] is end]

    def resume(self, from_node: str) -> None:
        """Carry on what was stuck."""
        for end in self.ends:
            if end.node == from_node:
                end.resume()

    def lose(self, process: SimulatedProcess, within_s: float) -> None:
        """Have one end be dead, and the other hear of it some time later."""
        for end in self.ends:
            if end.loop.process is process:
                end.is_open = False
            else:
                self.network.time.call_later(within_s, end.hang_up)
        self.network.forget(self)

    def break_off(self) -> None:
        """Have both ends find that it is gone."""
        self.network.forget(self)
        for end in self.ends:
            end.hang_up()


class PeerEnd:
    """One end of a line: a `MessageChannel`."""

    def __init__(self, line: PeerLine, node: str, loop: VirtualLoop) -> None:
        self.node, self.loop = node, loop
        self.is_open = True
        self._line = line
        self.lines = Lines()
        self._free_s = 0.0  # when the way has carried all so far
        self._stuck: list[bytes | None] = []  # has come to where the way is cut
        self._on_message: Callable[[Message], None] = lambda _message: None
        self._on_hung_up: Callable[[], None] = lambda: None

    @property
    def peer(self) -> "PeerEnd":
        return self._line.other(self)

    def hand_over(
        self, on_message: Callable[[Message], None], on_hung_up: Callable[[], None]
    ) -> None:
        """Have these called from now on, in the process of this end."""
        self._on_message, self._on_hung_up = on_message, on_hung_up

    def send(self, message: Message) -> None:
        """Send a message; silently nothing if the line is gone."""
        if self.is_open:
            self._carry(encoded(message))

    def close(self) -> None:
        """Hang up; what was sent arrives before."""
        if self.is_open:
            self.is_open = False
            self._carry(None)

    def _carry(self, data: bytes | None) -> None:
        network = self._line.network
        delay_s = network.delay_s(self.node, self.peer.node)
        self._free_s = max(self._free_s, network.time.now_s + delay_s)
        network.time.call_at(self._free_s, self._arrive, data)

    def _arrive(self, data: bytes | None) -> None:
        if self._stuck or self._line.network.is_cut(self.node, self.peer.node):
            self._stuck.append(data)
        else:
            self.peer.take(data)

    def resume(self) -> None:
        """Carry on what was stuck on its way from here."""
        stuck, self._stuck = self._stuck, []
        for data in stuck:
            self.peer.take(data)

    def take(self, data: bytes | None) -> None:
        """Have something arrive; None: the other side has hung up."""
        if data is None:
            self._line.network.forget(self._line)
            self.hang_up()
        elif self.is_open:
            self.loop.post(partial(self._read, data))

    def _read(self, data: bytes) -> None:
        for message in self.lines.feed(data):
            if self.is_open:
                self._on_message(message)

    def hang_up(self) -> None:
        """Have this end's process see that the line is gone."""
        self.loop.post(self._end)

    def _end(self) -> None:
        if self.is_open:
            self.is_open = False
            self._on_hung_up()

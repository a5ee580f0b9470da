"""Lines in memory: in order, late, cut one way, half open, and no longer than their ends."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from coddl.server.agent_sessions import AgentDisconnected
from coddl.testing.full_system.network import BUFFER, AgentEnd, Network, ServerEnd
from coddl.testing.full_system.virtual_time import SimulatedProcess, Skew, VirtualTime


class Lines:
    """An agent's process, a server's, and what each has heard."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.network = Network(self.time, random.Random(1))
        self.agent, self.server = self._process("agent"), self._process("server")
        self.heard: list[bytes] = []  # by the server
        self.told: list[str] = []  # what became of ends
        self.is_deaf, self.answers = False, True
        self.network.listen(self.server, self._serve)

    def _process(self, name: str) -> SimulatedProcess:
        return SimulatedProcess(name, self.time, Skew(), lambda _process, error: self._fail(error))

    def _fail(self, error: BaseException) -> None:
        self.told.append(f"{type(error).__name__}")

    async def _serve(self, end: ServerEnd) -> None:
        while self.is_deaf:
            await asyncio.sleep(1.0)
        try:
            while True:
                self.heard.append(await end.receive())
                if self.answers:
                    await end.send(b"yes")
        except AgentDisconnected:
            self.told.append("the agent is gone")

    def run(self, work: Callable[[AgentEnd], Coroutine[Any, Any, None]], until_s: float) -> None:
        async def dial() -> None:
            await work(await self.network.dial("a", self.agent, within_s=5.0))

        self.agent.spawn(dial())
        self.time.run(until_s)


@pytest.fixture
def lines() -> Iterator[Lines]:
    lines = Lines()
    yield lines
    lines.network.is_over = True
    for process in (lines.agent, lines.server):
        process.bury()
    lines.time.run_ready()
    lines.agent.close()
    lines.server.close()


WORDS = [f"{number}".encode() for number in range(20)]


async def say_all(end: AgentEnd) -> None:
    for word in WORDS:
        await end.send(word)


def test_messages_come_in_order(lines: Lines) -> None:
    lines.network.slow_down("a", 2.0)
    lines.run(say_all, 60.0)
    assert lines.heard == WORDS


def test_what_was_sent_over_a_cut_comes_when_it_is_mended(lines: Lines) -> None:
    async def work(end: AgentEnd) -> None:
        lines.network.cut("a", "up")
        await say_all(end)

    lines.run(work, 3.0)
    assert not lines.heard
    lines.network.mend("a", "up")
    lines.time.run(4.0)
    assert lines.heard == WORDS


def test_a_cut_back_leaves_the_agent_without_answers(lines: Lines) -> None:
    async def work(end: AgentEnd) -> None:
        lines.network.cut("a", "down")
        await end.send(b"hello")
        async with asyncio.timeout(2.0):
            await end.receive()

    lines.run(work, 3.0)
    assert lines.heard == [b"hello"]
    assert lines.told == ["TimeoutError"]


def test_a_line_to_a_dead_server_breaks_and_none_is_opened(lines: Lines) -> None:
    async def work(end: AgentEnd) -> None:
        lines.server.kill()
        lines.network.end_of(lines.server)
        with pytest.raises(ConnectionError):
            await end.receive()
        with pytest.raises(ConnectionRefusedError):
            await lines.network.dial("a", lines.agent, within_s=5.0)
        lines.told.append("both")

    lines.run(work, 3.0)
    assert lines.told == ["both"]


def test_of_a_machine_that_is_switched_off_nobody_hears(lines: Lines) -> None:
    async def work(end: AgentEnd) -> None:
        await end.send(b"hello")
        await asyncio.sleep(1.0)
        lines.network.end_of(lines.agent, quietly=True)
        lines.agent.kill()

    lines.run(work, 60.0)
    assert (lines.heard, lines.told) == ([b"hello"], [])


def test_a_sender_waits_for_a_reader_who_does_not_read(lines: Lines) -> None:
    sent: list[int] = []

    async def work(end: AgentEnd) -> None:
        for number in range(2 * BUFFER):
            await end.send(b"%d" % number)
            sent.append(number)

    lines.is_deaf, lines.answers = True, False
    lines.run(work, 3.0)
    assert len(sent) == BUFFER
    lines.is_deaf = False
    lines.time.run(9.0)
    assert len(lines.heard) == 2 * BUFFER

"""Lines between nodes: in order, cut one way or both, given up, and ended with their processes."""

import random
from collections.abc import Iterator

import pytest

from coddl.runtime.supervisor.loop import MessageChannel
from coddl.runtime.supervisor.slots import HostAddress
from coddl.runtime.wire import Message
from coddl.testing.full_system.peer_lines import KEEPALIVE_S, PeerDialing, PeerEnd, PeerNetwork
from coddl.testing.full_system.virtual_loop import VirtualLoop
from coddl.testing.full_system.virtual_time import SimulatedProcess, Skew, VirtualTime


class Peers:
    """A lead on node a, and a process of node b that answers each message."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.network = PeerNetwork(self.time, random.Random(1))
        self.lead, self.host = self._process("lead"), self._process("host")
        self.loop = VirtualLoop(self.lead)
        self.channel: MessageChannel | None = None
        self.heard: list[str] = []  # by either
        self.network.listen("b", VirtualLoop(self.host), self._accept)

    def _process(self, name: str) -> SimulatedProcess:
        return SimulatedProcess(name, self.time, Skew(), lambda _process, error: self._fail(error))

    def _fail(self, error: BaseException) -> None:
        raise error

    def _accept(self, end: PeerEnd) -> None:
        def hear(message: Message) -> None:
            self.heard.append(f"b: {message['do']}")
            end.send({"is": message["do"]})

        end.hand_over(hear, lambda: self.heard.append("b: the end"))

    def dial(self) -> None:
        PeerDialing(self.network, "a", self.loop, HostAddress("b", "b", 1, ""), self)

    def send(self, *words: str) -> None:
        assert self.channel is not None
        for word in words:
            self.channel.send({"do": word})

    def later(self, seconds: float) -> list[str]:
        self.time.run(self.time.now_s + seconds)
        heard, self.heard = self.heard, []
        return heard

    # As the listener of a connection.

    def on_connected(self, channel: MessageChannel) -> None:
        self.channel = channel

    def on_refused(self, error: str) -> None:
        self.heard.append(error)

    def on_message(self, word: Message) -> None:
        self.heard.append(f"a: {word['is']}")

    def on_hung_up(self) -> None:
        self.heard.append("a: the end")


@pytest.fixture
def peers() -> Iterator[Peers]:
    peers = Peers()
    yield peers
    peers.lead.close()
    peers.host.close()


def test_messages_keep_their_order(peers: Peers) -> None:
    peers.dial()
    peers.later(1.0)
    peers.network.slow_down("b", 1.0)
    peers.send(*"12345")
    heard = peers.later(20.0)
    for who in "ab":
        assert [each[-1] for each in heard if each[0] == who] == [*"12345"]


def test_what_was_sent_over_a_short_cut_arrives_when_it_is_mended(peers: Peers) -> None:
    peers.dial()
    peers.later(1.0)
    peers.network.cut("b", "a")
    peers.send("x")
    assert peers.later(KEEPALIVE_S / 2) == ["b: x"]
    peers.network.mend("b", "a")
    assert peers.later(KEEPALIVE_S * 2) == ["a: x"]


@pytest.mark.parametrize("way", [("a", "b"), ("b", "a")])
def test_both_ends_give_a_line_up_that_is_cut_for_long(peers: Peers, way: tuple[str, str]) -> None:
    peers.dial()
    peers.later(1.0)
    peers.network.cut(*way)
    peers.dial()  # and nobody answers
    assert sorted(peers.later(KEEPALIVE_S * 2)) == ["a: the end", "b: the end"]
    peers.network.mend_all()
    peers.dial()
    peers.later(1.0)
    peers.send("again")
    assert peers.later(1.0) == ["b: again", "a: again"]


def test_a_process_that_ends_takes_its_lines_along(peers: Peers) -> None:
    peers.dial()
    peers.later(1.0)
    peers.host.kill()
    peers.network.end_of(peers.host, quietly=False)
    assert peers.later(1.0) == ["a: the end"]
    peers.dial()
    assert peers.later(1.0) == ["ECONNREFUSED"]


def test_of_a_machine_that_is_switched_off_nothing_is_heard_for_long(peers: Peers) -> None:
    peers.dial()
    peers.later(1.0)
    peers.host.kill()
    peers.network.end_of(peers.host, quietly=True)
    assert peers.later(KEEPALIVE_S / 2) == []
    assert peers.later(KEEPALIVE_S) == ["a: the end"]


def test_a_stopped_process_hears_everything_later(peers: Peers) -> None:
    peers.dial()
    peers.later(1.0)
    peers.host.stop()
    peers.send("x", "y")
    assert peers.later(KEEPALIVE_S * 2) == []
    peers.host.proceed()
    assert peers.later(1.0) == ["b: x", "b: y", "a: x", "a: y"]

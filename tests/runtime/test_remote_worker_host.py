"""A worker host that can't be reached: its lead is answered all the same."""

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from coddl.runtime.supervisor import remote_worker_host
from coddl.runtime.supervisor.loop import Loop
from coddl.runtime.supervisor.remote_worker_host import RemoteWorkerHost, tcp_dial
from coddl.runtime.supervisor.slots import HostAddress
from coddl.runtime.wire import Lines, Message, encoded
from tests.runtime.harness import wait_until

HELLO = {"job": "17", "attempt": 2, "adopt": True}
LIVING = {"is": "living", "workers": [], "gone": [], "generation": 0, "newest": -1}


class Lead:
    """A remote worker host that a test drives by hand."""

    def __init__(self, peer: tuple[str, int]) -> None:
        self.words: list[Message] = []
        self.loop = Loop()
        address = HostAddress("node-b", *peer, "secret")
        self.worker_host = RemoteWorkerHost(
            self.loop, tcp_dial(self.loop), address, HELLO, self.words.append
        )

    def wait(self, kind: str, **fields: Any) -> Message:
        wanted = {"is": kind, **fields}.items()

        def said() -> bool:
            self.loop.alarm("again", 0.0, lambda: None)
            self.loop.turn()
            return any(wanted <= word.items() for word in self.words)

        wait_until(said, kind)
        return next(word for word in self.words if wanted <= word.items())

    def close(self) -> None:
        self.worker_host.leave()
        self.loop.close()


@pytest.fixture
def node() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        yield listener


@pytest.fixture
def lead(node: socket.socket) -> Iterator[Lead]:
    with contextlib.closing(Lead(node.getsockname())) as lead:
        yield lead


def accepted(lead: Lead, node: socket.socket) -> socket.socket:
    """Take the lead's connection, as a node that has read its hello."""
    lead.loop.turn()
    peer, _ = node.accept()
    peer.settimeout(10)
    lead.loop.turn()
    (hello,) = Lines().feed(peer.recv(1 << 16))
    assert hello == {"do": "lead", "token": "secret", **HELLO}
    return peer


START = {"do": "start", "worker": 3, "slot": 0, "gpu": None, "argv": [], "env": {}}
RENDEZVOUS = {"do": "rendezvous", "port": 0, "store": "1.1"}
ANSWERS: dict[str, tuple[Message, Message]] = {
    "a start": (START, {"is": "exited", "worker": 3, "code": -9}),
    "a store": (RENDEZVOUS, {"is": "storeless", "store": "1.1"}),
    "a save": (
        {"do": "save", "path": "x.img"},
        {"is": "unsaved", "what": "x.img could not be saved"},
    ),
}


def bound(taken: socket.socket) -> tuple[str, int]:
    """Give an address that nobody listens on, and nobody else can take meanwhile."""
    taken.bind(("127.0.0.1", 0))
    host, port = taken.getsockname()
    return host, port


@pytest.mark.parametrize(("request_", "answer"), ANSWERS.values(), ids=ANSWERS.keys())
def test_what_a_dead_node_was_asked_is_answered(
    request_: Message, answer: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_worker_host, "CONNECT_WITHIN_S", 2.0)
    monkeypatch.setattr(remote_worker_host, "AGAIN_S", 0.05)
    with socket.socket() as taken, contextlib.closing(Lead(bound(taken))) as lead:
        lead.worker_host.do(request_)
        word = lead.wait(**{"kind": answer["is"], **{k: answer[k] for k in answer if k != "is"}})
        assert "node-b at 127.0.0.1 can't be reached: ECONNREFUSED" in word["because"]
        assert lead.worker_host.is_closed
        lead.words.clear()
        lead.worker_host.do(request_)  # it is tried again
        lead.wait("unreachable")


def test_a_lead_that_was_held_up_still_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_worker_host, "CONNECT_WITHIN_S", 0.2)
    monkeypatch.setattr(remote_worker_host, "AGAIN_S", 0.1)
    with socket.socket() as taken, contextlib.closing(Lead(bound(taken))) as lead:
        lead.worker_host.do(START)
        lead.loop.turn()  # it is refused
        time.sleep(0.3)  # the next attempt and the end of all attempts are due together
        assert "ECONNREFUSED" in lead.wait("exited", worker=3)["because"]


def test_a_node_that_comes_up_a_little_later_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_worker_host, "AGAIN_S", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with contextlib.closing(Lead(address)) as lead:
        lead.worker_host.do(START)
        lead.loop.turn()
        with socket.create_server(address) as listener:
            listener.setblocking(False)
            peers: list[socket.socket] = []

            def came() -> bool:
                lead.loop.turn()
                with contextlib.suppress(BlockingIOError):
                    peers.append(listener.accept()[0])
                return bool(peers)

            wait_until(came, "a connection")
            with peers[0] as peer:
                peer.sendall(encoded(LIVING))
                lead.wait("living")


def test_requests_wait_for_the_greeting_and_keep_their_order(
    lead: Lead, node: socket.socket
) -> None:
    lead.worker_host.do(START)
    lead.worker_host.do(RENDEZVOUS)
    with accepted(lead, node) as peer:
        peer.sendall(encoded(LIVING))
        lead.wait("living")
        assert [m["do"] for m in Lines().feed(peer.recv(1 << 16))] == ["start", "rendezvous"]


def test_a_node_that_takes_the_connection_and_is_silent_is_given_up(
    lead: Lead, node: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_worker_host, "GREETED_WITHIN_S", 0.2)
    lead.worker_host.do(START)
    with accepted(lead, node):
        assert "does not answer" in lead.wait("exited", worker=3)["because"]


def test_a_lost_connection_is_told_once_and_made_again_when_needed(
    lead: Lead, node: socket.socket
) -> None:
    lead.worker_host.open()
    with accepted(lead, node) as peer:
        peer.sendall(encoded(LIVING))
        lead.wait("living")
    lead.wait("gone")
    assert lead.worker_host.is_closed
    lead.worker_host.do(START)
    lead.loop.turn()
    again, _ = node.accept()
    with again:
        lead.loop.turn()
        (hello,) = Lines().feed(again.recv(1 << 16))
        assert hello["adopt"] is False, "whoever is there by now was given up"


def test_a_refusal_answers_what_was_asked(lead: Lead, node: socket.socket) -> None:
    lead.worker_host.do(START)
    with accepted(lead, node) as peer:
        refusal = {"is": "refused", "why": "token", "what": "no", "because": "so", "try": "not"}
        peer.sendall(encoded(refusal))
        assert lead.wait("refused")["node"] == "node-b"
        assert lead.wait("exited")["because"] == "so"


def test_closing_waits_until_the_node_hangs_up(lead: Lead, node: socket.socket) -> None:
    lead.worker_host.open()
    with accepted(lead, node) as peer:
        peer.sendall(encoded(LIVING))
        lead.wait("living")
        lead.worker_host.close()
        (dismissed,) = Lines().feed(peer.recv(1 << 16))
        assert dismissed == {"do": "dismiss"}
        assert not lead.worker_host.is_closed
    lead.loop.turn()
    assert lead.worker_host.is_closed

"""Connections to a node that are not a lead's: refused, bounded, and harmless."""

import socket
from typing import Any

import pytest

from coddl.runtime.supervisor import job_hosts
from coddl.runtime.supervisor.slots import HostAddress
from coddl.runtime.wire import Lines, Message, encoded
from tests.runtime.harness import fake_torch
from tests.runtime.nodes import JOB
from tests.runtime.test_job_host_server import Open, pool

__all__ = ["fake_torch", "pool"]  # fixtures


def said(address: HostAddress, *lines: bytes) -> list[Message]:
    """Say something to a node; give all it answers until it hangs up."""
    with socket.create_connection((address.host, address.port), timeout=10) as peer:
        peer.sendall(b"".join(lines))
        heard, parts = [], Lines()
        while data := peer.recv(1 << 16):
            heard += list(parts.feed(data))
        return heard


def hello(address: HostAddress, **fields: Any) -> bytes:
    lead = {"do": "lead", "token": address.token, "job": JOB, "attempt": 1}
    return encoded({**lead, **fields})


HELLOS: dict[str, dict[str, Any]] = {
    "a wrong token": {"token": "guess"},
    "a token that is no text": {"token": "\ud800"},
    "no token": {"token": None},
    "a token that is a number": {"token": 7},
    "a job that is a path": {"job": "../../etc"},
    "an attempt that is a word": {"attempt": "first"},
}


@pytest.mark.parametrize("fields", HELLOS.values(), ids=HELLOS.keys())
def test_a_connection_without_the_token_is_refused_and_starts_nothing(
    pool: Open, fields: dict[str, Any]
) -> None:
    node = pool(nodes=1).nodes[0]
    start = {"do": "start", "worker": 0, "slot": 0, "gpu": None, "argv": ["x"], "env": {}}
    (refused,) = said(node.address, hello(node.address, **fields), encoded(start))
    assert (refused["is"], refused["why"]) == ("refused", "token")
    assert node.token not in str(refused)
    assert not node.agent.held


def test_a_line_without_an_end_is_not_listened_to(
    pool: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_hosts, "HELLO_WAIT_S", 600.0)
    assert said(pool(nodes=1).nodes[0].address, b"x" * (job_hosts.HELLO_BYTES_MAX + 1)) == []


def test_many_silent_connections_make_way_for_a_lead(
    pool: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_hosts, "HELLO_WAIT_S", 600.0)
    monkeypatch.setattr(job_hosts, "UNAUTHENTICATED_MAX", 5)
    nodes = pool(nodes=1)
    address = (nodes.nodes[0].address.host, nodes.nodes[0].address.port)
    silent = [socket.create_connection(address, timeout=10) for _ in range(50)]
    try:
        for each in silent[:45]:
            assert each.recv(1) == b""  # it was hung up on
        lead = nodes.lead()
        nodes.assign(lead, 1)
        lead.wait_size(1)
    finally:
        for each in silent:
            each.close()


DEEP = b"[" * 4000 + b"\n"


@pytest.mark.parametrize("words", [b"GET / HTTP/1.0\r\n\r\n", b"[]\n", b"\xff\xfe\n", DEEP])
def test_what_is_no_language_of_ours_harms_nobody(pool: Open, words: bytes) -> None:
    nodes = pool(nodes=1)
    assert said(nodes.nodes[0].address, words) == []
    lead = nodes.lead()
    nodes.assign(lead, 1)
    lead.wait_size(1)


def test_an_older_attempt_is_refused(pool: Open) -> None:
    nodes = pool(nodes=1)
    lead = nodes.lead(attempt=3)
    nodes.assign(lead, 1)
    lead.wait_size(1)
    address = nodes.nodes[0].address
    (refused,) = said(address, hello(address, attempt=2))
    assert (refused["is"], refused["why"]) == ("refused", "attempt")
    assert "attempt 3 has replaced it" in refused["because"]


def test_a_silent_connection_is_closed(pool: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_hosts, "HELLO_WAIT_S", 0.1)
    assert said(pool(nodes=1).nodes[0].address) == []

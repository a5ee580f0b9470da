"""A lead that looks for workers at two nodes, of which a test plays the second."""

import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coddl.runtime.supervisor import pool_job, remote_worker_host
from coddl.runtime.supervisor.slots import HostAddress, Slot
from coddl.runtime.supervisor.worker_history import WorkerHistory
from coddl.runtime.wire import Lines, Message, encoded
from tests.runtime.harness import ROOT, STUB, fake_torch, wait_until
from tests.runtime.nodes import JOB, Lead, Pool, environment_in

__all__ = ["fake_torch"]  # fixtures

SLOT = 4


class Played:
    """A node that says what a test has it say."""

    def __init__(self) -> None:
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))  # until it listens, who connects is refused
        self._listener.settimeout(60)
        self._peer: socket.socket | None = None
        self._lines, self._asked = Lines(), list[Message]()

    @property
    def address(self) -> HostAddress:
        host, port = self._listener.getsockname()
        return HostAddress("node-1", host, port, "secret")

    def greeted(self, *workers: WorkerHistory) -> Message:
        """Take a connection, and name those who live here; give the lead's first word."""
        self._listener.listen()
        self.hang_up()
        self._peer, _ = self._listener.accept()
        self._peer.settimeout(60)
        hello = self.asked("lead")
        living = [history.as_data() for history in workers]
        self.say("living", workers=living, gone=[], generation=5, newest=3)
        return hello

    def say(self, kind: str, **fields: Any) -> None:
        assert self._peer is not None
        self._peer.sendall(encoded({"is": kind, **fields}))

    def asked(self, do: str) -> Message:
        """Give the next request of a kind; those before it are forgotten."""
        assert self._peer is not None
        while True:
            while self._asked:
                if (request := self._asked.pop(0))["do"] == do:
                    return request
            self._asked += self._lines.feed(self._peer.recv(1 << 16))

    def hang_up(self) -> None:
        if self._peer is not None:
            self._peer.close()
        self._lines = Lines()

    def close(self) -> None:
        self.hang_up()
        self._listener.close()


@pytest.fixture
def played() -> Iterator[Played]:
    node = Played()
    yield node
    node.close()


@pytest.fixture
def pool(tmp_path: Path, fake_torch: Path) -> Iterator[Pool]:
    environment = environment_in(tmp_path, f"{fake_torch}:{ROOT}")
    nodes = Pool(environment, (str(STUB), json.dumps({})), nodes=1)
    yield nodes
    nodes.close()


def adopting(pool: Pool, played: Played) -> Lead:
    lead = pool.lead(adopt=True)
    slots = [*pool.first_slots(1), Slot(SLOT, "node-1")]
    lead.supervisor.assign(slots, {**pool.addresses(), "node-1": played.address})
    return lead


def pool_job_of(lead: Lead) -> pool_job.PoolJob:
    assert lead.supervisor._pool_job is not None
    return lead.supervisor._pool_job


def hang_up(_lead: Lead, played: Played) -> None:
    played.hang_up()


def tell_its_end(lead: Lead, played: Played) -> None:
    played.say("exited", worker=3, code=-9, because=None, has_ended=False)
    played.say("warm", torch="fake", gpus=0)
    lead.wait("warm")


def begin_anew(lead: Lead, played: Played) -> None:
    """Have the lead told that the node has a new agent."""
    address = replace(played.address, token="of another day")
    lead.supervisor.assign(
        [Slot(SLOT, "node-1")], {**pool_job_of(lead)._addresses, "node-1": address}
    )


LOSSES: dict[str, Callable[[Lead, Played], None]] = {
    "its node hangs up": hang_up,
    "its node has a new agent": begin_anew,
    "it exits": tell_its_end,
}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES.keys())
def test_who_was_found_and_is_lost_before_all_have_answered_is_not_adopted(
    pool: Pool, played: Played, lose: Callable[[Lead, Played], None]
) -> None:
    agent = pool.nodes[0].agent
    environment = agent.environments.pop(JOB)  # so that node does not answer yet
    lead = adopting(pool, played)
    arrived = {
        "is": "arrived",
        "parts": 8,
        "workers_max": 8,
        "virtual_nodes": 8,
        "global_batch": 64,
        "steps": 100,
    }
    played.greeted(WorkerHistory(3, SLOT, arrived=arrived, has_state=True))
    adoption = pool_job_of(lead)._adoption
    assert adoption is not None
    wait_until(lambda: bool(adoption.records), "somebody found")
    lose(lead, played)
    if lose is not tell_its_end:
        played.greeted()  # it is asked again
    wait_until(lambda: not adoption.records, "nobody left")
    agent.environments[JOB] = environment
    pool.nodes[0].job_host_server.look_again()
    assert lead.wait("starting")["worker"] == 4


def test_who_lives_on_though_the_line_broke_is_adopted(pool: Pool, played: Played) -> None:
    agent = pool.nodes[0].agent
    environment = agent.environments.pop(JOB)
    adopting(pool, played)
    arrived = {
        "is": "arrived",
        "parts": 8,
        "workers_max": 8,
        "virtual_nodes": 8,
        "global_batch": 64,
        "steps": 100,
    }
    for _ in range(2):
        played.greeted(WorkerHistory(3, SLOT, arrived=arrived, has_state=True))
    agent.environments[JOB] = environment
    pool.nodes[0].job_host_server.look_again()
    assert played.asked("tell")["to"] == [3]


def test_a_number_given_twice_is_told_apart_by_its_node(
    pool: Pool, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_worker_host, "CONNECT_WITHIN_S", 0.5)
    monkeypatch.setattr(pool_job, "SLOTS_AGAIN_S", 0.5)
    lead = adopting(pool, played)
    lead.wait("starting", lambda event: event["slot"] == SLOT)  # the node was not reached
    hello = played.greeted(WorkerHistory(0, SLOT))
    assert hello["adopt"] is False, "it may end them itself"
    assert played.asked("kill")["worker"] == 0
    start = played.asked("start")
    played.say("forked", worker=0, pid=1)
    played.say("said", worker=0, word={"is": "ended", "step": 7})
    played.say("exited", worker=0, code=-9)
    played.say("exited", worker=start["worker"], code=-9)
    lead.wait("exited", lambda event: event["worker"] == start["worker"])
    assert not [each for each in lead.told("exited") if each["worker"] == 0]
    assert not [each for each in lead.told("forked") if each["pid"] == 1]

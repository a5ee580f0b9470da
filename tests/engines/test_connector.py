"""The connector between a real server and a fake engine, whose nodes are stub agents."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coddl.api.client import Client, ServerAddress
from coddl.core.errors import UserError
from coddl.core.node_count import NodeBounds
from coddl.core.pool.records import RunEnded
from coddl.engines.connector import Connector
from coddl.engines.engine import EngineNode
from coddl.testing.engines import FakeEngine
from tests.server.harness import DEADLINE_S, TOKEN, LivePool

BOUNDS = NodeBounds(0, 2, 2, start_s=10.0, idle_s=60.0)


class Connected:
    """A server, an engine, and what is between them."""

    def __init__(self, live: LivePool, client: Client) -> None:
        self.live = live
        self.engine = FakeEngine()
        self.said: list[str] = []
        self.connector = Connector(
            "fake", self.engine, client, BOUNDS, self.said.append, live.clock.wall_s
        )

    def engine_view(self) -> dict[str, Any]:
        found: dict[str, Any] = self.live.client.get("/api/v1/engine").json()
        return found

    def node(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.live.client.get(f"/api/v1/nodes/{name}").json()
        return found


@pytest.fixture
def connected(tmp_path: Path) -> Iterator[Connected]:
    with LivePool(tmp_path) as live, Client(ServerAddress(live.url, TOKEN)) as client:
        yield Connected(live, client)


def submitted(connected: Connected) -> None:
    body = {"script": "train.py", "gpus": "1..4"}
    assert connected.live.client.post("/api/v1/jobs", json=body).status_code == 201


def test_a_job_has_a_node_brought_that_joins(connected: Connected) -> None:
    connected.connector.step()
    assert connected.engine.nodes == {}
    submitted(connected)
    connected.connector.step()
    connected.connector.step()
    assert list(connected.engine.nodes) == ["fake-1"]
    view = connected.engine_view()
    assert (view["engine"], view["wanted"], view["starting"]) == ("fake", 1, ["fake-1"])
    assert view["because"] == "job 1 can use 1 GPU"
    job = connected.live.client.get("/api/v1/jobs/1").json()
    assert "needs 1 GPU, 1 node asked for from fake, not there yet" in job["reason"]
    connected.live.joined("fake-1").expect_orders(lambda orders: orders.orders.seats)


def test_a_node_that_is_to_leave_is_drained_by_then(connected: Connected) -> None:
    submitted(connected)
    connected.connector.step()
    connected.connector.step()
    connected.live.joined("fake-1")
    now_s = connected.live.clock.wall_s()
    connected.engine.take_away("fake-1", now_s + 90.0, "its time limit is near")
    connected.connector.step()
    node = connected.node("fake-1")
    assert (node["state"], node["leaves_at_s"]) == ("DRAINED", pytest.approx(now_s + 90.0))
    events = connected.live.client.get("/api/v1/events").json()["items"]
    said = [event["text"] for event in events]
    assert "node fake-1 drained by fake, to be empty within 90 s: its time limit is near" in said, (
        said
    )


def test_jobs_leave_before_their_nodes_are_given_back(connected: Connected) -> None:
    submitted(connected)
    connected.connector.step()
    connected.connector.step()
    agent = connected.live.joined("fake-1")
    agent.expect_orders(lambda orders: orders.orders.seats)
    agent.hold(0)
    giving_back = threading.Thread(target=connected.connector.give_back, daemon=True)
    giving_back.start()
    agent.expect_orders(lambda new: [lead.stop for lead in new.orders.leads] == ["retire"])
    assert connected.node("fake-1")["state"] == "DRAINED"
    assert connected.engine.nodes["fake-1"].state == "up", "a job is on it"
    agent.report(RunEnded(1, 1, "retired", 5))
    agent.expect_orders(lambda new: not new.orders.leads)
    agent.hold()
    giving_back.join(DEADLINE_S)
    assert not giving_back.is_alive()
    assert not connected.engine.nodes
    events = connected.live.client.get("/api/v1/events").json()["items"]
    want = "node fake-1 drained by fake, to be empty within 0 s: the pool stops"
    assert [event["text"] for event in events].count(want) == 1


def test_nodes_are_given_back_without_a_server() -> None:
    engine = FakeEngine()
    engine.acquire()
    with Client(ServerAddress("http://127.0.0.1:9", TOKEN)) as client:
        Connector("fake", engine, client, BOUNDS).give_back()
    assert not engine.nodes


def test_nodes_that_fail_are_asked_for_less_and_less_often(connected: Connected) -> None:
    submitted(connected)
    connected.connector.step()
    for count in (1, 2):
        name = f"fake-{count}"
        because = "No module named 'coddl'"
        connected.engine.nodes[name] = EngineNode(name, "releasing", because=because)
        connected.connector.step()
        connected.connector.step()
        assert connected.engine.acquired == count, "not at once"
        assert connected.engine_view()["notes"] == [f"node {name}: {because}"]
        assert f"node {name} failed: {because}; next try in {2**count} s" in connected.said
        connected.live.clock.turn(2.0**count + 1.0)
        connected.connector.step()
        assert connected.engine.acquired == count + 1


def test_a_pool_whose_engine_is_gone_for_good_forgets_it(connected: Connected) -> None:
    connected.connector.step()
    assert connected.engine_view()["is_connected"]
    assert connected.live.client.delete("/api/v1/engine").status_code == 204
    assert connected.engine_view()["engine"] == ""
    assert connected.live.client.delete("/api/v1/engine").status_code == 204


def test_an_engine_that_is_away_is_told_of_and_nothing_is_taken_for_gone(
    connected: Connected,
) -> None:
    submitted(connected)
    connected.connector.step()
    connected.connector.step()
    connected.engine.is_away = True
    connected.connector.step()
    connected.connector.step()
    want = "the fake engine can't be asked: it is away"
    assert connected.engine_view()["trouble"] == want
    assert connected.said.count(want) == 1
    assert connected.engine_view()["starting"] == ["fake-1"]
    connected.engine.is_away = False
    connected.connector.step()
    assert connected.engine_view()["trouble"] == ""


def test_a_server_that_is_away_is_waited_for() -> None:
    said: list[str] = []
    with Client(ServerAddress("http://127.0.0.1:9", TOKEN)) as client:
        connector = Connector("fake", FakeEngine(), client, BOUNDS, said.append)
        waits = iter([False, True])
        connector.run(lambda _s: next(waits))
        assert len(said) == 1
        with pytest.raises(UserError):
            connector.step()

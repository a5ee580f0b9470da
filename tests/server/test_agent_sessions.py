"""Agents on the wire: who may join, what they are told, when they are lost."""

import asyncio
import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from websockets.exceptions import InvalidStatus

from coddl.api import wire
from coddl.api.jobsfolder import JobsFolder
from coddl.core.errors import UserError
from coddl.core.pool.records import (
    Device,
    RunEnded,
    RunPrepared,
    RunProgressed,
    RunStepped,
    RunUnsaved,
    SliceDidNotFit,
    Trouble,
)
from coddl.server.agent_sessions import LEASE_OVER, REFUSED, REPLACED, TOO_SLOW, AgentSession
from coddl.server.journal import Journal
from coddl.server.server import Server
from coddl.server.store_memory import MemoryStore
from coddl.traces.clusters import cluster_from
from tests.server.harness import DEADLINE_S, LivePool, ManualClock, StubAgent, eventually


def test_an_agent_is_welcomed_and_told_its_orders(live: LivePool) -> None:
    agent = live.agent()
    agent.hello()
    welcome = agent.expect(wire.Welcome)
    assert (welcome.lease_s, welcome.beat_every_s) == (60.0, 2.5)
    orders = agent.expect(wire.NewOrders)
    assert not orders.orders.leads
    node = live.node("n1")
    assert (node["state"], len(node["slots"]), node["free"]) == ("UP", 2, 2)


def test_without_the_token_there_is_no_line(live: LivePool) -> None:
    with pytest.raises(InvalidStatus) as caught:
        live.agent(token="guess")
    assert caught.value.response.status_code == 401
    assert json.loads(caught.value.response.body)["code"] == "Unauthorized"


REFUSALS = {
    "another protocol": (
        {"is": "hello", "protocol": 99, "new": "field"},
        "it speaks protocol 99 and the server",
    ),
    "another word first": ({"is": "beat", "number": 1}, "its first message is beat"),
    "no hello at all": ({"is": "hello", "protocol": wire.PROTOCOL}, "not understood"),
    "not JSON": ("\x00garbage", "not understood"),
}


@pytest.mark.parametrize(("words", "because"), REFUSALS.values(), ids=REFUSALS.keys())
def test_who_is_not_understood_is_told_so(live: LivePool, words: object, because: str) -> None:
    agent = live.agent()
    agent.line.send(words if isinstance(words, str) else json.dumps(words))
    assert because in agent.expect(wire.Refused).because
    assert agent.expect_end()[0] == REFUSED


BAD_HELLOS = {
    "a name with a slash": ({"node": "../n1"}, "a name is at most"),
    "no devices": ({"devices": ()}, "0 GPUs or CPU slots"),
    "a GPU twice": (
        {"devices": (Device(0, "h200", "GPU-1"), Device(1, "h200", "GPU-1"))},
        "GPU GPU-1 twice",
    ),
    "devices with one number": ({"devices": (Device(0, "cpu"), Device(0, "cpu"))}, "1 numbers"),
}


@pytest.mark.parametrize(("changes", "because"), BAD_HELLOS.values(), ids=BAD_HELLOS.keys())
def test_a_hello_that_makes_no_sense_is_refused(
    live: LivePool, changes: dict[str, object], because: str
) -> None:
    agent = live.agent()
    agent.hello(**changes)
    assert because in agent.expect(wire.Refused).because
    assert live.api("GET", "/nodes").json()["items"] == []


def test_a_second_agent_of_a_name_is_refused_while_the_first_is_alive(live: LivePool) -> None:
    first = live.joined("n1", boot="a")
    second = live.agent("n1", boot="b")
    second.hello()
    refused = second.expect(wire.Refused)
    assert "a node of that name is connected" in refused.because
    assert "--name" in refused.try_
    first.beat()


def test_an_agent_with_a_gpu_that_another_node_has_is_refused_until_that_is_lost(
    live: LivePool,
) -> None:
    gpus = (Device(0, "h200", "GPU-1"),)
    first = live.agent("n1")
    first.hello(devices=gpus)
    first.expect(wire.Welcome)
    for is_connected in (True, False):
        second = live.agent("n2")
        second.hello(devices=gpus)
        refused = second.expect(wire.Refused)
        assert "its GPU GPU-1 already belongs to node n1" in refused.because
        if is_connected:
            first.close()
            eventually(lambda: live.node("n1")["state"] == "SILENT")
    again = live.agent("n1")  # it may well come back itself
    again.hello(devices=gpus)
    again.expect(wire.Welcome)
    live.clock.turn(60.0)
    eventually(lambda: live.node("n1")["state"] == "LOST")
    third = live.agent("n2")
    third.hello(devices=gpus)
    third.expect(wire.Welcome)


def test_a_second_agent_takes_a_name_whose_first_is_silent(live: LivePool) -> None:
    first = live.joined("n1", boot="a")
    live.clock.turn(3 * 2.5)
    live.joined("n1", boot="b")
    assert first.expect_end()[0] == REPLACED
    kinds = [event["kind"] for event in live.api("GET", "/events").json()["items"]]
    assert kinds.count("NodeLost") == 1
    assert kinds.count("NodeJoined") == 2


def test_the_same_agent_may_come_again_at_once_and_nothing_is_lost(live: LivePool) -> None:
    first = live.joined("n1")
    live.submit(name="a", gpus=1)
    first.expect_orders(lambda new: new.orders.leads)
    second = live.joined("n1")
    assert first.expect_end()[0] == REPLACED
    second.expect_orders(lambda new: new.orders.leads)
    assert live.node("n1")["state"] == "UP"
    kinds = [event["kind"] for event in live.api("GET", "/events").json()["items"]]
    assert "NodeLost" not in kinds


def test_a_node_that_the_cluster_does_not_name_is_told(tmp_path: Path) -> None:
    with LivePool(tmp_path, site=cluster_from("2x4")) as live, capture_logs() as logged:
        live.joined("node-0")
        live.joined("n1")
    told = [each for each in logged if each["event"] == "node_not_in_cluster_file"]
    assert [(each["node"], each["named"]) for each in told] == [("n1", "node-0, node-1")]


def test_nodes_that_differ_are_told_in_views_and_once_in_the_log(live: LivePool) -> None:
    with capture_logs() as logged:
        for name, torch in {"n1": "2.13.0", "n2": "2.11.0", "n3": "2.11.0"}.items():
            agent = live.agent(name)
            agent.hello(python="3.11.7", torch=torch)
            agent.expect(wire.Welcome)
    told = "different versions of torch (2.11.0 on n2, n3; 2.13.0 on n1)"
    for (problem,) in (
        live.api("GET", "/nodes").json()["problems"],
        live.client.get("/readyz").json()["problems"],
    ):
        assert told in problem
    assert live.node("n2")["torch"] == "2.11.0"
    assert [each["node"] for each in logged if each["event"] == "nodes_differ"] == ["n2"]


def test_a_line_that_breaks_makes_a_node_silent_not_lost(live: LivePool) -> None:
    live.joined("n1").close()
    eventually(lambda: live.node("n1")["state"] == "SILENT")
    assert live.node("n1")["is_up"]


def test_a_node_without_beats_is_lost_when_its_lease_is_over(live: LivePool) -> None:
    agent = live.joined("n1")
    live.clock.turn(59.0)
    agent.beat()
    live.clock.turn(59.0)
    assert live.node("n1")["is_up"]
    live.clock.turn(1.0)
    assert agent.expect_end()[0] == LEASE_OVER
    assert live.node("n1")["state"] == "LOST"
    event = live.api("GET", "/events?limit=3").json()["items"]
    assert any("no contact for 60 s (its lease expired)" in each["text"] for each in event)


def test_a_node_that_was_lost_joins_again(live: LivePool) -> None:
    agent = live.joined("n1")
    live.clock.turn(60.0)
    agent.expect_end()
    live.joined("n1")
    assert live.node("n1")["state"] == "UP"


def test_a_job_runs_from_submit_to_its_end(live: LivePool) -> None:
    agent = live.joined("n1", slots=1)
    job = live.submit(name="a", gpus=1)
    orders = agent.expect_orders(lambda new: new.orders.leads)
    lead = orders.orders.leads[0]
    assert (lead.job, lead.attempt, [seat.slot for seat in lead.seats]) == (job["id"], 1, [0])
    assert orders.orders.jobs[1].launch.argv == ("train.py",)
    assert orders.peers == (wire.Peer("n1", "127.0.0.1", 7000, "peer-of-n1"),)
    assert live.job("a")["state"] == "STARTING"
    live.clock.turn(2.0)
    prepared = RunPrepared(1, 1, None, 100, workers_max=8)
    number = agent.report(prepared, RunStepped(1, 1, 1))
    while agent.expect(wire.Ack).number != number:
        pass
    assert live.job("a")["state"] == "RUNNING"
    progress = RunProgressed(1, 1, 50, 1, 0.5, 40)
    agent.say(
        wire.Progress(
            runs=(
                wire.RunProgress(
                    progressed=progress, samples_per_s=12.0, saved_step=40, metrics={"loss": 0.5}
                ),
            )
        )
    )
    running = eventually(lambda: (j := live.job("a"))["step"] == 50 and j)
    assert isinstance(running, dict)
    want = {"progress": 0.5, "eta_s": 25.0, "samples_per_s": 12.0, "saved_step": 40}
    assert {key: running[key] for key in want} == want
    assert running["metrics"] == {"loss": 0.5}
    still = wire.RunProgress(progressed=progress, still_s=42.0)
    agent.say(wire.Progress(runs=(still,)))
    stands = eventually(lambda: (j := live.job("a"))["still_s"] == 42.0 and j)
    assert isinstance(stands, dict)
    assert (stands["state"], stands["eta_s"], stands["samples_per_s"]) == ("RUNNING", None, 0.0)
    live.clock.turn(3.0)
    agent.report(RunEnded(1, 1, "succeeded", 100, 0))
    agent.expect_orders(lambda new: not new.orders.leads)
    done = live.job("a")
    assert done["still_s"] == 0.0
    assert (done["state"], done["gpus"], done["jct_s"]) == ("SUCCEEDED", 0, 5.0)
    assert (done["runtime_s"], done["waited_s"], done["exit_code"]) == (5.0, 0.0, 0)
    assert done["samples_per_s"] == 0.0


def test_a_job_that_ran_out_of_memory_needs_more_from_then_on(live: LivePool) -> None:
    agent = live.joined("n1", slots=2)
    live.submit(name="a", gpus="1..2")
    agent.expect_orders(lambda new: new.orders.leads)
    agent.report(
        RunPrepared(1, 1, None, None, 64, workers_max=64),
        SliceDidNotFit(1, 1, 2, "a slice of 64 samples does not fit in memory"),
        RunEnded(1, 1, "requeue", 0, 75),
    )
    agent.expect_orders(lambda new: not new.orders.leads)
    agent.hold()
    orders = agent.expect_orders(lambda new: new.orders.leads)
    assert [len(lead.seats) for lead in orders.orders.leads] == [2]
    job = live.job("a")
    limit = "at least 2 GPUs: a slice of 64 samples does not fit in memory on cpu"
    assert (job["gpus_min"], job["memory_limit"]) == (2, limit)
    assert (job["steps"], job["progress"], job["eta_s"]) == (None, None, None)


def test_a_job_that_can_not_be_saved_shows_until_it_is(live: LivePool) -> None:
    agent = live.joined("n1", slots=2)
    live.submit(name="a", gpus="1..2")
    agent.expect_orders(lambda new: new.orders.leads)
    full = Trouble("no checkpoint", "the disk is full", "free space")
    agent.report(RunStepped(1, 1, 3), RunUnsaved(1, 1, 5, full))
    eventually(lambda: live.job("a")["unsaved"] is not None)
    job, ready = live.job("a"), live.client.get("/readyz")
    assert job["unsaved"] == {"what": full.what, "because": full.because, "try": full.try_}
    assert "; it cannot save its state: no checkpoint: the disk is full" in job["reason"]
    problem = 'job 1 "a": it cannot save its state: no checkpoint: the disk is full'
    assert (ready.status_code, ready.json()["problems"]) == (200, [problem])
    agent.report(RunUnsaved(1, 1, 9, None))
    eventually(lambda: live.job("a")["unsaved"] is None)
    assert live.client.get("/readyz").json()["problems"] == []


def test_the_pool_is_woken_when_it_asked_to_be(tmp_path: Path) -> None:
    with LivePool(tmp_path, lease_s=1e6) as live:
        live.joined("n1", slots=2)
        live.submit(name="a", gpus="1..2")
        wake_at_s = live.in_loop(lambda: live.server.pool.wake_at_s)
        assert wake_at_s is not None
        before = live.api("GET", "/events").json()["next"]
        live.clock.turn(wake_at_s - live.clock.wall_s())
        path = f"/events?after={before}"
        events = eventually(lambda: live.api("GET", path).json()["items"])
        assert events[0]["kind"] == "Decided"
        assert "periodic rebalance" in events[0]["text"]


def test_a_device_is_free_when_its_agent_knowing_the_newest_orders_says_so(
    live: LivePool,
) -> None:
    agent = live.joined("n1", slots=1)
    live.submit(name="a", gpus=1)
    agent.expect_orders(lambda new: new.orders.leads)
    stale = agent.orders.orders.version if agent.orders else 0
    agent.hold(0)
    agent.report(RunEnded(1, 1, "succeeded", 1, 0))
    agent.expect_orders(lambda new: not new.orders.leads)
    agent.hold(version=stale)  # a ghost: it has not heard yet
    agent.hold(0)
    agent.beat()
    assert live.node("n1")["used"] == 1
    agent.hold()
    eventually(lambda: live.node("n1")["used"] == 0)


def test_two_nodes_are_told_of_one_another_when_a_job_spans_them(live: LivePool) -> None:
    agents = {name: live.joined(name, slots=1) for name in ("n1", "n2")}
    live.submit(name="a", gpus=2)
    eventually(lambda: live.job("a")["gpus"] == 2)
    lead = live.job("a")["lead"]
    other = "n2" if lead == "n1" else "n1"
    orders = agents[lead].expect_orders(lambda new: new.orders.leads)
    assert {peer.node for peer in orders.peers} == {"n1", "n2"}
    seen = agents[other].expect_orders(lambda new: new.orders.seats)
    assert not seen.orders.leads
    assert seen.peers == ()


def test_a_lead_is_told_anew_how_to_reach_a_node_that_came_back(live: LivePool) -> None:
    agents = {name: live.joined(name, slots=1) for name in ("n1", "n2")}
    live.submit(name="a", gpus=2)
    eventually(lambda: live.job("a")["gpus"] == 2)
    lead = live.job("a")["lead"]
    other = "n2" if lead == "n1" else "n1"
    agents[lead].expect_orders(lambda new: len(new.peers) == 2)
    again = live.agent(other, slots=1)
    again.hello(port=7777)
    again.expect(wire.Welcome)
    agents[lead].expect_orders(lambda new: any(peer.port == 7777 for peer in new.peers))


def test_a_report_is_acknowledged_when_it_is_safe_and_not_before(live: LivePool) -> None:
    assert isinstance(live.store, MemoryStore)
    agent = live.joined("n1", slots=1)
    live.submit(name="a", gpus=1)
    agent.expect_orders(lambda new: new.orders.leads)
    live.store.is_full = True
    number = agent.report(RunStepped(1, 1, 1))
    agent.beat(7)  # answered although journal_full: agents keep their lease
    assert live.job("a")["state"] == "STARTING"
    live.store.is_full = False
    live.clock.turn(1.0)
    assert agent.expect(wire.Ack).number == number
    assert live.job("a")["state"] == "RUNNING"


def test_a_node_that_joins_while_the_journal_is_full_is_welcomed_when_there_is_room(
    live: LivePool,
) -> None:
    assert isinstance(live.store, MemoryStore)
    live.store.is_full = True
    agent = live.agent("n1")
    agent.hello()
    agent.say(wire.Beat(number=1))
    eventually(lambda: live.in_loop(lambda: live.server._queue), "the join to be kept")
    assert live.api("GET", "/nodes").json()["items"] == []
    live.store.is_full = False
    live.clock.turn(1.0)
    agent.expect(wire.Welcome)
    assert live.node("n1")["state"] == "UP"


def test_words_that_are_not_understood_end_the_line_and_no_more(live: LivePool) -> None:
    agent = live.joined("n1")
    agent.line.send('{"is": "song"}')
    assert agent.expect_end()[0] == REFUSED
    eventually(lambda: live.node("n1")["state"] == "SILENT")
    live.joined("n1")


def test_after_a_restart_only_nodes_that_are_not_back_are_held_back(tmp_path: Path) -> None:
    store = MemoryStore()
    with LivePool(tmp_path, store) as live:
        agents = [live.joined(name, slots=1) for name in ("n1", "n2")]
        live.submit(name="a", gpus=1)
        (lead,) = eventually(lambda: [n for n in ("n1", "n2") if live.node(n)["used"]])
        (other,) = {"n1", "n2"} - {lead}
        assert agents
    with LivePool(tmp_path, store) as live:
        eventually(lambda: live.client.get("/readyz").status_code == 200)
        assert live.node(lead)["is_awaited"]
        live.submit(name="b", gpus=1)
        assert live.job("b")["gpus"] == 0
        first = live.joined(other, slots=1)
        live.clock.turn(9.0)
        assert live.job("b")["gpus"] == 0, "the other one may be about to come back, too"
        live.clock.turn(1.0)
        first.expect_orders(lambda new: [each.job for each in new.orders.leads] == [2])
        assert live.job("a")["state"] == "STARTING"
        assert live.node(lead)["jobs"] == [1], "it may well run there"
        live.clock.turn(49.0)
        first.beat()
        live.clock.turn(1.0)  # a lease after the start: the other one did not come back
        eventually(lambda: live.node(lead)["state"] == "LOST")
        assert live.node(other)["state"] == "UP"
        assert live.job("a")["gpus"] == 0


def test_after_a_restart_an_agent_that_is_back_goes_on_with_its_job(tmp_path: Path) -> None:
    store = MemoryStore()
    with LivePool(tmp_path, store) as live:
        agent = live.joined("n1", slots=1)
        live.submit(name="a", gpus=1)
        orders = agent.expect_orders(lambda new: new.orders.leads).orders
    with LivePool(tmp_path, store) as live:
        again = live.joined("n1", slots=1)
        same = again.expect_orders(lambda new: new.orders.leads).orders
        assert same.leads == orders.leads
        again.report(RunStepped(1, 1, 1))
        eventually(lambda: live.job("a")["state"] == "RUNNING")


def test_a_server_may_be_started_with_another_policy(tmp_path: Path) -> None:
    pool = LivePool(tmp_path)
    with pytest.raises(UserError, match='no policy named "x"'):
        pool.server.follow("x")
    pool.server.follow("fifo")
    with pool as live:
        eventually(lambda: live.api("GET", "/policy").json()["policy"] == "fifo")
        assert live.api("GET", "/policy").json()["by"] == "the server to start"


def test_what_a_job_prints_is_kept(live: LivePool) -> None:
    agent = live.joined("n1", slots=1)
    live.submit(name="a", gpus=1)
    tell_lines(agent, 1, *"abc")
    tell_lines(agent, 99, "of no job")
    found = eventually(lambda: live.api("GET", "/jobs/a/logs").json()["items"])
    assert [line["text"] for line in found] == ["a", "b", "c"]
    last = live.api("GET", "/jobs/a/logs?tail=1").json()["items"]
    assert [(line["number"], line["text"]) for line in last] == [(3, "c")]
    assert live.api("GET", "/jobs/a/logs?rank=5").json()["items"] == []
    assert live.api("GET", "/jobs/a/logs?since_s=9").json()["items"] == []


def tell_lines(agent: StubAgent, job: int, *texts: str) -> None:
    lines = tuple(wire.LogLine(1.0, 1, 0, 0, "stdout", text) for text in texts)
    agent.say(wire.Logs(job=job, lines=lines))


class DeafSocket:
    """An agent that says hello and beats, and reads nothing."""

    def __init__(self, hello: wire.Hello) -> None:
        self._hello = hello
        self._beats = 0
        self.closed: tuple[int, str] | None = None

    async def receive(self) -> bytes:
        """Say the next thing."""
        self._beats += 1
        if self._beats == 1:
            return wire.encoded(self._hello)
        await asyncio.sleep(0)
        return wire.encoded(wire.Beat(number=self._beats))

    async def send(self, _data: bytes) -> None:
        """Take nothing."""
        await asyncio.Event().wait()

    async def close(self, code: int, reason: str) -> None:
        """Hear that it is over."""
        self.closed = code, reason


def test_who_reads_nothing_is_dropped_and_holds_nobody_up(tmp_path: Path) -> None:
    hello = wire.Hello(
        protocol=wire.PROTOCOL,
        version="0",
        node="deaf",
        boot="b",
        host="h",
        port=1,
        peer_token="t",
        devices=(Device(0, "cpu"),),
        jobs=JobsFolder("/jobs", "shared", "", 0),
    )

    async def main() -> tuple[int, str] | None:
        server = Server(Journal(MemoryStore()), tmp_path, ManualClock())
        async with server.running(), asyncio.timeout(DEADLINE_S):
            socket = DeafSocket(hello)
            await AgentSession(server, socket, server.sessions).run()
            return socket.closed

    closed = asyncio.run(main())
    assert closed == (TOO_SLOW, "1000 messages are unread")

"""Runs on the wire: what an agent does not list is over; of a run, only its lead is heard."""

from coddl.api import wire
from coddl.core.pool.records import RunEnded, RunId, RunProgressed, RunStepped
from tests.server.harness import LivePool, StubAgent, eventually

RUN = RunId(1, 1)


def started(live: LivePool) -> StubAgent:
    """Have job 1 run on the only slot of a node."""
    agent = live.joined("n1", slots=1)
    live.submit(name="a", gpus=1)
    agent.expect_orders(lambda new: new.orders.leads)
    agent.report(RunStepped(1, 1, 1))
    agent.hold(0, runs=[RUN])
    eventually(lambda: live.job("a")["state"] == "RUNNING")
    return agent


def test_a_run_whose_end_was_never_told_frees_its_devices_and_starts_again(live: LivePool) -> None:
    agent = started(live)
    agent.hold(0, runs=[RUN])
    agent.beat()
    assert live.job("a")["state"] == "RUNNING"
    agent.hold(0, runs=[])
    agent.expect_orders(lambda new: not new.orders.leads)
    job = live.job("a")
    assert (job["state"], job["gpus"]) == ("PREEMPTED", 0)
    assert "node n1 no longer runs it" in str(live.api("GET", "/jobs/a/explain").json())
    agent.hold(runs=[])
    eventually(lambda: live.node("n1")["used"] == 0)
    live.clock.turn(10.0)  # it rests before it is tried again
    orders = agent.expect_orders(lambda new: new.orders.leads).orders
    assert orders.leads[0].attempt == 2


def test_another_than_the_lead_is_acknowledged_counted_and_not_heard(live: LivePool) -> None:
    started(live)
    other = live.joined("n2", slots=1)
    number = other.report(RunEnded(1, 1, "failed"))
    while other.expect(wire.Ack).number != number:
        pass
    progressed = RunProgressed(1, 1, 50, 1, 0.5, 40)
    other.say(wire.Progress(runs=(wire.RunProgress(progressed=progressed),)))
    dropped = "coddl_reports_dropped_total 2.0"
    eventually(lambda: dropped in live.client.get("/metrics").text)
    job = live.job("a")
    assert (job["state"], job["step"]) == ("RUNNING", 1)


def test_a_node_is_forgotten_only_when_it_is_lost(live: LivePool) -> None:
    live.joined("n1", slots=1)
    refused = live.api("POST", "/nodes/n1:forget")
    assert (refused.status_code, refused.json()["code"]) == (409, "Conflict")
    live.clock.turn(60.0)
    eventually(lambda: live.node("n1")["state"] == "LOST")
    assert live.api("POST", "/nodes/n1:forget").json()["state"] == "LOST"
    assert live.api("GET", "/nodes").json()["items"] == []
    live.joined("n1", slots=1)
    assert live.node("n1")["state"] == "UP"

"""Parked workers on the wire and in REST: told by agents, named in orders, shown to users."""

from dataclasses import replace

from coddl.core.pool.records import RunEnded, RunId, RunPrepared, RunStepped
from tests.server.harness import LivePool, StubAgent, eventually

ENDED = RunEnded(1, 1, "retired", 7, parked=(0,), parked_bytes=4 << 30, park_s=0.2)


def parked(live: LivePool) -> StubAgent:
    """Have job 1 be suspended, with its workers parked on n1."""
    agent = live.joined("n1", slots=1)
    live.submit(name="a", gpus=1)
    agent.expect_orders(lambda new: new.orders.leads)
    agent.report(RunPrepared(1, 1, None, 100, workers_max=8), RunStepped(1, 1, 1))
    agent.hold(0, runs=[RunId(1, 1)], parked=[])
    eventually(lambda: live.job("a")["state"] == "RUNNING")
    live.api("POST", "/jobs/a:suspend")
    orders = agent.expect_orders(lambda new: new.orders.leads and new.orders.leads[0].stop)
    assert orders.orders.leads[0].stop == "park"
    agent.report(ENDED)
    assert agent.expect_orders(lambda new: new.orders.parked).orders.parked == (1,)
    agent.hold(runs=[], parked=[1])
    eventually(lambda: live.node("n1")["used"] == 0)
    return agent


def test_users_see_where_workers_are_parked_until_the_job_runs_again(live: LivePool) -> None:
    agent = parked(live)
    job, node = live.job("a"), live.node("n1")
    assert (job["state"], job["parked"]) == ("SUSPENDED", {"node": "n1", "bytes": 4 << 30})
    assert (node["parked"], node["parked_bytes"], node["free"]) == (1, 4 << 30, 1)
    explained = live.api("GET", "/jobs/a/explain").json()
    want = "its workers are parked on node n1: 4.0 GiB in host memory"
    assert explained["parked_sentence"] == want
    live.api("POST", "/jobs/a:resume")
    orders = agent.expect_orders(lambda new: new.orders.leads).orders
    assert (orders.parked, orders.leads[0].attempt, set(orders.jobs)) == ((), 2, {1})
    assert live.job("a")["parked"] is None
    assert live.node("n1")["parked"] == 0


def test_workers_that_their_node_has_given_up_are_parked_no_more(live: LivePool) -> None:
    agent = parked(live)
    agent.hold(runs=[])  # an agent that does not tell
    agent.hold(runs=[], parked=[1])
    agent.beat()
    assert live.job("a")["parked"] is not None
    agent.hold(runs=[], parked=[])
    agent.expect_orders(lambda new: not new.orders.parked)
    assert live.job("a")["parked"] is None
    events = live.api("GET", "/jobs/a/events").json()["items"]
    assert events[-1]["kind"] == "ParkingEnded"


def test_an_agent_is_told_when_a_parked_job_is_cancelled(live: LivePool) -> None:
    agent = parked(live)
    live.api("POST", "/jobs/a:cancel")
    assert agent.expect_orders(lambda new: not new.orders.parked).orders.leads == ()
    assert live.job("a")["state"] == "CANCELLED"


def test_a_slot_that_the_pool_does_not_know_is_not_parked_on(live: LivePool) -> None:
    agent = live.joined("n1", slots=1)
    live.submit(name="a", gpus=1)
    agent.expect_orders(lambda new: new.orders.leads)
    agent.report(RunPrepared(1, 1, None, 100, workers_max=8), RunStepped(1, 1, 1))
    live.api("POST", "/jobs/a:suspend")
    agent.report(replace(ENDED, parked=(7,)))
    eventually(lambda: live.job("a")["state"] == "SUSPENDED")
    assert live.job("a")["parked"] is None

"""Turns on the wire and in REST: orders with several runs per slot, and how users see them."""

from coddl.api import wire
from coddl.core.pool.records import (
    RunEnded,
    RunId,
    RunPrepared,
    RunProgressed,
    RunStepped,
    SlotTurns,
)
from tests.server.harness import LivePool, StubAgent, eventually


def taking_turns(live: LivePool) -> StubAgent:
    """Have jobs 1 and 2 take turns on the only slot of n1."""
    agent = live.agent("n1", slots=1)
    agent.hello(parking_bytes=1 << 40)
    live.api("PUT", "/policy", {"policy": "gandiva:quantum_s=30"})
    for number, name in enumerate(["first", "second"], start=1):
        live.submit(name=name, gpus=1)
        agent.expect_orders(lambda new: len(new.orders.leads) == number)  # noqa: B023 - used now
        agent.report(RunPrepared(number, 1, None, 100, workers_max=8), RunStepped(number, 1, 1))
    eventually(lambda: live.job("second")["state"] == "RUNNING")
    return agent


def test_orders_name_all_runs_of_a_slot_and_how_long_a_turn_is(live: LivePool) -> None:
    agent = taking_turns(live)
    assert agent.orders is not None
    orders = agent.orders.orders
    assert orders.seats == {0: (RunId(1, 1), RunId(2, 1))}
    assert orders.turns == {0: 30.0}


def test_users_see_which_job_has_the_turn(live: LivePool) -> None:
    agent = taking_turns(live)
    want = {"turn_s": 30.0, "jobs": [2], "has_turn": None, "share": None}
    assert live.job("first")["turns"] == want
    runs = [RunId(1, 1), RunId(2, 1)]
    agent.hold(0, runs=runs, turns={0: SlotTurns(2, {1: 0.4, 2: 0.6})})
    eventually(lambda: live.job("second")["turns"]["has_turn"])
    first, second = live.job("first"), live.job("second")
    assert first["turns"] == want | {"has_turn": False, "share": 0.4}
    assert (second["turns"]["jobs"], second["turns"]["share"]) == ([1], 0.6)
    (slot,) = live.node("n1")["slots"]
    assert (slot["job"], slot["jobs"]) == (2, [1, 2])
    assert live.node("n1")["jobs"] == [1, 2]
    explained = live.api("GET", "/jobs/first/explain").json()
    assert explained["sentence"] == (
        'takes turns of 30 s with job 2 "second" on 1 CPU slot of node n1: '
        "there are more jobs than CPU slots; had 40% of the slot's time since it shares it; "
        "job 2 has the turn now"
    )


def test_a_job_that_waits_for_its_turn_does_not_stand_still(live: LivePool) -> None:
    agent = taking_turns(live)
    runs = [RunId(1, 1), RunId(2, 1)]
    agent.hold(0, runs=runs, turns={0: SlotTurns(1)})
    progressed = RunProgressed(1, 1, 2, 1, 1.0, 1)
    agent.say(wire.Progress((wire.RunProgress(progressed=progressed, still_s=25.0),)))
    eventually(lambda: live.job("first")["still_s"] == 25.0)
    agent.hold(0, runs=runs, turns={0: SlotTurns(2)})
    eventually(lambda: live.job("second")["turns"]["has_turn"])
    first = live.job("first")
    assert (first["still_s"], first["turns"]["has_turn"]) == (0.0, False)
    assert first["reason"] == 'takes turns of 30 s with job 2 "second"; job 2 has the turn now'


def test_a_job_that_is_alone_again_takes_no_turns(live: LivePool) -> None:
    agent = taking_turns(live)
    live.api("POST", "/jobs/first:cancel")
    agent.expect_orders(lambda new: new.orders.leads[0].stop == "cancel")
    agent.report(RunEnded(1, 1, "cancelled", 5))
    orders = agent.expect_orders(lambda new: not new.orders.turns).orders
    assert {slot: [run.job for run in runs] for slot, runs in orders.seats.items()} == {0: [2]}
    assert live.job("second")["turns"] is None

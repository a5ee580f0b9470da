"""An agent that has ended all processes gives its lease up: nobody waits for it to run out."""

from coddl.api import wire
from tests.server.harness import LivePool, eventually


def test_a_node_that_has_left_is_lost_at_once(live: LivePool) -> None:
    agents = {name: live.joined(name, slots=1) for name in ("n1", "n2", "n3")}
    live.submit(name="a", gpus=2)
    eventually(lambda: live.job("a")["gpus"] == 2)
    view = live.job("a")
    other = next(node for node in view["nodes"] if node != view["lead"])
    agents[other].say(wire.Leaving())
    eventually(lambda: live.node(other)["state"] == "SILENT")
    assert other in live.job("a")["nodes"], "its processes may still live"
    agents[other].say(wire.Left())
    agents[other].expect_end()
    eventually(lambda: live.node(other)["state"] == "LOST")
    events = live.api("GET", "/events?limit=20").json()["items"]
    assert any(f"node {other} left: its agent was stopped" in each["text"] for each in events)
    eventually(lambda: other not in live.job("a")["nodes"])


def test_what_another_process_of_the_name_says_takes_nothing_from_the_newer(live: LivePool) -> None:
    agent = live.joined("n1")
    agent.say(wire.Left())
    agent.expect_end()
    live.joined("n1")
    eventually(lambda: live.node("n1")["state"] == "UP")


def test_a_node_with_notice_is_drained_by_then_and_not_silent(live: LivePool) -> None:
    agents = {name: live.joined(name, slots=1) for name in ("n1", "n2")}
    live.submit(name="a", gpus=1)
    eventually(lambda: live.job("a")["gpus"] == 1)
    home = live.job("a")["lead"]
    assert not agents[home].expect_orders(lambda told: told.orders.seats).orders.leaves
    agents[home].say(wire.Leaving(within_s=20.0))
    told = agents[home].expect_orders(lambda told: told.orders.leaves)
    assert told.orders.seats, "its job is there until it has moved, or must"
    view = live.node(home)
    assert (view["state"], view["leaves_at_s"]) == ("DRAINED", live.clock.now_s + 20.0)
    agents[home].say(wire.Leaving(within_s=50.0))
    agents[home].say(wire.Leaving(within_s=8.0))
    eventually(lambda: live.node(home)["leaves_at_s"] == live.clock.now_s + 8.0)
    events = live.api("GET", "/events?limit=20").json()["items"]
    said = [each["text"] for each in events if "drained" in each["text"]]
    want = f"node {home} drained by its agent, to be empty within %s: its machine is taken back"
    assert sorted(text for text in said if "its agent" in text) == [want % "20 s", want % "8 s"]
    live.clock.turn(4.5)
    stopped = agents[home].expect_orders(lambda told: any(o.stop for o in told.orders.leads))
    assert stopped.orders.leads[0].reason == f"node {home} leaves"


def test_words_of_an_older_agent_that_leaves_are_understood() -> None:
    assert wire.from_agent(b'{"is": "leaving"}') == wire.Leaving()

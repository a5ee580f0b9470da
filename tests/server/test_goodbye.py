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
    assert any(f"node {other} lost: its agent was stopped" in each["text"] for each in events)
    eventually(lambda: other not in live.job("a")["nodes"])


def test_what_another_process_of_the_name_says_takes_nothing_from_the_newer(live: LivePool) -> None:
    agent = live.joined("n1")
    agent.say(wire.Left())
    agent.expect_end()
    live.joined("n1")
    eventually(lambda: live.node("n1")["state"] == "UP")

"""What every engine promises: inherit EngineContract, give it yours. And a fake engine."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from coddl.engines.engine import Engine, EngineNode, EngineStatus, EngineUnavailable


@dataclass(slots=True)
class FakeEngine:
    """An engine without machines: its nodes are up when they are first looked at again.

    A test says what happens to them: `take_away`, `kill`, `is_away`. Another engine with the same
    `nodes` finds what this one has acquired.
    """

    nodes: dict[str, EngineNode] = field(default_factory=dict)
    room: int = 4  # nodes that there can be
    is_away: bool = False  # it does not answer
    acquired: int = 0

    def look(self) -> EngineStatus:
        """Tell what there is."""
        self._check()
        found = tuple(self.nodes.values())
        for name, node in list(self.nodes.items()):
            if node.state == "releasing":
                del self.nodes[name]
            elif list(self.nodes).index(name) < self.room:
                self.nodes[name] = EngineNode(name, "up", node.leaves_at_s, node.because)
        return EngineStatus(found, max(0, self.room - len(self.nodes)))

    def acquire(self) -> str:
        """Ask for one more node."""
        self._check()
        self.acquired += 1
        while (name := f"fake-{self.acquired}") in self.nodes:
            self.acquired += 1
        because = "" if len(self.nodes) < self.room else "there is no room for it"
        self.nodes[name] = EngineNode(name, "starting", because=because)
        return name

    def release(self, node: str, within_s: float) -> None:  # noqa: ARG002 # it has nothing to save
        """Give a node back."""
        self._check()
        if node in self.nodes:
            self.nodes[node] = EngineNode(node, "releasing")

    def close(self) -> None:
        """Let go."""

    def take_away(self, node: str, at_s: float, because: str) -> None:
        """Announce that a node will be taken away."""
        self.nodes[node] = EngineNode(node, self.nodes[node].state, at_s, because)

    def kill(self, node: str) -> None:
        """Lose a node at once."""
        del self.nodes[node]

    def _check(self) -> None:
        if self.is_away:
            raise EngineUnavailable("the fake engine can't be asked", "it is away", "wait for it")


class EngineContract:
    """The promises. A subclass has a fixture `engine` that gives one with nothing acquired.

    class TestMine(EngineContract):
        @pytest.fixture
        def engine(self):
            return Mine()
    """

    within_s = 120.0  # in which a node has come, or gone
    tick_s = 0.1

    @pytest.fixture
    def engine(self) -> Engine:
        """The engine under test."""
        raise NotImplementedError("give the contract an engine: a fixture named `engine`")

    def again(self, engine: Engine) -> Engine | None:
        """Give another engine of the same pool; None: its nodes end with the first one."""
        del engine
        return None

    def wait(self, engine: Engine, condition: Callable[[EngineStatus], bool]) -> EngineStatus:
        """Look until a condition holds."""
        until_s = time.monotonic() + self.within_s
        while not condition(found := engine.look()):
            assert time.monotonic() < until_s, f"still {found}"
            time.sleep(self.tick_s)
        return found

    def test_a_new_pool_has_no_nodes(self, engine: Engine) -> None:
        assert engine.look().nodes == ()

    def test_a_node_is_named_at_once_and_comes_up(self, engine: Engine) -> None:
        name = engine.acquire()
        (node,) = engine.look().nodes
        assert node.name == name
        assert node.state in ("starting", "up")
        found = self.wait(engine, lambda status: status.nodes[0].state == "up")
        assert found.nodes[0].leaves_at_s is None
        engine.release(name, 30.0)

    def test_a_node_that_is_released_is_gone_for_good(self, engine: Engine) -> None:
        first, second = engine.acquire(), engine.acquire()
        assert first != second
        engine.release(first, 30.0)
        assert first not in {n.name for n in engine.look().nodes if n.state != "releasing"}
        self.wait(engine, lambda status: [node.name for node in status.nodes] == [second])
        engine.release(first, 30.0)  # is no mistake
        engine.release("never-heard-of", 30.0)
        third = engine.acquire()
        assert third not in (first, second)
        for name in (second, third):
            engine.release(name, 30.0)
        self.wait(engine, lambda status: not status.nodes)

    def test_nodes_are_found_again_after_a_restart(self, engine: Engine) -> None:
        name = engine.acquire()
        another = self.again(engine)
        if another is None:
            engine.close()
            pytest.skip("its nodes end with the process that has started them")
        self.wait(another, lambda status: [n.name for n in status.nodes] == [name])
        another.release(name, 30.0)
        self.wait(another, lambda status: not status.nodes)
        another.close()

"""Engines keep their contract: the fake one, and this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coddl.core.errors import UserError
from coddl.engines.engine import AgentLaunch, Engine, EngineUnavailable
from coddl.engines.local import LocalEngine
from coddl.testing.engines import EngineContract, FakeEngine


class TestFake(EngineContract):
    @pytest.fixture
    def engine(self) -> Engine:
        return FakeEngine()

    def again(self, engine: Engine) -> Engine:
        assert isinstance(engine, FakeEngine)
        return FakeEngine(engine.nodes)

    def test_it_can_be_away_and_its_nodes_can_be_taken(self) -> None:
        engine = FakeEngine(room=1)
        first, second = engine.acquire(), engine.acquire()
        engine.look()
        up, waiting = engine.look().nodes
        assert (up.name, up.state, waiting.name, waiting.state) == (first, "up", second, "starting")
        assert waiting.because == "there is no room for it"
        engine.take_away(first, 99.0, "time limit")
        assert engine.look().nodes[0].leaves_at_s == 99.0
        engine.kill(first)
        assert [node.name for node in engine.look().nodes] == [second]
        engine.is_away = True
        with pytest.raises(EngineUnavailable):
            engine.look()


LAUNCH = AgentLaunch(pool="p", server="http://127.0.0.1:9", token="t", slots=2)
SLEEP = ("python3", "-c", "import time; time.sleep(600)")


class TestLocal(EngineContract):
    """Its agents are stand-ins that sleep; real ones are in the test of a whole pool."""

    @pytest.fixture
    def engine(self, tmp_path: Path) -> Iterator[Engine]:
        engine = LocalEngine(LAUNCH, tmp_path, program=SLEEP)
        yield engine
        engine.close()

    def test_an_agent_that_fails_is_started_again_and_says_so(self, tmp_path: Path) -> None:
        engine = LocalEngine(LAUNCH, tmp_path, program=("false",))
        name = engine.acquire()
        found = self.wait(engine, lambda status: status.nodes[0].state == "starting")
        assert f"agent-{name}.log" in found.nodes[0].because
        engine.close()

    def test_an_agent_that_does_not_leave_in_time_is_killed(self, tmp_path: Path) -> None:
        deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
        now = [0.0]
        engine = LocalEngine(LAUNCH, tmp_path, program=("python3", "-c", deaf))
        engine.now_s = lambda: now[0]
        name = engine.acquire()
        engine.release(name, 10.0)
        now[0] = 16.0
        self.wait(engine, lambda status: not status.nodes)

    def test_it_gives_its_gpus_to_one_agent_only(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="the same GPUs"):
            LocalEngine(AgentLaunch(pool="p", server="", token=""), tmp_path)

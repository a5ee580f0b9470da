"""How agents of engines are started, and that they understand it."""

import contextlib
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import pytest

from coddl.engines.agent_guard import ABANDONED_S
from coddl.engines.agent_order import order_of
from coddl.engines.engine import AgentLaunch
from tests.agent.pool import TOKEN, served

GUARD = (sys.executable, "-P", "-m", "coddl.engines.agent_guard")


def test_an_agent_has_the_time_to_save_jobs_that_its_engine_gives_it() -> None:
    launch = AgentLaunch(pool="p", server="http://head:1", token="t", slots=2)
    order = order_of(launch, "n1", ("1", "3"), abandoned_s=20.0)
    assert order.abandoned_s == 20.0
    assert order_of(launch, "n1", ()).abandoned_s == ABANDONED_S
    assert " --slots 2 --slot-ids 1,3" in " ".join(order.words)
    assert "--ends-with-lease" in order.words


def test_an_agent_under_its_guard_leaves_on_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with served() as server:
        launch = AgentLaunch(pool="p", server=server.url, token=TOKEN, slots=1)
        order = order_of(launch, "n1", ())
        guard = subprocess.Popen(GUARD, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with contextlib.suppress(BrokenPipeError), guard:
            assert guard.stdin is not None
            assert guard.stdout is not None
            guard.stdin.write(f"{json.dumps(asdict(order))}\n")
            guard.stdin.flush()
            assert json.loads(guard.stdout.readline())["pid"]
            server.hello("n1")
            guard.stdin.write("leave 500\n")
            guard.stdin.flush()
            assert json.loads(guard.stdout.readline()) == {"code": 0, "said": ""}
        assert not Path(order.state_dir).exists()

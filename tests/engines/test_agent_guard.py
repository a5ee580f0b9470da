"""A guard and its agent: who ends whom, and what is left."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pytest

from coddl.agent.lease_clock import now_s
from coddl.agent.leave_notice import read_notice
from coddl.agent.orphans import MARK, mark_of
from coddl.engines.agent_guard import GuardOrder

PATIENCE_S: Final = 60.0
# Notes each signal that it gets, and ends at the first unless it is stubborn.
AGENT: Final = """
import os, signal, sys, time

def on_signal(number, _frame):
    with open(sys.argv[1], "a") as file:
        file.write(f"{number}\\n")
    if "stubborn" not in sys.argv:
        time.sleep(0.5)  # in which a second one would be seen
        sys.exit(3)

signal.signal(signal.SIGTERM, on_signal)
signal.signal(signal.SIGUSR1, on_signal)
if "fails" in sys.argv:
    sys.exit("error: it failed\\n  because it must\\n  try     nothing")
open(sys.argv[1], "a").close()
while True:
    time.sleep(60)
"""


class Guarded:
    """A guard that was started, as an engine's process does."""

    def __init__(self, folder: Path, *words: str, abandoned_s: float = 60.0) -> None:
        self.signals = folder / "signals"
        self.state_dir = folder / "state"
        agent_dir = self.state_dir / "agents" / "n1"
        command = (sys.executable, "-c", AGENT, str(self.signals), *words)
        self.order = GuardOrder(
            *(command, "secret", str(self.state_dir), str(agent_dir), "a CA"),
            abandoned_s=abandoned_s,
        )
        guard = (sys.executable, "-P", "-m", "coddl.engines.agent_guard")
        self.process = subprocess.Popen(
            guard,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.tell(json.dumps(asdict(self.order)))

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def heard(self) -> dict[str, Any]:  # Any: JSON
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def leaves_in_s(self) -> float:
        at_s = read_notice(Path(self.order.agent_dir))
        assert at_s is not None
        return at_s - now_s()

    def await_signals(self, *numbers: signal.Signals) -> None:
        """Wait until the agent has had just these."""
        wanted = "".join(f"{number.value}\n" for number in numbers)
        until_s = time.monotonic() + PATIENCE_S
        while (found := self.signals.read_text()) != wanted:
            assert time.monotonic() < until_s, found
            time.sleep(0.02)

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError), self.process:
            pass


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Callable[..., Guarded]]:
    with contextlib.ExitStack() as stack:

        def start(*words: str, **fields: float) -> Guarded:
            found = Guarded(tmp_path, *words, **fields)
            stack.callback(found.close)
            return found

        yield start


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}/exe").exists()


def await_file(path: Path) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < until_s
        time.sleep(0.02)


def test_an_agent_is_told_once_and_nothing_is_left(guarded: Callable[..., Guarded]) -> None:
    guard = guarded()
    agent = guard.heard()["pid"]
    await_file(guard.signals)
    token = guard.order.token_file
    assert token.read_text() == "secret"
    assert token.stat().st_mode & 0o777 == 0o600
    assert (guard.state_dir / "tls-ca.pem").read_text() == "a CA"
    assert "secret" not in Path(f"/proc/{agent}/cmdline").read_text()
    guard.tell("60")
    guard.tell("50")  # a repeat
    assert guard.heard() == {"code": 3, "said": "the agent failed to start: it printed nothing"}
    assert guard.signals.read_text() == f"{signal.SIGTERM.value}\n"
    assert not lives(agent)
    assert not guard.state_dir.exists()


def test_an_agent_that_does_not_end_is_killed(guarded: Callable[..., Guarded]) -> None:
    guard = guarded("stubborn")
    agent = guard.heard()["pid"]
    await_file(guard.signals)
    guard.tell("600")
    guard.tell("0.1")  # a shorter time holds
    assert guard.heard()["code"] == -signal.SIGKILL
    assert not lives(agent)


def test_an_agent_whose_starter_died_is_told_to_end(guarded: Callable[..., Guarded]) -> None:
    guard = guarded()
    agent = guard.heard()["pid"]
    await_file(guard.signals)
    assert guard.process.wait(PATIENCE_S) == 0, "the guard is nobody's child"
    assert guard.process.stdin is not None
    guard.process.stdin.close()
    assert guard.heard()["code"] == 3
    assert not lives(agent)


def test_an_agent_whose_starter_died_is_killed_when_its_time_is_over(
    guarded: Callable[..., Guarded],
) -> None:
    guard = guarded("stubborn", abandoned_s=0.1)
    guard.heard()
    await_file(guard.signals)
    assert guard.process.stdin is not None
    guard.process.stdin.close()
    assert guard.heard()["code"] == -signal.SIGKILL


def test_an_agent_is_given_notice_and_killed_at_the_deadline(
    guarded: Callable[..., Guarded],
) -> None:
    guard = guarded("stubborn")
    agent = guard.heard()["pid"]
    await_file(guard.signals)
    guard.tell("leave 500")
    guard.await_signals(signal.SIGUSR1)
    assert 500.0 - PATIENCE_S < guard.leaves_in_s() <= 500.0
    guard.tell("leave 600")  # farther: no news
    guard.tell("leave 300")
    guard.await_signals(signal.SIGUSR1, signal.SIGUSR1)
    assert 300.0 - PATIENCE_S < guard.leaves_in_s() <= 300.0
    assert lives(agent)
    guard.tell("200")  # and it can still be told to end
    guard.await_signals(signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM)
    guard.tell("leave 0.1")
    assert guard.heard()["code"] == -signal.SIGKILL
    assert not lives(agent)
    assert not guard.state_dir.exists()


def test_an_agent_that_leaves_on_notice_has_ended_well(guarded: Callable[..., Guarded]) -> None:
    guard = guarded()
    guard.heard()
    await_file(guard.signals)
    guard.tell("leave 500")
    assert guard.heard()["code"] == 3, "as it chose"
    assert guard.signals.read_text() == f"{signal.SIGUSR1.value}\n"


def test_what_an_agent_has_started_is_ended_with_it(guarded: Callable[..., Guarded]) -> None:
    guard = guarded("stubborn")
    guard.heard()
    await_file(guard.signals)
    mark = {MARK: mark_of(Path(guard.order.agent_dir))}
    job = subprocess.Popen(["sleep", "600"], env={**os.environ, **mark})
    guard.tell("0")
    assert job.wait(PATIENCE_S) == -signal.SIGKILL
    assert guard.heard()["code"] == -signal.SIGKILL


def test_an_agent_that_fails_is_quoted(guarded: Callable[..., Guarded]) -> None:
    guard = guarded("fails")
    guard.heard()
    assert guard.heard() == {"code": 1, "said": "it failed: it must"}

"""An agent under a guard, as its starter sees it: a process of an engine."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from coddl.agent.orphans import Process, process
from coddl.engines.agent_guard import AgentEnded, AgentStarted, GuardOrder, end_unguarded

GUARD: Final = (sys.executable, "-P", "-m", "coddl.engines.agent_guard")


class GuardedAgent:
    """Starts a guard, which starts an agent; watches both until they have ended."""

    def __init__(self, order: GuardOrder, env: Mapping[str, str]) -> None:
        self._order = order
        self._guard = subprocess.Popen(
            GUARD,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            start_new_session=True,
            text=True,
        )
        self._tell(json.dumps(asdict(order)))

    def end(self, within_s: float) -> None:
        """Make the agent save its jobs and end, within that time."""
        self._tell(f"{within_s}")

    def leave(self, within_s: float) -> None:
        """Give the agent notice that its machine goes away."""
        self._tell(f"leave {within_s}")

    def wait(self, on_start: Callable[[AgentStarted], None] = lambda _started: None) -> AgentEnded:
        """Wait until nothing is left of the agent, nor of what it has started."""
        assert self._guard.stdout is not None
        ended: AgentEnded | None = None
        agent: Process | None = None
        for line in self._guard.stdout:
            about: dict[str, Any] = json.loads(line)  # Any: JSON
            if "pid" in about:
                started = AgentStarted(**about)
                agent = process(started.pid)
                on_start(started)
            else:
                ended = AgentEnded(**about)
        if ended is None and agent is not None:
            end_unguarded(self._order, agent)
        return ended or AgentEnded(-1, "the process that guards it was killed")

    def _tell(self, line: str) -> None:
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and its waiter knows
            # At once, and whole, even if it is a signal's handler that interrupts another one.
            os.write(self._guard.stdin.fileno(), f"{line}\n".encode())

"""The engine of a single machine: a node is an agent that it starts here.

The agents end with the process that has started them, however that ends: nothing else looks after
them.
"""

import secrets
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from coddl.core.errors import UserError
from coddl.engines.engine import CA_FILE, AgentLaunch, EngineNode, EngineStatus
from coddl.engines.processes import PROGRAM, Child, rotate

KILL_AFTER_S: Final = 5.0  # after which an agent that had to leave in time is killed


@dataclass(slots=True)
class _LocalNode:
    """An agent of ours."""

    child: Child
    gone_by_s: float | None = None  # since it was released


@dataclass(slots=True)
class LocalEngine:
    """Starts agents on this machine, each with some CPU slots."""

    launch: AgentLaunch
    folder: Path  # the pool's state folder
    prefix: str = "node"
    program: tuple[str, ...] = PROGRAM
    now_s: Callable[[], float] = time.monotonic
    _nodes: dict[str, _LocalNode] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.launch.slots is None:
            raise UserError(
                "nodes can't be brought to this machine",
                "each of its agents would use the same GPUs",
                "--slots 2, which gives each node two CPU slots",
            )
        (self.folder / "output").mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.launch.ca:
            (self.folder / CA_FILE).write_text(self.launch.ca)

    def look(self) -> EngineStatus:
        """Return which agents there are; one that has failed is started again."""
        now_s = self.now_s()
        for name, node in list(self._nodes.items()):
            has_ended = node.child.ended(now_s) is not None
            if node.gone_by_s is None:
                if node.child.process is None and now_s >= node.child.due_s:
                    node.child.start(now_s)
                rotate(node.child.log)
            elif has_ended or node.child.process is None:
                del self._nodes[name]
            elif now_s > node.gone_by_s + KILL_AFTER_S:
                node.child.signal(signal.SIGKILL)
        return EngineStatus(tuple(self._told(name) for name in self._nodes))

    def _told(self, name: str) -> EngineNode:
        node = self._nodes[name]
        if node.gone_by_s is not None:
            return EngineNode(name, "releasing")
        if node.child.process is None:
            return EngineNode(name, "starting", because=f"its agent ended; see {node.child.log}")
        return EngineNode(name, "up")

    def acquire(self) -> str:
        """Start one more agent."""
        name = f"{self.prefix}-{secrets.token_hex(3)}"
        words = ["agent", "--name", name, "--server", self.launch.server]
        words += ["--state-dir", str(self.folder), "--slots", str(self.launch.slots)]
        words += ["--jobs-dir", self.launch.jobs_dir] if self.launch.jobs_dir else []
        words += ["--tls-ca", str(self.folder / CA_FILE)] if self.launch.ca else []
        log = self.folder / "output" / f"agent-{name}.log"
        self._nodes[name] = _LocalNode(Child(f"agent {name}", [*self.program, *words], log))
        self._nodes[name].child.start(self.now_s())
        return name

    def release(self, node: str, within_s: float) -> None:
        """Make an agent save its jobs and end."""
        found = self._nodes.get(node)
        if found is not None and found.gone_by_s is None:
            found.gone_by_s = self.now_s() + within_s
            found.child.signal(signal.SIGTERM)

    def close(self) -> None:
        """End all agents: they would not outlive this process for long."""
        for node in self._nodes.values():
            node.child.signal(signal.SIGTERM)
        for node in self._nodes.values():
            node.child.end()
        self._nodes.clear()

"""Between a pool and what brings its machines: a process of its own, so that neither can take the
other down.

Every second it tells the server what the engine has, and has the engine do what it is answered. It
remembers nothing: after a restart it looks again. While the server is away nothing is acquired or
released; while the engine does not answer, the server is told why.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from coddl.api.client import Answer, Client
from coddl.core.errors import UserError
from coddl.core.node_count import NodeBounds
from coddl.engines.engine import Engine, EngineNode, EngineUnavailable

LOOK_EVERY_S: Final = 1.0
NAMED_MAX: Final = 500  # characters of why something is so


@dataclass(slots=True)
class Connector:
    """Keeps an engine at what the pool wants."""

    name: str  # of the engine
    engine: Engine
    client: Client
    bounds: NodeBounds
    tell: Callable[[str], None] = print
    wall_s: Callable[[], float] = time.time
    _trouble: str = ""

    def run(self, is_over: Callable[[float], bool]) -> None:
        """Go on until `is_over`, which waits for so long."""
        while True:
            try:
                self.step()
            except UserError as error:
                self._say(f"{error.what}: {error.because}")
            if is_over(LOOK_EVERY_S):
                return

    def step(self) -> None:
        """Report once, and do what is answered. Raises UserError if the server can't be reached."""
        try:
            found = self.engine.look()
        except EngineUnavailable as error:
            trouble = f"{error.what}: {error.because}"
            self.client.post("/engine", self._report((), trouble))
            self._say(trouble)
            return
        orders = self.client.post("/engine", self._report(found.nodes, ""))
        self._trouble = ""
        for _ in range(orders["acquire"]):
            self.tell(f"node {self.engine.acquire()} asked for")
        for each in orders["release"]:
            self.engine.release(each["node"], each["within_s"])
            self.tell(f"node {each['node']} given back")

    def _report(self, nodes: tuple[EngineNode, ...], trouble: str) -> Answer:
        return {
            "engine": self.name,
            "nodes_min": self.bounds.least,
            "nodes_max": self.bounds.most,
            "slots": self.bounds.gpus,
            "start_s": self.bounds.start_s,
            "idle_s": self.bounds.idle_s,
            "nodes": [self._told(node) for node in nodes],
            "trouble": trouble[:NAMED_MAX],
        }

    def _told(self, node: EngineNode) -> Answer:
        leaves_in_s = None if node.leaves_at_s is None else node.leaves_at_s - self.wall_s()
        return {
            "name": node.name,
            "state": node.state,
            "leaves_in_s": leaves_in_s,
            "because": node.because[:NAMED_MAX],
        }

    def _say(self, trouble: str) -> None:
        """Tell what is wrong, once."""
        if trouble != self._trouble:
            self.tell(trouble)
        self._trouble = trouble

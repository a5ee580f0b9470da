"""Where the agent of a node leaves what the server must know."""

from typing import Protocol

from coddl.agent.run_reporter import Fact
from coddl.api.wire import Holding, RunProgress


class ReportSink(Protocol):
    """Takes what the server must know. Called in the agent's event loop."""

    def report(self, fact: Fact) -> None:
        """Tell a fact, until it is acknowledged."""
        ...

    def hold(self, holding: Holding) -> None:
        """Tell which slots have processes, by which version of the orders, and our runs."""
        ...

    def progress(self, progress: RunProgress) -> None:
        """Tell how a run is doing, some time soon."""
        ...

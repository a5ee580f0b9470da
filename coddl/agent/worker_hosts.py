"""What the agent of a node asks of that which hosts the workers there."""

from typing import Protocol


class WorkerHosts(Protocol):
    """Hosts the workers of jobs on a node; tells of them through the agent's bridge."""

    @property
    def is_alive(self) -> bool:
        """Tell whether it can be asked anything."""
        ...

    def look_again(self) -> None:
        """See who may be here by now, and tell who is."""
        ...

    def kill(self, job: str) -> None:
        """End the workers of a job."""
        ...

    def kill_slot(self, slot: int) -> None:
        """End the worker on a slot."""
        ...

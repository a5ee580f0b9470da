"""Decisions that take long are made in a thread of their own, beside the control loop.

The loop takes submits meanwhile; everything else waits for the decision, which could be about it.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from coddl.core.pool.control import ControlPlane
from coddl.core.pool.pending_decision import Decision, PendingDecision
from coddl.server.collector import undisturbed

# A thread that asks for the interpreter gets it after this time. A submit asks for it several
# times: after each read or write of a socket or a file.
INTERPRETER_SWITCH_S: Final = 0.001


class MadeDecision(NamedTuple):
    """A decision that was made beside the control loop."""

    control: ControlPlane  # that it was made for
    began_s: float
    result: Callable[[], Decision]  # raises what making it has raised


class DecisionThread:
    """Makes one decision at a time."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "decision")
        self._control: ControlPlane | None = None
        self._began_s = 0.0
        self._future: asyncio.Future[Decision] | None = None

    @property
    def is_busy(self) -> bool:
        """Return whether a decision is being made, or was and is not yet taken."""
        return self._future is not None

    def begin(
        self,
        control: ControlPlane,
        pending: PendingDecision,
        began_s: float,
        on_made: Callable[[], None],
    ) -> None:
        """Make a decision; `on_made` is called in the event loop."""
        assert self._future is None
        self._control, self._began_s = control, began_s
        loop = asyncio.get_running_loop()
        self._future = loop.run_in_executor(self._executor, made, pending)
        self._future.add_done_callback(lambda _future: on_made())

    def take(self) -> MadeDecision | None:
        """Return the decision that was made, once."""
        future, control = self._future, self._control
        if future is None or control is None or not future.done():
            return None
        self._future = self._control = None
        return MadeDecision(control, self._began_s, future.result)

    def close(self) -> None:
        """Make no other decision."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def made(pending: PendingDecision) -> Decision:
    """Make a decision."""
    with undisturbed():
        return pending.decide()

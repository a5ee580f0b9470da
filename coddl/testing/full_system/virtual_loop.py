"""The loop of a supervisor, or of job hosts, in a simulated process: it has no thread."""

import asyncio
from collections.abc import Callable, Hashable

from coddl.testing.full_system.virtual_time import SimulatedProcess


class VirtualLoop:
    """A `SupervisorLoop` that the event loop of a process calls; it waits for nothing itself."""

    def __init__(
        self,
        process: SimulatedProcess,
        *,
        on_error: Callable[[Exception], None] | None = None,
        after_each: Callable[[], None] = lambda: None,
    ) -> None:
        """Exceptions go to `on_error`, or to the process; `after_each` is called after calls."""
        self.process = process
        self.is_open = True
        self._on_error = on_error
        self._after_each = after_each
        self._alarms: dict[Hashable, asyncio.TimerHandle] = {}

    def now_s(self) -> float:
        """Give the time of the process's steady clock."""
        return self.process.steady_s()

    def alarm(self, name: Hashable, at_s: float, action: Callable[[], None]) -> None:
        """Call `action` at that time (of `now_s`); replaces an alarm of the same name."""
        self.silence(name)
        self._alarms[name] = self.process.loop.call_at(at_s, self._ring, name, action)

    def _ring(self, name: Hashable, action: Callable[[], None]) -> None:
        del self._alarms[name]
        self.do(action)

    def silence(self, name: Hashable) -> None:
        """Drop an alarm, if there is one."""
        if (alarm := self._alarms.pop(name, None)) is not None:
            alarm.cancel()

    def post(self, action: Callable[[], None]) -> None:
        """Have the process call `action`."""
        self.process.loop.call_soon(self.do, action)

    def do(self, action: Callable[[], None]) -> None:
        """Call `action` now, in the process."""
        if not self.is_open:
            return
        try:
            action()
        except Exception as error:
            if self._on_error is None:
                raise
            self._on_error(error)
        self._after_each()

    def turn(self) -> None:
        """Never be called: whatever waits would stop all processes."""
        raise AssertionError("a supervisor waits for something in its own thread")

    def close(self) -> None:
        """Call nothing any more."""
        self.is_open = False
        for name in list(self._alarms):
            self.silence(name)

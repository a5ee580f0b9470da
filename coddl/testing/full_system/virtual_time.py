"""Virtual time: the event loops of several simulated processes, in one thread, by one clock.

Each process has an event loop of its own. What is ready runs in the order in which it became ready,
whichever process it is of; when nothing is ready the clock jumps to what is due next. So a run is a
function of what was put into it.

A process can be stopped (nothing of it runs until it is continued) and killed (nothing of it ever
runs again, and nothing is tidied up). Its clocks may be wrong: each has an offset, and a rate.
"""

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final

EPOCH_S: Final = 1_700_000_000.0  # what an exact wall clock shows at the beginning
FIRST_S: Final = 1_000.0  # the same of the steady clocks
EACH_MAX: Final = 200_000  # callbacks at one instant: more is a loop that never waits

Action = asyncio.Handle | Callable[[], object]  # of a process, or of the world


class Endless(AssertionError):
    """Callbacks go on without any time passing."""


class VirtualTime:
    """The clock of a simulation, and all that is due."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.steps = 0  # callbacks that were run
        self._ready: deque[tuple[SimulatedProcess | None, asyncio.Handle]] = deque()
        self._due: list[tuple[float, int, SimulatedProcess | None, Action]] = []
        self._numbers = count()

    def call_at(self, at_s: float, action: Callable[..., object], *args: object) -> None:
        """Have something happen in the world outside all processes."""
        self._add(at_s, None, partial(action, *args))

    def call_later(self, delay_s: float, action: Callable[..., object], *args: object) -> None:
        """Have something happen in the world, some time from now."""
        self.call_at(self.now_s + delay_s, action, *args)

    def add_ready(self, process: "SimulatedProcess", handle: asyncio.Handle) -> None:
        """Have a callback of a process run next, after those that are ready already."""
        self._ready.append((process, handle))

    def add_timer(self, at_s: float, process: "SimulatedProcess", handle: asyncio.Handle) -> None:
        """Have a callback of a process run at a time."""
        self._add(at_s, process, handle)

    def _add(self, at_s: float, process: "SimulatedProcess | None", action: "Action") -> None:
        heapq.heappush(self._due, (max(at_s, self.now_s), next(self._numbers), process, action))

    def run(self, until_s: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Let time pass until then, or until it is over."""
        while not is_over():
            self.run_ready()
            if not self._due or self._due[0][0] > until_s:
                self.now_s = max(self.now_s, until_s)
                return
            self.now_s = self._due[0][0]
            while self._due and self._due[0][0] <= self.now_s:
                _, _, process, action = heapq.heappop(self._due)
                if isinstance(action, asyncio.Handle):
                    if process is not None and not action.cancelled():
                        self._ready.append((process, action))
                else:
                    self.steps += 1
                    action()

    def run_ready(self) -> None:
        """Run what is ready, at this instant."""
        try:
            for _ in range(EACH_MAX):
                if not self._ready:
                    return
                process, handle = self._ready.popleft()
                if process is not None and not handle.cancelled():
                    self.steps += 1
                    process.run(handle)
        finally:
            events._set_running_loop(None)
        raise Endless(f"{EACH_MAX} callbacks ran at t={self.now_s:.3f}s, and there are more")


@dataclass(frozen=True, slots=True)
class Skew:
    """How wrong the clocks of a machine are."""

    wall_s: float = 0.0
    steady_s: float = 0.0
    rate: float = 1.0  # of seconds that they count in a second


class SimulatedProcess:
    """A process: an event loop, clocks, and whether it runs. Also the clock of agent and server."""

    scale: Final = 1.0

    def __init__(
        self,
        name: str,
        time: VirtualTime,
        skew: Skew,
        on_error: Callable[["SimulatedProcess", BaseException], None],
    ) -> None:
        """`on_error` hears of exceptions that are not awaited."""
        self.name = name
        self.time = time
        self.skew = skew
        self.loop = _ProcessLoop(self)
        self.is_alive = True
        self.is_stopped = False
        self.thread_s = 0.0  # that work in a thread of its own takes
        self.tasks: dict[asyncio.Task[Any], None] = {}  # that have not ended
        self._is_buried = False
        self._held: list[asyncio.Handle] = []  # while it does not run
        self._busy_until_s = 0.0
        self._dies_after: int | None = None  # callbacks
        self._on_error = on_error
        self._on_death: Callable[[], None] = lambda: None

    # Its clocks. In a callback that has waited in a system call, they show when that returned.

    def wall_s(self) -> float:
        """Seconds since 1970, as it believes."""
        return EPOCH_S + self._now_s * self.skew.rate + self.skew.wall_s

    def steady_s(self) -> float:
        """Seconds since some moment."""
        now_s, skew = self.time.now_s, self.skew
        if self._busy_until_s > now_s:
            now_s = self._busy_until_s
        return FIRST_S + now_s * skew.rate + skew.steady_s

    def patience_s(self, delay_s: float) -> float | None:
        """How long to wait if nothing else happens."""
        return max(0.0, delay_s)

    def world_s(self, steady_s: float) -> float:
        """Tell when its steady clock shows a time."""
        return (steady_s - FIRST_S - self.skew.steady_s) / self.skew.rate

    @property
    def _now_s(self) -> float:
        return max(self.time.now_s, self._busy_until_s)

    @property
    def runs(self) -> bool:
        """Tell whether callbacks of it run now."""
        return self.is_alive and not self.is_stopped and self.time.now_s >= self._busy_until_s

    # What becomes of it.

    def spawn(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        """Have it do something, of which a failure is told."""
        task = self.loop.create_task(work)
        task.add_done_callback(self._on_end)
        return task

    def within(self, action: Callable[[], object]) -> None:
        """Do something as a part of it, now."""
        before = events._get_running_loop()
        events._set_running_loop(self.loop)
        try:
            action()
        finally:
            events._set_running_loop(before)

    def run(self, handle: asyncio.Handle) -> None:
        """Run a callback, unless it is stopped or dead."""
        if not self.runs and not self._is_buried:
            self._held.append(handle)
            return
        if self._dies_after is not None:
            self._dies_after -= 1
            if self._dies_after < 0:
                self._held.append(handle)
                self.kill()
                return
        events._set_running_loop(self.loop)  # until the next callback, or the end of the instant
        handle._run()

    def stop(self) -> None:
        """Be stopped, as by SIGSTOP."""
        self.is_stopped = True

    def proceed(self) -> None:
        """Go on, as by SIGCONT; all that has become due meanwhile is due now."""
        self.is_stopped = False
        self._release()

    def block(self, for_s: float) -> None:
        """Wait in a system call: nothing of it runs after this callback until that returns."""
        self._busy_until_s = max(self._busy_until_s, self.time.now_s) + for_s
        self.time.call_at(self._busy_until_s, self._release)

    def _release(self) -> None:
        if self.runs:
            held, self._held = self._held, []
            for handle in held:
                self.time.add_ready(self, handle)

    def die_after(self, callbacks: int) -> None:
        """Be killed when some more of its callbacks have run."""
        self._dies_after = callbacks

    def die_now(self) -> None:
        """Be killed if that was to happen, and has not yet."""
        if self._dies_after is not None:
            self.kill()

    def on_death(self, action: Callable[[], None]) -> None:
        """Have the world hear of its death, at once."""
        self._on_death = action

    def kill(self) -> None:
        """Be killed, as by SIGKILL."""
        if self.is_alive:
            self.is_alive = False
            self._on_death()

    def report(self, error: BaseException) -> None:
        """Tell of an exception that is not awaited."""
        if self.is_alive:
            self._on_error(self, error)

    def bury(self) -> None:
        """Let go of its coroutines: when all is over, and nothing comes of it."""
        self.is_alive, self._is_buried, self._dies_after = False, True, None
        for handle in self._held:
            self.time.add_ready(self, handle)
        for task in list(self.tasks):
            task.cancel()

    def close(self) -> None:
        """Let go of its event loop."""
        self.loop.close()

    def _on_end(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.report(error)


class _ProcessLoop(asyncio.BaseEventLoop):
    """The event loop of a process, as far as agent and server use it."""

    def __init__(self, process: SimulatedProcess) -> None:
        super().__init__()
        self._process = process
        self._time = process.time
        self.set_task_factory(self._new_task)

    def time(self) -> float:
        return self._process.steady_s()

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._time.add_ready(self._process, handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: object,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._time.add_timer(self._process.world_s(when), self._process, handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: object,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: it is passed over when it is due."""

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def _new_task(
        self, loop: asyncio.AbstractEventLoop, work: Any, context: Context | None = None
    ) -> "asyncio.Future[Any]":
        """Make a task, and know of it until it ends. `work`: a coroutine, whatever it gives."""
        task = asyncio.Task(work, loop=loop, context=context)
        self._process.tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._process.tasks.pop(task, None)

    def run_in_executor(
        self,
        executor: object,
        func: Callable[..., Any],
        *args: object,
    ) -> "asyncio.Future[Any]":
        """Do it here and now; what has a thread of its own is done after `thread_s`."""
        future = self.create_future()

        def do() -> None:
            try:
                future.set_result(func(*args))
            except Exception as error:
                future.set_exception(error)

        if executor is None:
            do()
        else:
            self.call_later(self._process.thread_s, do)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception") or RuntimeError(str(context["message"]))
        self._process.report(error)

"""The line to the server: dials, says hello, beats, sends what must not be lost until it is safe.

A line that breaks is dialled again, with growing pauses, for as long as it takes: workers train on
meanwhile, under the lease. Who the server refuses while no lease is held gives up.
"""

import asyncio
import contextlib
import itertools
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Final, Protocol, assert_never

import msgspec
import structlog

from coddl.agent.lease_clock import SYSTEM_CLOCK, NodeClock
from coddl.agent.logs import LogSpool
from coddl.agent.node_lease import NodeLease
from coddl.agent.run_reporter import Fact
from coddl.agent.server_line import Dialer, ServerLine, ServerRefusal
from coddl.api import wire
from coddl.api.wire import Hello, Holding, Logs, Peer, Progress, Report, RunProgress
from coddl.core.pool.orders import Orders
from coddl.core.pool.records import (
    LossMeasured,
    RunChanged,
    RunEnded,
    RunPrepared,
    RunProfiled,
    RunStalled,
    RunStepped,
    RunUnsaved,
    SliceDidNotFit,
)

PAUSE_S: Final = 0.2  # before the second try
PAUSE_S_MAX: Final = 5.0
OPEN_WITHIN_S: Final = 10.0
FLUSH_EVERY_S: Final = 0.25  # what jobs print
PROGRESS_EVERY: Final = 4  # flushes
UNSENT_MAX: Final = 8  # messages; with more of them under way, what can wait waits

log = structlog.get_logger()


class OrderHandler(Protocol):
    """Carries out orders."""

    def take(self, orders: Orders, peers: Iterable[Peer]) -> None: ...


def report_of(number: int, fact: Fact, at_s: float) -> Report:
    """Put a fact into words."""
    match fact:
        case RunPrepared():
            return Report(number=number, at_s=at_s, prepared=fact)
        case SliceDidNotFit():
            return Report(number=number, at_s=at_s, did_not_fit=fact)
        case RunProfiled():
            return Report(number=number, at_s=at_s, profiled=fact)
        case LossMeasured():
            return Report(number=number, at_s=at_s, loss=fact)
        case RunStepped():
            return Report(number=number, at_s=at_s, stepped=fact)
        case RunChanged():
            return Report(number=number, at_s=at_s, changed=fact)
        case RunStalled():
            return Report(number=number, at_s=at_s, stalled=fact)
        case RunUnsaved():
            return Report(number=number, at_s=at_s, unsaved=fact)
        case RunEnded():
            return Report(number=number, at_s=at_s, ended=fact)
        case _:
            assert_never(fact)


class ReportOutbox:
    """What the server is to hear; holds facts until they are acknowledged. For one thread."""

    def __init__(
        self,
        log_spool: LogSpool,
        on_safe: Callable[[Fact], None] = lambda _: None,
        clock: NodeClock = SYSTEM_CLOCK,
    ) -> None:
        """`on_safe` hears of each fact that was acknowledged."""
        self._log_spool = log_spool
        self._on_safe = on_safe
        self._clock = clock
        self._unsafe: deque[Report] = deque()
        self._number = 0
        self._progress: dict[int, RunProgress] = {}
        self._send: Callable[[wire.FromAgent], None] | None = None  # while the line stands
        self._told: Holding | None = None  # on this line
        self._is_ordered = False  # on this line
        self._is_leaving = False
        self._leaves_at_s: float | None = None  # that is, its machine
        self.has_left = False

    def open(self, send: Callable[[wire.FromAgent], None]) -> None:
        """Have a line, over which the server first hears what it may have missed."""
        self._send, self._told, self._is_ordered = send, None, False
        if self._is_leaving:
            send(wire.Leaving())
        elif self._leaves_at_s is not None:
            self.notice(self._leaves_at_s)
        self.flush()
        for report in self._unsafe:
            self._say_report(report)

    def close(self) -> None:
        """Have no line."""
        self._send = None

    def report(self, fact: Fact) -> None:
        """Tell a fact, now and after every silence, until it is acknowledged."""
        self._number += 1
        report = report_of(self._number, fact, self._clock.wall_s())
        self._unsafe.append(report)
        self._say_report(report)

    def _say_report(self, report: Report) -> None:
        if self._send is None:
            return
        if isinstance(report.fact, RunEnded):  # readers of the job's lines stop at its end
            for batch in self._log_spool.take_all(report.fact.job):
                self._send(batch)
        self._send(report)

    def ordered(self) -> None:
        """Note that orders have come on this line: what there is here may be told."""
        self._is_ordered = True

    def hold(self, holding: Holding) -> None:
        """Tell what there is here; every `orders` leads to that, after a silence too.

        Not before: another version of the server may count its orders in another way.
        """
        if self._is_ordered and holding != self._told:
            self._told = holding
            self._say(holding)

    def hold_again(self) -> None:
        """Repeat what there is here: what the server has made of it may have been undone."""
        if self._told is not None:
            self._say(self._told)

    def leave(self) -> None:
        """Tell that nothing new is wanted, now and after every silence."""
        self._is_leaving = True
        self._say(wire.Leaving())

    def notice(self, leaves_at_s: float) -> None:
        """Tell when this machine goes away, now and after every silence."""
        self._leaves_at_s = leaves_at_s
        self._say(wire.Leaving(within_s=max(0.0, leaves_at_s - self._clock.steady_s())))

    def tell_left(self) -> None:
        """Tell that no process of a job is left here, which ends the line; no other is opened."""
        self.has_left = True
        self._say(wire.Left())

    def progress(self, progress: RunProgress) -> None:
        """Tell how a run is doing, with the next batch."""
        self._progress[progress.progressed.job] = progress

    def acknowledged(self, number: int) -> None:
        """Forget what is safe."""
        while self._unsafe and self._unsafe[0].number <= number:
            self._on_safe(self._unsafe.popleft().fact)

    def flush(self, *, progress: bool = True) -> None:
        """Tell what jobs have printed, and how they are doing."""
        if self._send is None:
            return
        for batch in self._log_spool.take():
            self._send(batch)
        if progress and self._progress:
            runs, self._progress = tuple(self._progress.values()), {}
            self._send(Progress(runs=runs))

    def unsent(self, messages: Iterable[wire.FromAgent]) -> None:
        """Keep lines that a line did not carry; facts are kept anyway, the rest would be stale."""
        for message in reversed([*messages]):
            if isinstance(message, Logs):
                self._log_spool.put_back(message)

    @property
    def is_safe(self) -> bool:
        """Tell whether every fact was acknowledged."""
        return not self._unsafe

    def _say(self, message: wire.FromAgent) -> None:
        if self._send is not None:
            self._send(message)


def pauses_s(chance: Callable[[], float] = random.random) -> Iterable[float]:
    """Give how long to wait before each next try: longer and longer, and never quite the same."""
    pause_s = PAUSE_S
    while True:
        yield pause_s * (0.5 + chance() / 2)
        pause_s = min(PAUSE_S_MAX, pause_s * 2)


class _StoreChanged(Exception):
    """The pool keeps checkpoints elsewhere than it was told; it is to be told anew."""


class ServerSession:
    """Keeps the connection to the server up, and the lease renewed."""

    def __init__(
        self,
        dialer: Dialer,
        hello: Hello,
        outbox: ReportOutbox,
        *,
        on_pool: Callable[[str], None],
        on_store: Callable[[str], None],
        fence: Callable[[float], None] = lambda _at_s: None,
        gpu_use: Callable[[], dict[int, wire.GpuUse]] = dict,
        clock: NodeClock = SYSTEM_CLOCK,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`on_pool` hears of the pool that has welcomed us before any orders come; before that,
        `on_store` hears where it keeps checkpoints. Both may raise.

        `fence` is told when all must have ended, before anything is done under a lease. `gpu_use`
        gives what is told of GPUs with every beat. `chance` spreads
        how long it waits to dial again.
        """
        self._dialer = dialer
        self._hello = hello
        self._outbox = outbox
        self._on_pool = on_pool
        self._on_store = on_store
        self._pool = ""  # that has welcomed us
        self._fence = fence
        self._gpu_use = gpu_use
        self._chance = chance
        self.clock = clock
        self._changed = asyncio.Event()
        self.lease = NodeLease()
        self.is_up = False

    async def run(self, worker: OrderHandler) -> None:
        """Serve until cancelled; raise ServerRefusal if the server rejects this agent."""
        pauses = iter(pauses_s(self._chance))
        while not self._outbox.has_left:
            try:
                async with self._connected() as line:
                    await self._greet(line)
                    pauses = iter(pauses_s(self._chance))
                    await self._serve(line, worker)
            except _StoreChanged:
                continue
            except ServerRefusal as refusal:
                if self.lease.standing(self.clock.steady_s()) == "none":
                    raise
                log.warning("agent_refused", because=refusal.because)
            except (OSError, TimeoutError, msgspec.MsgspecError) as error:
                log.warning("server_unreachable", url=self._dialer.url, because=f"{error}")
            await asyncio.sleep(next(pauses))

    async def lease_changed(self) -> None:
        """Wait until a lease was renewed."""
        await self._changed.wait()
        self._changed.clear()

    @property
    def is_leased(self) -> bool:
        """Tell whether processes may be started. From any thread."""
        return self.lease.standing(self.clock.steady_s()) in ("held", "closing")

    def _on_lease(self) -> None:
        if self.is_leased:  # a word that was long under way renews nothing
            self._fence(self.lease.fence_at_s)
        self._changed.set()

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[ServerLine]:
        line = await self._dialer.dial(self._answer_within_s)
        try:
            yield line
        except ConnectionError:
            line.abort()  # a dead line answers no goodbye
            raise
        finally:
            self.is_up = False
            self._outbox.close()
            await line.close()

    @property
    def _answer_within_s(self) -> float:
        """How long dialling, and a greeting, may take: of a lease that is held, not all."""
        is_held = self.lease.standing(self.clock.steady_s()) != "none"
        return min(OPEN_WITHIN_S, self.lease.silence_s) if is_held else OPEN_WITHIN_S

    async def _greet(self, line: ServerLine) -> None:
        sent_s = self.clock.steady_s()
        await line.send(wire.encoded(self._hello))
        async with asyncio.timeout(self._answer_within_s):
            answer = wire.from_server(await line.receive())
        match answer:
            case wire.Welcome():
                if answer.pool != self._pool:
                    await asyncio.to_thread(self._on_pool, answer.pool)
                    self._pool = answer.pool
                self.lease.welcome(answer.lease_s, sent_s)
                self._beat_every_s = answer.beat_every_s
                self._on_lease()
                log.info("server_connected", server=answer.version, lease_s=answer.lease_s)
            case wire.UseStore(checkpoints=uri):
                await asyncio.to_thread(self._on_store, uri)
                self._hello = msgspec.structs.replace(self._hello, checkpoints=uri)
                raise _StoreChanged
            case wire.Refused(what=what, because=because, try_=try_):
                raise ServerRefusal(what, because, try_)
            case _:
                raise OSError(f"the server answered hello with {type(answer).__name__}")

    async def _serve(self, line: ServerLine, worker: OrderHandler) -> None:
        """Talk until the line breaks, or the server is silent for too long."""
        words: asyncio.Queue[wire.FromAgent] = asyncio.Queue()
        self._outbox.open(words.put_nowait)
        self.is_up = True
        try:
            await _first_to_end(
                self._speak(line, words),
                self._beat(words),
                self._flush(words),
                self._listen(line, worker),
            )
        finally:
            self._outbox.unsent(words.get_nowait() for _ in range(words.qsize()))

    async def _listen(self, line: ServerLine, worker: OrderHandler) -> None:
        async for data in line:
            match message := wire.from_server(data):
                case wire.NewOrders(orders=orders, peers=peers):
                    if not self.is_leased:
                        raise ConnectionError("orders came after the lease had expired")
                    self._outbox.ordered()
                    worker.take(orders, peers)
                case wire.Renewed(number=number):
                    self.lease.renewed(number)
                    self._on_lease()
                case wire.Ack(number=number):
                    self._outbox.acknowledged(number)
                case wire.Refused(what=what, because=because, try_=try_):
                    raise ServerRefusal(what, because, try_)
                case wire.Welcome() | wire.UseStore():
                    pass  # answers to hello
                case _:
                    assert_never(message)
        raise ConnectionError("the server closed the connection")

    async def _speak(self, line: ServerLine, words: "asyncio.Queue[wire.FromAgent]") -> None:
        while True:
            await line.send(wire.encoded(await words.get()))

    async def _beat(self, words: "asyncio.Queue[wire.FromAgent]") -> None:
        while True:
            await asyncio.sleep(self._beat_every_s)
            if self.lease.standing(self.clock.steady_s()) == "none":
                raise ConnectionError("the lease had expired; reconnecting from scratch")
            silent_s = self.lease.unanswered_s(self.clock.steady_s())
            if silent_s > self.lease.silence_s:
                raise ConnectionError(f"the server has been silent for {silent_s:.1f} s")
            beat = wire.Beat(number=self.lease.beat(self.clock.steady_s()), gpus=self._gpu_use())
            words.put_nowait(beat)
            self._outbox.hold_again()

    async def _flush(self, words: "asyncio.Queue[wire.FromAgent]") -> None:
        for count in itertools.count():
            if words.qsize() < UNSENT_MAX:
                self._outbox.flush(progress=count % PROGRESS_EVERY == 0)
            await asyncio.sleep(FLUSH_EVERY_S)


async def _first_to_end(*works: Coroutine[None, None, None]) -> None:
    """Do several things until one of them fails; raise what it raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    failed = [error for error in ended if isinstance(error, Exception)]
    # A refusal is heard by one of them and breaks the line for the others.
    raise min(failed, key=lambda error: not isinstance(error, ServerRefusal))

"""A pool that is alive: the real server on a real port, in a thread, with a clock turned by hand.

Agents are stubs that speak the wire's messages over the WebSocket.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import httpx
import websockets.sync.client
from websockets.exceptions import ConnectionClosed

from coddl import __version__
from coddl.api import wire
from coddl.api.jobsfolder import JobsFolder
from coddl.core.cluster import Cluster
from coddl.core.pool.decision import POOL_STABILITY
from coddl.core.pool.records import (
    Device,
    LossMeasured,
    RunEnded,
    RunId,
    RunPrepared,
    RunProfiled,
    RunStepped,
    RunUnsaved,
    SliceDidNotFit,
    SlotTurns,
)
from coddl.core.registry import BUILT_IN, Registry
from coddl.core.scheduler import Stability
from coddl.server.auth import Tokens
from coddl.server.dashboard import BUILT
from coddl.server.http import LOOPBACK, create_app
from coddl.server.http_server import HttpServer, listen
from coddl.server.journal import Journal
from coddl.server.retention import Retention
from coddl.server.server import Server
from coddl.server.store import JournalStore
from coddl.server.store_memory import MemoryStore

TOKEN = "a-token-for-tests"
READ_TOKEN = "a-token-that-may-only-read"
DEADLINE_S = 150.0  # machines are busy, and kernels may have to be compiled

T = TypeVar("T")


def eventually(look: Callable[[], T | None], what: str = "") -> T:
    """Wait until there is something to see; fail if there is nothing for too long."""
    until_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < until_s:
        if found := look():
            return found
        time.sleep(0.005)
    raise AssertionError(f"nothing to see for {DEADLINE_S} s: {what or look}")


class ManualClock:
    """Stands still until it is turned."""

    scale = 1.0

    def __init__(self) -> None:
        self.now_s = 1_000_000.0
        self.on_turn: Callable[[], None] = lambda: None

    def wall_s(self) -> float:
        """Seconds since 1970, or so."""
        return self.now_s

    def steady_s(self) -> float:
        """Seconds since some moment."""
        return self.now_s - 990_000.0

    def patience_s(self, _delay_s: float) -> float | None:
        """Nothing happens by itself."""
        return None

    def turn(self, by_s: float) -> None:
        """Let time pass."""
        self.now_s += by_s
        self.on_turn()


class LivePool:
    """A server in a thread. Use as a context."""

    def __init__(
        self,
        folder: Path,
        store: JournalStore | None = None,
        *,
        stability: Stability = POOL_STABILITY,
        site: Cluster | None = None,
        registry: Registry = BUILT_IN,
        lease_s: float = 60,
        built: Path = BUILT,
        replay: Sequence[str] = (),
        retention: Retention = Retention(),  # noqa: B008  # it is frozen
    ) -> None:
        self.clock = ManualClock()
        self.store = store if store is not None else MemoryStore()
        self.server = Server(
            Journal(self.store),
            folder,
            self.clock,
            stability=stability,
            site=site,
            registry=registry,
            lease_s=lease_s,
            replay=replay,
            retention=retention,
        )
        self._listener = listen("127.0.0.1", 0)
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._http = HttpServer(
            self.server, create_app(self.server, Tokens(TOKEN, READ_TOKEN), LOOPBACK, built)
        )
        self._thread = threading.Thread(target=self._run)
        self.client = httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=DEADLINE_S
        )
        self._agents: list[StubAgent] = []

    def _run(self) -> None:
        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            self.clock.on_turn = lambda: self.soon(self.server.poke)
            await self._http.serve(sockets=[self._listener])

        asyncio.run(main())

    def __enter__(self) -> "LivePool":
        self._thread.start()
        eventually(lambda: self._http.started, "the server to start")
        return self

    def __exit__(self, *_error: object) -> None:
        self.client.close()
        for agent in self._agents:
            agent.close()
        self.soon(self._http.stop)
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    def soon(self, do: Callable[[], object]) -> None:
        """Have something done in the server's thread."""
        self._loop.call_soon_threadsafe(do)

    def in_loop(self, do: Callable[[], T]) -> T:
        """Do something in the server's thread, and give what comes of it."""

        async def call() -> T:
            return do()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(DEADLINE_S)

    def api(self, method: str, path: str, body: object = None, **more: Any) -> httpx.Response:
        """Ask the REST API."""
        if body is not None:
            more["json"] = body
        return self.client.request(method, f"/api/v1{path}", **more)

    def submit(self, **fields: object) -> dict[str, Any]:
        """Hand in a job that is accepted."""
        answer = self.api("POST", "/jobs", {"script": "train.py", **fields})
        assert answer.status_code == 201, answer.text
        return cast(dict[str, Any], answer.json())

    def job(self, job: object) -> dict[str, Any]:
        """Look at a job."""
        return cast(dict[str, Any], self.api("GET", f"/jobs/{job}").json())

    def node(self, name: str) -> dict[str, Any]:
        """Look at a node."""
        return cast(dict[str, Any], self.api("GET", f"/nodes/{name}").json())

    def agent(self, name: str = "n1", **more: Any) -> "StubAgent":
        """Connect an agent, without a word."""
        agent = StubAgent(self.port, name, **more)
        self._agents.append(agent)
        return agent

    def joined(self, name: str = "n1", **more: Any) -> "StubAgent":
        """Connect an agent that is welcome."""
        agent = self.agent(name, **more)
        agent.hello()
        agent.expect(wire.Welcome)
        return agent


class StubAgent:
    """Speaks like an agent, and does nothing."""

    def __init__(
        self, port: int, name: str, *, boot: str = "boot-1", slots: int = 2, token: str = TOKEN
    ) -> None:
        self.name, self.boot, self.slots = name, boot, slots
        self._numbers = iter(range(1, 1_000_000))
        self.orders: wire.NewOrders | None = None
        self._stack = contextlib.ExitStack()
        self.line = self._stack.enter_context(
            websockets.sync.client.connect(
                f"ws://127.0.0.1:{port}/api/v1/agent",
                additional_headers={"Authorization": f"Bearer {token}"},
                open_timeout=DEADLINE_S,
                close_timeout=1,
                proxy=None,
            )
        )

    def close(self) -> None:
        """Hang up."""
        self._stack.close()

    def say(self, message: wire.FromAgent) -> None:
        """Send a message."""
        self.line.send(wire.encoded(message))

    def hello(self, **changes: Any) -> None:
        """Present itself."""
        fields: dict[str, Any] = {
            "protocol": wire.PROTOCOL,
            "version": __version__,
            "node": self.name,
            "boot": self.boot,
            "host": "127.0.0.1",
            "port": 7000,
            "peer_token": f"peer-of-{self.name}",
            "devices": tuple(Device(index, "cpu") for index in range(self.slots)),
            "jobs": JobsFolder("/jobs", "", "", 0),
        }
        self.say(wire.Hello(**{**fields, **changes}))

    def hear(self) -> wire.FromServer:
        """Wait for the next message."""
        message = wire.from_server(self.line.recv(timeout=DEADLINE_S))
        if isinstance(message, wire.NewOrders):
            self.orders = message
        return message

    def expect(self, kind: type[T]) -> T:
        """Wait for a message of a kind, past others."""
        while True:
            message = self.hear()
            if isinstance(message, kind):
                return message

    def expect_orders(self, fits: Callable[[wire.NewOrders], object]) -> wire.NewOrders:
        """Wait for orders that are as they should be."""
        while self.orders is None or not fits(self.orders):
            self.hear()
        return self.orders

    def expect_end(self) -> tuple[int, str]:
        """Wait until the server hangs up; give its code and reason."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                self.hear()
        return self.line.close_code or 0, self.line.close_reason or ""

    def beat(self, number: int = 1) -> None:
        """Say that it is alive, and wait for the answer."""
        self.say(wire.Beat(number=number))
        assert self.expect(wire.Renewed).number == number

    def report(
        self,
        *facts: RunPrepared
        | SliceDidNotFit
        | RunProfiled
        | LossMeasured
        | RunStepped
        | RunUnsaved
        | RunEnded,
    ) -> int:
        """Tell facts of runs; gives the last one's number."""
        number = 0
        for fact in facts:
            number = next(self._numbers)
            match fact:
                case RunPrepared():
                    self.say(wire.Report(number=number, at_s=0.0, prepared=fact))
                case SliceDidNotFit():
                    self.say(wire.Report(number=number, at_s=0.0, did_not_fit=fact))
                case RunProfiled():
                    self.say(wire.Report(number=number, at_s=0.0, profiled=fact))
                case LossMeasured():
                    self.say(wire.Report(number=number, at_s=0.0, loss=fact))
                case RunStepped():
                    self.say(wire.Report(number=number, at_s=0.0, stepped=fact))
                case RunUnsaved():
                    self.say(wire.Report(number=number, at_s=0.0, unsaved=fact))
                case RunEnded():
                    self.say(wire.Report(number=number, at_s=0.0, ended=fact))
        return number

    def hold(
        self,
        *slots: int,
        version: int | None = None,
        runs: Iterable[RunId] | None = None,
        parked: Iterable[int] | None = None,
        turns: Mapping[int, SlotTurns] | None = None,
    ) -> None:
        """Tell which slots have processes and which runs there are, knowing the newest orders."""
        assert self.orders is not None
        orders = self.orders.orders
        held = {slot: orders.seats.get(slot, (RunId(1, 1),))[0] for slot in slots}
        known = version if version is not None else orders.version
        listed = frozenset(runs) if runs is not None else None
        kept = frozenset(parked) if parked is not None else None
        told = wire.Holding(
            version=known, slots=held, runs=listed, parked=kept, turns=dict(turns or {})
        )
        self.say(told)


def events_of(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    """Read server-sent events, as fields."""
    event: dict[str, str] = {}
    for line in lines:
        if not line:
            if event:
                yield event
            event = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            event[name] = value

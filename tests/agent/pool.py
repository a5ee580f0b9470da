"""A server made of paper, which speaks the wire, and agents as real processes under it."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self, TypeVar

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve

from coddl.agent.run_reporter import Fact
from coddl.api import wire
from coddl.api.wire import Hello, Holding, NewOrders, Peer, Refused, Welcome
from coddl.core.pool.orders import AssignedSlot, JobOrder, Orders
from coddl.core.pool.records import RunId
from coddl.core.pool.spec import JobSpec

PATIENCE_S = 90.0
ROOT = Path(__file__).parents[2]
TOKEN = "open sesame"
T = TypeVar("T")


def wait_until(condition: Callable[[], T], what: Callable[[], str] | str) -> T:
    """Wait for something that must come; give it."""
    until_s = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        told = what if isinstance(what, str) else what()
        assert time.monotonic() < until_s, f"never came: {told}"
        time.sleep(0.005)
    return found


class PaperServer:
    """Welcomes agents, remembers all they say, and sends what it is told to."""

    def __init__(self, port: int, *, lease_s: float = 60.0, beat_every_s: float = 0.2) -> None:
        self.port = port
        self.lease_s = lease_s
        self.beat_every_s = beat_every_s
        self.refusal: Refused | None = None
        self.is_deaf = False  # takes words, and answers none
        self.archives: dict[str, bytes] = {}
        self.said: list[wire.FromAgent] = []
        self.hellos: list[Hello] = []
        self._lines: dict[str, ServerConnection] = {}  # by node
        self._lock = threading.Lock()
        self._server: Server | None = None
        self._thread: threading.Thread | None = None
        self.open()

    def open(self) -> None:
        """Listen."""
        self._server = serve(
            self._serve, "127.0.0.1", self.port, process_request=self._request, ping_interval=None
        )
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        """Hang up on everybody, and listen no more."""
        assert self._server is not None
        assert self._thread is not None
        self._server.shutdown()
        self.hang_up()
        self._thread.join()

    def hang_up(self) -> None:
        with self._lock:
            lines, self._lines = list(self._lines.values()), {}
        for line in lines:
            line.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _request(self, line: ServerConnection, request: Request) -> Response | None:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return line.respond(HTTPStatus.UNAUTHORIZED, "who are you?")
        if request.path == "/api/v1/agent":
            return None
        data = self.archives.get(request.path.rpartition("/")[2])
        if data is None:
            return line.respond(HTTPStatus.NOT_FOUND, "no such archive")
        headers = Headers({"Content-Length": str(len(data)), "Connection": "close"})
        return Response(200, "OK", headers, data)

    def _serve(self, line: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            for data in line:
                self._answer(line, wire.from_agent(data))
        with self._lock:
            self._lines = {node: each for node, each in self._lines.items() if each is not line}

    def _answer(self, line: ServerConnection, message: wire.FromAgent) -> None:
        self.said.append(message)
        if self.is_deaf:
            return
        match message:
            case Hello(node=node):
                self.hellos.append(message)
                if self.refusal is not None:
                    line.send(wire.encoded(self.refusal))
                    line.close()
                    return
                welcome = Welcome(
                    version="1",
                    pool="paper",
                    lease_s=self.lease_s,
                    beat_every_s=self.beat_every_s,
                )
                line.send(wire.encoded(welcome))
                with self._lock:
                    self._lines[node] = line
            case wire.Beat(number=number):
                line.send(wire.encoded(wire.Renewed(number=number)))
            case wire.Report(number=number):
                line.send(wire.encoded(wire.Ack(number=number)))

    # What a test asks for.

    def hello(self, node: str = "n0") -> Hello:
        """Wait until an agent is there; give how it presented itself last."""
        wait_until(lambda: node in self._lines, f"hello of {node}")
        return [hello for hello in self.hellos if hello.node == node][-1]

    def order(self, orders: Orders, node: str = "n0", *, nodes: Iterable[str] = ()) -> None:
        """Send orders, with the peers of these nodes."""
        hellos = [self.hello(each) for each in {node, *nodes}]
        peers = tuple(Peer(h.node, h.host, h.port, h.peer_token) for h in hellos)
        self._lines[node].send(wire.encoded(NewOrders(orders=orders, peers=peers)))

    def facts(self, job: int = 1) -> list[Fact]:
        """Give what runs of a job have told, each once, in order."""
        reports = {m.number: m.fact for m in self.said if isinstance(m, wire.Report)}
        return [fact for _, fact in sorted(reports.items()) if fact.job == job]

    def fact(self, sort: type[T], job: int = 1, **fields: Any) -> T:
        """Wait for a fact of a job."""

        def find() -> T | None:
            for each in self.facts(job):
                if isinstance(each, sort) and all(
                    getattr(each, name) == value for name, value in fields.items()
                ):
                    return each
            return None

        found = wait_until(find, lambda: f"{sort.__name__} {fields}; {self.story(job)}")
        assert found is not None
        return found

    def held(self, version: int, slots: Mapping[int, RunId]) -> None:
        """Wait until an agent has said that just these slots have processes."""
        wanted = (version, dict(slots))

        def is_told() -> bool:
            last = self.last_holding()
            return last is not None and (last.version, last.slots) == wanted

        wait_until(is_told, lambda: f"{wanted}: {self.story()}")

    def holdings(self) -> list[Holding]:
        return [message for message in self.said if isinstance(message, Holding)]

    def last_holding(self) -> Holding | None:
        return next(reversed(self.holdings()), None)

    def lines(self, job: int = 1) -> list[str]:
        """Give what a job has printed, and what was said about it."""
        batches = [m for m in self.said if isinstance(m, wire.Logs) and m.job == job]
        return [f"{line.stream}: {line.text}" for batch in batches for line in batch.lines]

    def line(self, text: str, job: int = 1) -> str:
        """Wait for a line that begins with a text."""

        def find() -> str | None:
            return next((each for each in self.lines(job) if each.startswith(text)), None)

        found = wait_until(find, lambda: f"{text}: {self.story(job)}")
        assert found is not None
        return found

    def progress(self, job: int = 1) -> list[wire.RunProgress]:
        runs = [run for m in self.said if isinstance(m, wire.Progress) for run in m.runs]
        return [run for run in runs if run.progressed.job == job]

    def wait_step(self, step: int, job: int = 1) -> None:
        """Wait until a job has made so many steps."""
        wait_until(
            lambda: any(run.progressed.step >= step for run in self.progress(job)),
            lambda: f"step {step}: {self.story(job)}",
        )

    def story(self, job: int = 1) -> str:
        """Tell what was said, for a test that fails."""
        return "\n".join(map(str, [*self.facts(job), *self.lines(job)[-40:], self.last_holding()]))


def lead(job: int, slots: Iterable[int], **fields: Any) -> JobOrder:
    """A lead's order on node n0; slots from 10 on are on n1, from 20 on on n2."""
    seats = tuple(AssignedSlot(slot, f"n{slot // 10}", None) for slot in slots)
    base = JobOrder(job, 1, 1, seats, False, False, "", "it was its turn")
    return replace(base, **fields)


def orders(
    version: int, leads: Iterable[JobOrder] = (), specs: Mapping[int, JobSpec] | None = None
) -> Orders:
    """Orders for n0 that give it the seats its leads need there."""
    leads = tuple(leads)
    seats = {
        seat.slot: (RunId(each.job, each.attempt),)
        for each in leads
        for seat in each.seats
        if seat.node == "n0"
    }
    return Orders(version, seats, leads, dict(specs or {}))


RUN = """
import json, sys
from pathlib import Path
from coddl.agent.main import AgentOptions, run_agent
from coddl.core.errors import UserError
told = json.loads(sys.argv[1])
for name in ("state_dir", "jobs_dir"):
    told[name] = Path(told[name])
try:
    sys.exit(run_agent(AgentOptions(**told)))
except UserError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


class Agent:
    """An agent as a process of its own; a context that leaves nothing behind."""

    def __init__(self, folder: Path, server: str, **options: Any) -> None:
        self.folder = folder
        told = {
            "server": server,
            "token": TOKEN,
            "state_dir": str(folder / "state"),
            "jobs_dir": str(folder / "jobs"),
            "name": "n0",
            "slots": 2,
            "log_format": "json",
            **options,
        }
        self.printed = folder / f"agent-{told['name']}.log"
        hidden = ("CODDL_", "CUDA_")
        env = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
        with self.printed.open("a") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", RUN, json.dumps(told)],
                env={**env, "PYTHONPATH": str(ROOT)},
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1)
        if self.process.poll() is None:
            self.process.terminate()  # the second time it does not wait for jobs
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()
        assert "Traceback" not in self.printed.read_text(), self.printed.read_text()

    def end(self) -> int:
        """Wait for its end; give the exit code."""
        return self.process.wait(PATIENCE_S)

    def family(self) -> list[int]:
        """Name everybody below it."""
        return below(self.process.pid)

    def fence(self) -> int:
        """Wait for the process that ends its jobs in its place; name it."""

        def find() -> int | None:
            return next((p for p in self.family() if "coddl.agent.fence" in cmdline(p)), None)

        found = wait_until(find, "the fence")
        assert found is not None
        return found

    def jobs(self) -> list[int]:
        """Name the processes of its jobs, and warm ones."""
        fence = self.fence()
        return [pid for pid in self.family() if pid != fence]


def below(pid: int) -> list[int]:
    """Name all that a process has started, and what they have started."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().rpartition(b")")[2].split()
            children.setdefault(int(words[1]), []).append(int(path.parent.name))
    found: list[int] = []
    look = [pid]
    while look:
        more = children.get(look.pop(), [])
        found += more
        look += more
    return found


def cmdline(pid: int) -> str:
    """Tell how a process was called; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def lives(pid: int) -> bool:
    """Tell whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


@contextlib.contextmanager
def served(**options: Any) -> Iterator[PaperServer]:
    """A server for the time of a test, which keeps its port even while it does not listen."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        server = PaperServer(taken.getsockname()[1], **options)
        try:
            yield server
        finally:
            server.close()

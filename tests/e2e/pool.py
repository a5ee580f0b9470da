"""A pool of real processes: a server, agents on machines of their own, whatever befalls them."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import msgspec

from coddl.agent.lease_clock import now_s
from coddl.agent.leave_notice import write_notice
from coddl.agent.orphans import mark_of
from coddl.api.client import Client, ServerAddress, Unreachable
from coddl.api.code import pack
from coddl.core.pool import records as r
from coddl.runtime.supervisor.jobdir import MEMORY
from coddl.server.folding import KINDS, JournalEntry
from tests.e2e.netns import Cluster, Visit
from tests.e2e.observer import Observer, Sitter

T = TypeVar("T")
View = dict[str, Any]  # Any: JSON
ROOT: Final = Path(__file__).parents[2]
SCRIPTS: Final = Path(__file__).with_name("scripts")
NODES: Final = ("n1", "n2", "n3")
SLOTS: Final = 2  # of each node
PORT: Final = 7433
LEASE_S: Final = 6.0
COOL_DOWN_S: Final = 1.0
PATIENCE_S: Final = 120.0  # for what must come; machines are shared and slow
COMMAND_S: Final = 400.0  # for a command: it may wait for jobs, or compile another policy
LOOK_EVERY_S: Final = 0.05
OVER: Final = ("SUCCEEDED", "FAILED", "CANCELLED")


def environment(**extra: str) -> dict[str, str]:
    """Give what our processes find; nothing of a pool that we may run in ourselves."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CODDL_", "PYTEST_"))}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **extra}


class Pool:
    """A server and agents, three with two slots each unless told; all is gone at the end."""

    def __init__(
        self,
        folder: Path,
        *,
        lease_s: float = LEASE_S,
        nodes: Sequence[str] = NODES,
        slots: int = SLOTS,
    ) -> None:
        self.folder = folder
        self.nodes = nodes
        self.slots = slots
        self.state = folder / "state"
        self.lease_s = lease_s
        self.server_words: list[str] = []  # further ones
        self.env: dict[str, str] = {}  # further variables of server and agents
        self.cluster = Cluster(nodes)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._code = ""
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(self.cluster.close)
            self.cluster.open()
            self.observer = Observer(self.folder / "spots")
            stack.callback(self.observer.close)
            self._visit = Visit(self.cluster.head)
            stack.callback(self._visit.close)
            stack.callback(self._kill_all)
            self.start_server()
            for node in self.nodes:
                self.start_agent(node)
            address = ServerAddress(self.url, (self.state / "token").read_text().strip())
            self._client = self._visit.do(lambda: Client(address))
            stack.callback(self._client.__exit__)
            self.wait("agents", lambda: self.nodes_in("UP") == list(self.nodes) and self.is_ready())
            self._upload()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._stack:
            try:
                if kind is None:
                    self._end_well()
            except BaseException:
                self._tell_story()
                raise
            if kind is not None:
                self._tell_story()

    # Processes.

    @property
    def url(self) -> str:
        return f"http://{self.cluster.head.address}:{PORT}"

    def start_server(self) -> None:
        """Start the server, and wait until it answers."""
        words = ["server", "--host", self.cluster.head.address, "--port", str(PORT)]
        words += ["--lease", str(self.lease_s), "--cool-down", str(COOL_DOWN_S)]
        self._start("server", self.cluster.head.command(), [*words, *self.server_words])
        announced = self.state / "server.json"

        def is_there() -> bool:
            self._check_lives("server")
            with contextlib.suppress(FileNotFoundError, ValueError):
                return bool(json.loads(announced.read_text())["pid"] == self.pid("server"))
            return False

        self.wait("server", is_there)

    def start_agent(self, node: str, *more: str) -> None:
        """Start the agent of a node."""
        words = ["agent", "--server", self.url, "--name", node, "--slots", str(self.slots)]
        self._start(node, self.on_node(node), [*words, *more])

    def give_notice(self, node: str, within_s: float) -> None:
        """Tell an agent that its machine goes away in that time."""
        write_notice(self.state / "agents" / node, now_s() + within_s)
        os.kill(self.pid(node), signal.SIGUSR1)

    def wait_left(self, node: str, code: int = 0) -> None:
        """Wait until an agent has ended by itself, with that code and with nothing left behind."""
        assert self._processes[node].wait(PATIENCE_S) == code
        del self._processes[node]
        assert not self.pids_on(node)

    def on_node(self, node: str) -> list[str]:
        """Give what is put before a command to run it on a node."""
        return self.cluster.nodes[node].command()

    def pid(self, name: str) -> int:
        """Name the process of the server, or of a node's agent."""
        return self._processes[name].pid

    def kill(self, *names: str) -> None:
        """Kill the server, or agents, all at once; wait until nothing of them is left."""
        for name in names:
            self._processes[name].kill()
        for name in names:
            self._processes.pop(name).wait()
            if name != "server":
                self.wait_empty(name)

    def pids_on(self, node: str) -> list[int]:
        """Name the processes that live on a node."""
        return self.cluster.nodes[node].processes()

    def sitters_on(self, node: str) -> list[Sitter]:
        """Give who works on a node."""
        here = set(self.pids_on(node))
        return [each for each in self.observer.sitters() if each.pid in here]

    def wait_empty(self, node: str) -> None:
        """Wait until no process lives on a node."""
        self.wait(f"the end of all on {node}", lambda: not self.pids_on(node))

    def stop_agent(self, node: str) -> None:
        """Ask an agent to leave; it must, with nothing left behind."""
        process = self._processes.pop(node)
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        assert not self.pids_on(node)

    def _start(self, name: str, where: list[str], words: list[str]) -> None:
        log = (self.folder / f"{name}.log").open("ab")
        with log:
            self._processes[name] = subprocess.Popen(
                [*where, sys.executable, "-m", "coddl", *words, "--state-dir", str(self.state)],
                env=environment(**self.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )

    def _check_lives(self, name: str) -> None:
        code = self._processes[name].poll()
        assert code is None, f"{name} ended with {code}:\n{self.log(name)}"

    def log(self, name: str) -> str:
        """Give what a process has logged, and those before it of that name."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # Requests.

    def ask(self, question: Callable[[Client], T]) -> T:
        """Ask the server, from its own machine; a server that is away is waited for."""
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._visit.do(lambda: question(self._client))
            except Unreachable:
                if time.monotonic() > until_s:
                    raise
                time.sleep(LOOK_EVERY_S)

    def get(self, path: str, **parameters: str | int | bool) -> View:
        """Get something below /api/v1."""
        found: View = self.ask(lambda client: client.get(path, **parameters))
        return found

    def is_ready(self) -> bool:
        return self.ask(lambda client: client.is_ready())

    def nodes_in(self, state: str) -> list[str]:
        """Name the nodes that are in a state."""
        return sorted(n["name"] for n in self.get("/nodes")["items"] if n["state"] == state)

    def submit(self, *args: str, script: str = "train.py", **fields: Any) -> int:
        """Hand in one of our scripts; give the job's number."""
        return self.hand_in({"script": script, "args": args, **fields})

    def hand_in(self, request: Mapping[str, Any]) -> int:
        """Hand in a job, with our scripts as its folder; give its number."""
        env = {**request.get("env", {}), "E2E_SPOTS": str(self.observer.folder)}
        whole = {"code": self._code, "checkpoint_every_s": 2.0, **request, "env": env}
        return int(self.ask(lambda client: client.submit(whole))["id"])

    def cli(self, *words: str, cwd: Path | None = None, code: int = 0) -> str:
        """Run the command line, which must end with that code; give what it printed."""
        run = subprocess.run(
            self.cluster.head.command(sys.executable, "-m", "coddl", *words),
            env=environment(CODDL_STATE_DIR=str(self.state), NO_COLOR="1", COLUMNS="200"),
            cwd=cwd or self.folder,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )
        assert run.returncode == code, f"{words}: {run.returncode}\n{run.stdout}\n{run.stderr}"
        return run.stdout

    def _upload(self) -> None:
        archive = pack(SCRIPTS, self.folder / "scripts.tar.gz")
        self._code = archive.hash
        with archive.path.open("rb") as file:
            self.ask(lambda client: client.send_code(archive.hash, file))

    # Jobs.

    def job(self, job: int) -> View:
        """Show a job."""
        return self.get(f"/jobs/{job}")

    def explain(self, job: int) -> View:
        return self.get(f"/jobs/{job}/explain")

    def wait(self, what: str, condition: Callable[[], T | None]) -> T:
        """Wait for what must come; give it."""
        until_s = time.monotonic() + PATIENCE_S
        while not (found := condition()):
            assert time.monotonic() < until_s, f"never came: {what}"
            time.sleep(LOOK_EVERY_S)
        return found

    def wait_job(self, job: int, what: str, when: Callable[[View], bool]) -> View:
        """Wait until a job is as it should be; give it as it is then."""

        def looked() -> View | None:
            view = self.job(job)
            if when(view):
                return view
            assert view["state"] not in OVER, f"job {job} ended before {what}: {view}"
            return None

        return self.wait(f"job {job}: {what}", looked)

    def wait_size(self, job: int, gpus: int) -> View:
        """Wait until a job trains with so many devices."""
        right = lambda view: view["state"] == "RUNNING" and view["gpus"] == gpus  # noqa: E731
        return self.wait_job(job, f"{gpus} devices", right)

    def wait_steps(self, job: int, more: int = 5) -> View:
        """Wait until a job has made some steps more."""
        begun = self.job(job)["step"]
        return self.wait_job(job, f"{more} steps", lambda view: view["step"] >= begun + more)

    def wait_end(self, job: int, state: str = "SUCCEEDED") -> View:
        """Wait for a job's end, which must be the right one."""
        view = self.wait(
            f"the end of job {job}",
            lambda: view if (view := self.job(job))["state"] in OVER else None,
        )
        assert view["state"] == state, f"{view}\n{self.printed(job)}"
        return view

    def printed(self, job: int) -> str:
        """Give what a job's workers have printed, and what was said about it."""
        lines = self.get(f"/jobs/{job}/logs")["items"]
        return "\n".join(f"{line['rank']} {line['stream']}: {line['text']}" for line in lines)

    # The journal.

    def records(self, after: int = 0) -> list[JournalEntry]:
        """Read the journal, whether or not there is a server."""
        with contextlib.closing(self._journal()) as journal:
            query = "SELECT seq, at_s, kind, body FROM records WHERE seq > ? ORDER BY seq"
            rows = journal.execute(query, (after,)).fetchall()
        return [
            JournalEntry(seq, at_s, msgspec.json.decode(body, type=KINDS[kind]))
            for seq, at_s, kind, body in rows
        ]

    def _journal(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{self.state / 'journal.db'}?mode=ro", uri=True)

    def last_seq(self) -> int:
        """Give the number of the newest record."""
        with contextlib.closing(self._journal()) as journal:
            return int(journal.execute("SELECT max(seq) FROM records").fetchone()[0])

    def told(self, kind: type[T], job: int | None = None) -> list[T]:
        """Give the records of a kind, of one job or of all."""
        found = [each.record for each in self.records() if isinstance(each.record, kind)]
        return [each for each in found if job in (None, getattr(each, "job", None))]

    def wait_record(self, after: int, what: str, when: Callable[[r.Record], bool]) -> None:
        """Wait for a record, without asking the server."""
        self.wait(what, lambda: any(when(each.record) for each in self.records(after)))

    # The end.

    def _end_well(self) -> None:
        """Ask all to leave, agents first; nothing may be left, and no rule have been broken."""
        self.wait("the end of all workers", lambda: not self.observer.sitters())
        for node in [name for name in self._processes if name != "server"]:
            self.stop_agent(node)
        server = self._processes.pop("server")
        server.terminate()
        assert server.wait(PATIENCE_S) == 0, self.log("server")
        self.observer.check()
        assert not self.cluster.processes()
        assert not self.observer.sitters()
        marks = {mark_of(self.state / "agents" / node) for node in self.nodes}
        stashes = [path for path in MEMORY.glob("**/agent-*") if path.name[6:] in marks]
        assert not stashes, f"images are left in memory: {stashes}"
        assert "server_bug" not in self.log("server")

    def _kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _tell_story(self) -> None:
        """Print what a failing test needs to be understood."""
        with contextlib.suppress(Exception):
            for seq, at_s, record in self.records():
                print(f"{seq} {at_s % 1000:.2f} {record}")  # noqa: T201 - pytest shows it
        print(f"--- living\n{self.observer.sitters()}")  # noqa: T201
        for name in ("server", *self.nodes):
            print(f"--- {name}\n{self.log(name)[-4_000:]}")  # noqa: T201

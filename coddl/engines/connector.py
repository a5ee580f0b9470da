"""Between a pool and what brings its machines: a process of its own, so that neither can take the
other down.

Every second it reports the engine's nodes to the server, and carries out the server's answer. It
remembers nothing: after a restart it looks again. While the server is away nothing is acquired or
released; while the engine does not answer, it reports the reason to the server.
"""

import math
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from coddl.api.client import Answer, Client, Credentials, find
from coddl.core.errors import UserError
from coddl.core.node_count import NodeBounds
from coddl.engines.engine import AgentLaunch, Engine, EngineNode, EngineUnavailable
from coddl.engines.processes import LEAVE_S
from coddl.engines.slurm.options import NO_OPTIONS, SlurmOptions

LOOK_EVERY_S: Final = 1.0
BACKOFF_MAX_S: Final = 60.0  # between nodes that are asked for, when each of them fails
STEADY_S: Final = 30.0  # having been up for so long, a node asked for later has not failed
EMPTY_S: Final = 300.0  # for jobs to leave when the pool stops; then agents end with them
NAMED_MAX: Final = 500  # characters of why something is so
# And seconds until jobs run on a node asked for.
ENGINES: Final = {"local": 3.0, "ray": 20.0, "slurm": 30.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorOptions:
    """What brings the nodes of a pool, and how many."""

    engine: str
    folder: Path  # the pool's state folder
    server: str  # where agents find it
    bounds: NodeBounds
    tls_ca: str = ""  # a file with the CA of its certificate
    slots: int | None = None  # CPU slots of a node; None: its GPUs
    jobs_dir: str = ""
    address: str = ""  # of the engine; empty: it is found
    slurm: SlurmOptions = NO_OPTIONS

    @property
    def shared_folder(self) -> Path:
        """Return a folder for the engine's files, on a disk that the nodes share."""
        return Path(self.jobs_dir) / ".coddl" if self.jobs_dir else self.folder


def run_connector(options: ConnectorOptions, tell: Callable[[str], None] = print) -> int:
    """Serve until SIGTERM; then give all nodes back, whose jobs are saved."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: stop.set())
    files = Credentials(tls_ca=options.tls_ca)
    with Client(find(options.server, str(options.folder), env={}, given=files)) as client:
        pool = client.get("/pool")
        launch = AgentLaunch(
            pool=pool["id"],
            server=options.server,
            token=client.address.token,
            ca=Path(options.tls_ca).read_text() if options.tls_ca else "",
            slots=options.slots,
            # Where checkpoints are at a URI, nodes need not share a directory.
            jobs_dir=options.jobs_dir or ("" if pool["checkpoints"] else f"{options.folder}/jobs"),
        )
        engine = engine_from(options, launch)
        connector = Connector(options.engine, engine, client, options.bounds, tell)
        connector.run(stop.wait)
        connector.give_back()
        engine.close()
    return 0


def engine_from(options: ConnectorOptions, launch: AgentLaunch) -> Engine:
    """Return the engine of a name."""
    if options.engine == "local":
        from coddl.engines.local import LocalEngine

        return LocalEngine(launch, options.folder)
    if options.engine == "slurm":
        from coddl.engines.slurm.engine import SlurmEngine  # needs Slurm's commands

        folder = options.shared_folder / f"slurm-{launch.pool}"
        return SlurmEngine(launch, options.slurm, folder, gpus_per_node=options.bounds.gpus)
    from coddl.engines.ray import RayEngine  # needs Ray

    address = options.address or "auto"
    return RayEngine(launch, gpus_per_node=options.bounds.gpus, address=address)


def _pause_s(failures: int) -> float:
    """Return the wait after a number of failures in a row, which may be in the thousands."""
    return min(BACKOFF_MAX_S, 2.0 ** min(failures, 10))


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
    _failed: dict[str, str] = field(default_factory=dict)  # nodes that never came, and why
    _up_since_s: dict[str, float] = field(default_factory=dict)
    _refused: str = ""  # why the engine took no request for a node
    _refusals: int = 0  # in a row
    _acquire_at_s: float = 0.0  # not before: the last ones have failed

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
        self._note_failures(found.nodes)
        orders = self.client.post("/engine", self._report(found.nodes, "", found.ended))
        self._trouble = ""
        if self.wall_s() < self._acquire_at_s:
            orders["acquire"] = 0
        for each in orders["release"]:
            self.engine.release(each["node"], each["within_s"])
            self.tell(f"node {each['node']} given back")
        if orders["acquire"]:
            self._acquire(orders["acquire"])
            # The server is to know them before they join.
            self.client.post("/engine", self._report(self.engine.look().nodes, ""))

    def _acquire(self, count: int) -> None:
        """Ask for nodes; for a while not again if the engine takes no more requests."""
        try:
            for _ in range(count):
                self.tell(f"node {self.engine.acquire()} asked for")
                self._refused, self._refusals = "", 0
        except EngineUnavailable as error:
            self._refused, self._refusals = f"{error.what}: {error.because}", self._refusals + 1
            pause_s = _pause_s(self._refusals)
            self._acquire_at_s = self.wall_s() + pause_s
            self.tell(f"{self._refused}; next try in {pause_s:g} s")

    def _note_failures(self, nodes: tuple[EngineNode, ...]) -> None:
        """Ask for nodes less and less often while those that were asked for fail."""
        now_s = self.wall_s()
        for node in nodes:
            has_failed = node.state == "releasing" and bool(node.because)
            if has_failed and node.name not in self._failed:
                self._failed[node.name] = node.because
                pause_s = _pause_s(len(self._failed))
                self._acquire_at_s = now_s + pause_s
                self.tell(f"node {node.name} failed: {node.because}; next try in {pause_s:g} s")
                self._up_since_s = dict.fromkeys(self._up_since_s, math.inf)  # older ones
        up = [node.name for node in nodes if node.state == "up"]
        self._up_since_s = {name: self._up_since_s.get(name, now_s) for name in up}
        if any(now_s - since_s >= STEADY_S for since_s in self._up_since_s.values()):
            self._failed.clear()

    def give_back(self) -> None:
        """Move jobs away, release all nodes, and wait until they are gone."""
        begin_s, stopped_at_s = time.monotonic(), self.wall_s()
        while (waited_s := time.monotonic() - begin_s) < LEAVE_S:
            try:
                nodes = self.engine.look().nodes
            except EngineUnavailable as error:
                self._say(f"{error.what}: {error.because}")
                return
            if not nodes:
                return
            busy = self._busy_of(nodes, stopped_at_s) if waited_s < EMPTY_S else set()
            for node in nodes:
                if node.state != "releasing" and node.name not in busy:
                    self.engine.release(node.name, LEAVE_S)
            time.sleep(LOOK_EVERY_S / 10.0)

    def _busy_of(self, nodes: tuple[EngineNode, ...], at_s: float) -> set[str]:
        """Make the server stop the jobs of nodes; return the nodes that still have jobs.

        A job on several nodes is saved by one agent. The end of another agent would be a crash to
        it, and the step that it is at made again.
        """
        because = "the pool stops"
        leaving = tuple(
            node if node.state == "releasing" else replace(node, leaves_at_s=at_s, because=because)
            for node in nodes
        )
        try:
            self.client.post("/engine", self._report(leaving, ""))
            found = self.client.get("/nodes")["items"]
        except UserError:
            return set()  # agents save what they can by themselves
        return {n["name"] for n in found if n["is_up"] and not n["is_silent"] and n["jobs"]}

    def _report(
        self, nodes: tuple[EngineNode, ...], trouble: str, ended: tuple[str, ...] = ()
    ) -> Answer:
        return {
            "engine": self.name,
            "nodes_min": self.bounds.least,
            "nodes_max": self.bounds.most,
            "slots": self.bounds.gpus,
            "start_s": self.bounds.start_s,
            "idle_s": self.bounds.idle_s,
            "nodes": [self._told(node) for node in nodes],
            "ended": list(ended),
            "trouble": trouble[:NAMED_MAX],
            "notes": self._notes(nodes),
        }

    def _notes(self, nodes: tuple[EngineNode, ...]) -> list[str]:
        """Return why nodes leave or do not come; of those that have failed, the last one."""
        notes = {node.name: node.because for node in nodes if node.because}
        notes |= dict(list(self._failed.items())[-1:])
        said = [f"node {name}: {because}"[:NAMED_MAX] for name, because in notes.items()][:99]
        return [*said, self._refused[:NAMED_MAX]] if self._refused else said

    def _told(self, node: EngineNode) -> Answer:
        now_s = self.wall_s()
        return {
            "name": node.name,
            "state": node.state,
            "leaves_in_s": None if node.leaves_at_s is None else node.leaves_at_s - now_s,
            "expires_in_s": None if node.expires_at_s is None else node.expires_at_s - now_s,
            "because": node.because[:NAMED_MAX],
        }

    def _say(self, trouble: str) -> None:
        """Report a problem, once."""
        if trouble != self._trouble:
            self.tell(trouble)
        self._trouble = trouble

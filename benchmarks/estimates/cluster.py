"""Jobs on the nodes of a network: led as in a pool, and told which slots they have."""

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

from benchmarks.estimates.host import ATTEMPT
from benchmarks.estimates.network import ROOT, Network, Node
from benchmarks.estimates.relay import enter
from coddl.runtime.supervisor.job import Job
from coddl.runtime.supervisor.slots import HostAddress, Slot
from coddl.runtime.supervisor.supervisor import Supervisor
from coddl.runtime.wire import Message

SLOTS: Final = 2  # of a node
WAIT_S: Final = 120.0
LOOK_S: Final = 0.05
CHANGED: Final = ("started", "resized", "moved", "regrouped")
SCRIPT: Final = Path(__file__).with_name("train.py")

Times = dict[int, float]  # when each update was complete


class Host:
    """The process that runs workers on a node."""

    def __init__(self, node: Node, folder: Path, log: Any) -> None:
        words = ["-m", "benchmarks.estimates.host", node.name, node.address, str(folder)]
        self._process = subprocess.Popen(
            node.command("env", f"PYTHONPATH={ROOT}", sys.executable, *words),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,  # Ctrl-C is ours
        )
        self._node = node

    def address(self) -> HostAddress:
        """Wait for it; tell where it listens."""
        told = self._told()
        return HostAddress(self._node.name, self._node.address, told["port"], told["token"])

    def give(self, job: str) -> None:
        """Give all slots to a job."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{job}\n")
        self._process.stdin.flush()
        self._told()

    def close(self) -> None:
        """End it, and its workers."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _told(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the job host of {self._node.name} has ended")
        told: dict[str, Any] = json.loads(line)
        return told


class Cluster:
    """A job host on each node of a network."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.nodes = network.nodes
        self.folder = folder
        self.log = folder / "log"
        self._stack = contextlib.ExitStack()
        self.addresses: dict[str, HostAddress] = {}
        self._hosts: list[Host] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(self.log.open("a"))
            for node in self.nodes:
                self._hosts.append(Host(node, self.folder, log))
                stack.callback(self._hosts[-1].close)
            addresses = [host.address() for host in self._hosts]
            self.addresses = {each.node: each for each in addresses}
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def give(self, job: str) -> None:
        """Give all slots of all nodes to a job."""
        for host in self._hosts:
            host.give(job)

    def slots(self, on_nodes: Sequence[int]) -> list[Slot]:
        """Give so many slots of each node, the first ones of the first nodes."""
        return [
            Slot(SLOTS * index + number, node.name)
            for index, (node, count) in enumerate(zip(self.nodes, on_nodes, strict=False))
            for number in range(count)
        ]


class Training:
    """A job that trains a paced model, led from the first node; ends with its `with` block."""

    def __init__(self, cluster: Cluster, kind: str, updates: int) -> None:
        self._cluster = cluster
        self._times_path = cluster.folder / f"times-{kind}"
        self.events: list[Message] = []
        self._job = Job(
            name=kind,
            id=kind,
            script=SCRIPT,
            argv=(str(SCRIPT), str(self._times_path), kind, str(updates)),
            cwd=cluster.folder,
            env={},
            folder=cluster.folder / "checkpoints" / kind,
            attempt=ATTEMPT,
            checkpoint_every_s=3600.0,  # none is to be written meanwhile
        )
        lead = cluster.nodes[0]
        self._space = lead.space
        self._supervisor = Supervisor(self._job, self._hear, node=lead.name)
        self._thread = threading.Thread(target=self._run, name=f"lead of {kind}")
        self._code: int | None = None

    def __enter__(self) -> Self:
        self._cluster.give(self._job.id)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for _patience in range(2):  # the second time, at once
            self._supervisor.interrupt()
            self._thread.join(2.0)
        self._thread.join(WAIT_S)

    def place(self, *on_nodes: int) -> None:
        """Have it run with so many workers on each node, and wait until it does."""
        before = len(self.events)
        self._supervisor.assign(self._cluster.slots(on_nodes), self._cluster.addresses)

        def is_there() -> bool:
            changes = [each for each in self.events[before:] if each["is"] in CHANGED]
            return bool(changes) and changes[-1]["to"] == sum(on_nodes)

        self.wait(f"{sum(on_nodes)} workers", is_there)

    def wait(self, what: str, is_there: Callable[[], bool]) -> None:
        """Wait for something; raises SystemExit if the job ends, or it takes too long."""
        until_s = time.monotonic() + WAIT_S
        while not is_there():
            if not self._thread.is_alive() or time.monotonic() > until_s:
                told = [str(each) for each in self.events if each["is"] != "progress"]
                log = self._cluster.log.read_text().splitlines()
                raise SystemExit("\n".join([*told[-20:], *log[-30:], f"no {what}"]))
            time.sleep(LOOK_S)

    def times(self) -> Times:
        """Tell when each update was complete; the last line may be half written."""
        if not self._times_path.exists():
            return {}
        *whole, _ = self._times_path.read_text().split("\n")
        return {int(step): float(at_s) for step, at_s in (line.split() for line in whole)}

    def profile(self) -> Message | None:
        """Give the newest profile that was told, or None."""
        told = [each for each in self.events if each["is"] == "profile"]
        return told[-1]["profile"] if told else None

    def _run(self) -> None:
        enter(self._space)
        self._code = self._supervisor.run()

    def _hear(self, event: Message) -> None:
        self.events.append(event)

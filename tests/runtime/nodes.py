"""Nodes of a pool on one machine: job hosts at several loopback addresses, leads in threads."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coddl.runtime.supervisor.job import Job
from coddl.runtime.supervisor.job_host_server import JobHostServer
from coddl.runtime.supervisor.slots import (
    HostAddress,
    JobEnvironment,
    Parked,
    Slot,
    SlotProcess,
)
from coddl.runtime.supervisor.supervisor import Supervisor
from coddl.runtime.wire import Message
from tests.runtime.harness import DEADLINE_S, lives, wait_until

JOB = "17"
SLOTS_PER_NODE = 4


@dataclass
class FakeAgent:
    """A node's agent, as far as its job hosts need one."""

    environments: dict[str, JobEnvironment] = field(default_factory=dict)
    owners: dict[int, tuple[str, int]] = field(default_factory=dict)
    held: Mapping[int, SlotProcess] = field(default_factory=dict)
    parked: Parked = field(default_factory=dict)
    keeps: bool = True  # parked workers
    shares: bool = False  # its slots, by turns
    turn_checks: int = 0
    reports: int = 0
    logs: list[tuple[str, int, int | None, str, str]] = field(default_factory=list)
    warm: list[tuple[str, Message]] = field(default_factory=list)

    def environment_of(self, job: str) -> JobEnvironment | None:
        return self.environments.get(job)

    def owner_of(self, slot: int) -> tuple[str, int] | None:
        return self.owners.get(slot)

    def expects(self, job: str) -> bool:
        return any(owner == job for owner, _ in self.owners.values())

    def keeps_parked(self, job: str) -> bool:  # noqa: ARG002 - any
        return self.keeps

    def takes_turns(self, job: str, slot: int) -> bool:  # noqa: ARG002 - all or none
        self.turn_checks += 1
        return self.shares

    def on_holding(self, held: Mapping[int, SlotProcess], parked: Parked) -> None:
        self.held, self.parked = dict(held), dict(parked)
        self.reports += 1

    def on_log(self, job: str, worker: int, rank: int | None, stream: str, text: str) -> None:
        self.logs.append((job, worker, rank, stream, text))

    def on_warm(self, python: str, about: Message) -> None:
        self.warm.append((python, about))

    def printed(self) -> str:
        return "\n".join(text for *_, text in self.logs)


class Node:
    """A node with four slots, at an address of its own."""

    def __init__(self, index: int, environment: JobEnvironment, **options: Any) -> None:
        self.name = f"node-{index}"
        self.slots = range(index * SLOTS_PER_NODE, (index + 1) * SLOTS_PER_NODE)
        self.agent = FakeAgent({JOB: environment})
        self.token = f"secret-{index}-{time.monotonic_ns()}"
        stash = f"test-{os.getpid()}-{self.name}"
        host = f"127.0.0.{index + 1}"
        self.job_host_server = JobHostServer(stash, self.token, self.agent, host=host, **options)
        self.job_host_server.start()

    @property
    def address(self) -> HostAddress:
        return HostAddress(self.name, *self.job_host_server.address, self.token)

    def first_slots(self, count: int) -> list[Slot]:
        return [Slot(slot, self.name) for slot in self.slots[:count]]

    def give(self, attempt: int, job: str = JOB) -> None:
        """Give all slots to an attempt of a job."""
        self.agent.owners = dict.fromkeys(self.slots, (job, attempt))
        self.job_host_server.look_again()

    def close(self) -> None:
        parked = [each for processes in self.agent.parked.values() for each in processes]
        processes = [*self.agent.held.values(), *parked]
        pids = [each.pid for each in processes if each.pid is not None]
        self.job_host_server.close()
        assert not self.job_host_server.is_alive
        assert not [pid for pid in pids if lives(pid)]


class Lead:
    """A job's supervisor in a thread, as an agent hosts it."""

    def __init__(self, node: Node, job: Job, *, adopt: bool = False) -> None:
        self.job = job
        self.events: list[Message] = []
        self.code: int | None = None
        self._news = threading.Condition()
        self.supervisor = Supervisor(job, self._hear, node=node.name, adopt=adopt)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.code = self.supervisor.run()

    def _hear(self, event: Message) -> None:
        with self._news:
            self.events.append(event)
            self._news.notify_all()

    def wait(self, kind: str, when: Callable[[Message], bool] = lambda _event: True) -> Message:
        """Give the first event of a kind that fits, waiting for it."""
        until_s = time.monotonic() + DEADLINE_S
        with self._news:
            while True:
                for event in self.events:
                    if event["is"] == kind and when(event):
                        return event
                assert self._thread.is_alive(), f"it ended without {kind}:\n{self.story()}"
                assert time.monotonic() < until_s, f"no {kind}:\n{self.story()}"
                self._news.wait(0.5)

    def wait_size(self, size: int) -> Message:
        """Wait for a change to a size."""
        kinds = ("started", "restarted", "resumed", "resized", "moved", "regrouped")
        until_s = time.monotonic() + DEADLINE_S
        with self._news:
            while True:
                changes = [event for event in self.events if event["is"] in kinds]
                if changes and changes[-1]["to"] == size:
                    return changes[-1]
                assert self._thread.is_alive(), f"it ended:\n{self.story()}"
                assert time.monotonic() < until_s, f"never {size}:\n{self.story()}"
                self._news.wait(0.5)

    def wait_step(self, step: int) -> None:
        self.wait("progress", lambda event: event["step"] >= step)

    def told(self, kind: str) -> list[Message]:
        return [event for event in self.events if event["is"] == kind]

    def end(self) -> int:
        """Wait for its end; give the exit code."""
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), self.story()
        assert self.code is not None, self.story()
        return self.code

    def finish(self) -> None:
        """Wait for its end, which must be good; nothing more is done to it, so it may hurry."""
        (self.job.cwd / "hurry").touch()
        assert self.end() == 0, self.story()

    def story(self) -> str:
        told = [event for event in self.events if event["is"] not in ("progress", "ended")]
        return "\n".join(f"{event}" for event in told[-40:])

    def stop(self) -> None:
        self.supervisor.interrupt()
        self._thread.join(2)
        self.supervisor.interrupt()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


class Pool:
    """Nodes and leads of one job; all of it is gone when the pool is closed."""

    def __init__(
        self, environment: JobEnvironment, argv: Sequence[str], nodes: int = 2, **options: Any
    ) -> None:
        self.environment = environment
        self._stack = contextlib.ExitStack()
        self.nodes = [Node(index, environment, **options) for index in range(nodes)]
        for node in self.nodes:
            self._stack.callback(node.close)
        self._job = Job(
            name=JOB,
            id=JOB,
            script=Path(argv[0]),
            argv=tuple(argv),
            cwd=environment.cwd,
            env={},
            folder=environment.folder,
        )

    def reopen(self, index: int) -> Node:
        """Start a node anew that was closed: another port, another token."""
        node = self.nodes[index] = Node(index, self.environment)
        self._stack.callback(node.close)
        return node

    def addresses(self) -> dict[str, HostAddress]:
        return {node.name: node.address for node in self.nodes}

    def job(self, **fields: Any) -> Job:
        return replace(self._job, **fields)

    def lead(self, node: Node | int = 0, *, adopt: bool = False, **fields: Any) -> Lead:
        """Start a lead on a node, which has all slots of the pool."""
        job = self.job(**fields)
        for each in self.nodes:
            each.give(job.attempt)
        lead = Lead(self.nodes[node] if isinstance(node, int) else node, job, adopt=adopt)
        self._stack.callback(lead.stop)
        return lead

    def first_slots(self, *counts: int) -> list[Slot]:
        """Give so many slots of each node."""
        return [s for node, n in zip(self.nodes, counts, strict=False) for s in node.first_slots(n)]

    def assign(self, lead: Lead, *counts: int) -> None:
        lead.supervisor.assign(self.first_slots(*counts), self.addresses())

    def printed(self) -> str:
        return "\n".join(node.agent.printed() for node in self.nodes)

    def wait_empty(self) -> None:
        """Wait until nothing lives on any node."""
        wait_until(lambda: not any(node.agent.held for node in self.nodes), "empty nodes")

    def close(self) -> None:
        self._stack.close()


def environment_in(folder: Path, pythonpath: str, **env: str) -> JobEnvironment:
    """Give a job's environment: this interpreter, and little else."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return JobEnvironment(
        python=sys.executable,
        cwd=folder,
        env={**kept, "PYTHONPATH": pythonpath, **env},
        folder=folder / "checkpoints",
    )

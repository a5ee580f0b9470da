"""What an agent does with orders, its processes real and its line to the server of paper."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, cast

from coddl.agent.command_runner import CommandRunner
from coddl.agent.job_directories import JobDirectories
from coddl.agent.job_environments import JobEnvironments
from coddl.agent.logs import LogSpool
from coddl.agent.node_agent import NodeAgent, NodeInfo
from coddl.agent.orphans import OrphanProcesses
from coddl.agent.run_reporter import Fact
from coddl.agent.slot_table import AgentBridge
from coddl.api.wire import Holding, RunProgress
from coddl.core.pool.orders import Orders
from coddl.core.pool.records import Device, RunEnded, RunId, RunStepped, Trouble
from coddl.core.pool.spec import JobSpec, Launch
from coddl.runtime.supervisor.job_host_server import JobHostServer
from coddl.runtime.supervisor.slots import HostAddress, SlotProcess
from tests.agent.pool import lead, orders

PATIENCE_S = 60.0
TROUBLE = Trouble("it was ended", "b", "t")
WAITS = (sys.executable, "-c", "import time; time.sleep(600)")


class Sink:
    """Remembers what the server would hear."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.held: dict[int, RunId] = {}
        self.runs: set[RunId] = set()
        self.others: Mapping[int, str] = {}

    def report(self, fact: Fact) -> None:
        self.facts.append(fact)

    def hold(self, holding: Holding) -> None:
        self.held, self.runs = holding.slots, {*(holding.runs or ())}
        self.others, self.parked = holding.others, holding.parked

    def progress(self, progress: RunProgress) -> None:
        raise AssertionError(progress)


class FakeJobHosts:
    """Job hosts without workers: they report what they are told to."""

    is_alive = True

    def __init__(self) -> None:
        self.held: dict[int, SlotProcess] = {}
        self.parked: dict[str, list[SlotProcess]] = {}
        self.hear: Callable[..., None] = lambda *_: None

    def look_again(self) -> None:
        self.hear(self.held, self.parked)

    def kill(self, _job: str) -> None: ...


class Harness:
    """A node whose jobs are commands."""

    def __init__(self, folder: Path) -> None:
        self.sink, self.job_hosts = Sink(), FakeJobHosts()
        self.log_spool = LogSpool(folder / "logs")
        self.bridge = AgentBridge(
            self.log_spool, lambda *said: self.node.hear_holding(*said), print
        )
        self.job_hosts.hear = self.bridge.on_holding
        directories = JobDirectories(folder / "jobs", folder / "code", no_code)
        self.environments = JobEnvironments(
            directories, {}, "mark", {}, lambda: self.node.on_environment()
        )
        self.node = NodeAgent(
            NodeInfo("n0", HostAddress("n0", "127.0.0.1", 1, "x"), (Device(0, "h200", "GPU-0"),)),
            self.environments,
            self.bridge,
            cast(JobHostServer, self.job_hosts),
            sink=self.sink,
            log_spool=self.log_spool,
            orphans=OrphanProcesses(folder),
            runner_of=CommandRunner,
        )

    def order(self, version: int, **fields: Any) -> Orders:
        """Order a command on slot 0."""
        spec = JobSpec(name="job", launch=Launch(argv=WAITS), tier="opaque")
        told = orders(version, [lead(1, [0], **fields)], {1: spec})
        self.node.take(told, ())
        return told

    async def wait(self, condition: Callable[[], object], what: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.005)
        assert condition(), what

    async def runs(self) -> None:
        started = RunStepped(1, 1, 0)
        await self.wait(lambda: started in self.sink.facts, "a start")

    async def settled(self) -> None:
        """Wait until the job's home stands, and what follows from that has followed."""
        await self.wait(lambda: 1 in self.environments.ready, "its home")
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def no_code(_code: str, _to: IO[bytes]) -> None:
    raise AssertionError


@asynccontextmanager
async def harness_in(folder: Path) -> AsyncIterator[Harness]:
    harness = Harness(folder)
    try:
        yield harness
    finally:
        harness.node.end_all(TROUBLE)
        async with asyncio.timeout(PATIENCE_S):
            await harness.node.idle()
        harness.environments.close()
        harness.log_spool.close()


def played(folder: Path, story: Callable[[Harness], Awaitable[None]]) -> None:
    async def play() -> None:
        async with harness_in(folder) as harness:
            await story(harness)

    asyncio.run(play())


def test_who_else_uses_a_gpu_is_told(tmp_path: Path) -> None:
    async def story(harness: Harness) -> None:
        harness.job_hosts.held = {0: SlotProcess("9", 1, 1, "GPU-0")}
        harness.job_hosts.look_again()
        await harness.wait(lambda: harness.node.gpus() == {"GPU-0"}, "a worker on the GPU")
        harness.node.hear_others({0: "process 7 (x)"})
        await harness.wait(lambda: harness.sink.others == {0: "process 7 (x)"}, "word of others")

    played(tmp_path, story)


def test_a_run_whose_folder_the_system_refuses_is_lost_and_says_so(tmp_path: Path) -> None:
    async def story(harness: Harness) -> None:
        (tmp_path / "jobs").mkdir()
        (tmp_path / "jobs" / "1").touch()  # no folder can be made here
        harness.order(1)
        await harness.wait(lambda: harness.sink.facts, "its end")
        (ended,) = harness.sink.facts
        assert isinstance(ended, RunEnded)
        assert (ended.outcome, ended.refused) == ("lost", True)

    played(tmp_path, story)


def test_a_command_waits_until_nothing_lives_on_its_slot(tmp_path: Path) -> None:
    async def story(harness: Harness) -> None:
        harness.job_hosts.held = {0: SlotProcess("9", 1, 1)}
        harness.job_hosts.look_again()
        await harness.wait(lambda: harness.sink.held == {0: RunId(9, 1)}, "a worker there")
        harness.order(1)
        await harness.settled()
        assert not harness.node.runners
        harness.job_hosts.held = {}
        harness.job_hosts.look_again()
        await harness.runs()

    played(tmp_path, story)


def test_no_worker_starts_where_a_command_lives(tmp_path: Path) -> None:
    async def story(harness: Harness) -> None:
        harness.order(1)
        await harness.runs()
        assert harness.bridge.table.owners == {0: RunId(1, 1)}
        assert harness.bridge.owner_of(0) is None
        harness.node.take(Orders(2, {0: (RunId(2, 1),)}, (), {}), ())
        await harness.wait(lambda: harness.bridge.owner_of(0) == ("2", 1), "an empty slot")
        await harness.wait(lambda: not harness.sink.held, "the same, told")

    played(tmp_path, story)


def test_a_run_that_was_ended_with_the_lease_is_told_as_lost_and_not_begun_again(
    tmp_path: Path,
) -> None:
    async def story(harness: Harness) -> None:
        told = harness.order(1)
        await harness.runs()
        harness.node.end_all(TROUBLE)
        harness.node.take(told, ())  # by a server that has not noticed yet
        await harness.settled()
        assert not harness.node.runners
        assert harness.sink.facts[-1] == RunEnded(1, 1, "lost", trouble=TROUBLE)
        harness.order(2, attempt=2)
        await harness.wait(lambda: harness.node.runners, "the next attempt")

    played(tmp_path, story)


def test_an_agent_that_is_leaving_begins_nothing(tmp_path: Path) -> None:
    async def story(harness: Harness) -> None:
        harness.node.leave("it stops")
        harness.order(1)
        await harness.settled()
        assert not harness.node.runners
        assert not harness.sink.facts
        assert not harness.node.runs, "so the server places it elsewhere"

    played(tmp_path, story)


def test_a_run_is_listed_from_its_orders_until_its_end_is_acknowledged(tmp_path: Path) -> None:
    async def story(harness: Harness) -> None:
        run = RunId(1, 1)
        harness.order(1)
        assert harness.node.runs == {run}, "its home is not ready yet"
        await harness.runs()
        assert harness.node.runs == {run}
        harness.node.end(1, TROUBLE)
        await harness.wait(lambda: not harness.node.runners, "its end")
        harness.node.look()
        assert harness.sink.runs == {run}, "the server has not acknowledged that it ended"
        harness.node.on_safe(harness.sink.facts[-1])
        harness.node.look()
        assert harness.sink.runs == set()

    played(tmp_path, story)


def test_a_run_that_has_ended_without_a_word_is_not_listed(tmp_path: Path) -> None:
    async def story(harness: Harness) -> None:
        harness.order(1)
        await harness.runs()
        (runner,) = harness.node.runners
        told = len(harness.sink.facts)
        runner.release()  # behind the agent's back
        await harness.wait(lambda: not harness.node.runners, "its end")
        harness.node.look()
        assert harness.sink.facts[told:] == []
        assert harness.sink.runs == set()

    played(tmp_path, story)

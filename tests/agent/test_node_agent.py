"""What an agent does with orders, its processes real and its line to the server of paper."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Set
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, cast

from coddl.agent.job_directories import JobDirectories
from coddl.agent.job_environments import JobEnvironments
from coddl.agent.logs import LogSpool
from coddl.agent.node_agent import NodeAgent, NodeInfo
from coddl.agent.orphans import OrphanProcesses
from coddl.agent.run_reporter import Fact
from coddl.agent.slot_table import AgentBridge
from coddl.api.wire import RunProgress
from coddl.core.pool.orders import Orders
from coddl.core.pool.records import Device, RunEnded, RunId, RunStepped, Trouble
from coddl.core.pool.spec import JobSpec, Launch
from coddl.runtime.supervisor.outposts import Outposts
from coddl.runtime.supervisor.seats import Holding, Post
from tests.agent.pool import lead, orders

PATIENCE_S = 60.0
TROUBLE = Trouble("it was ended", "b", "t")
WAITS = (sys.executable, "-c", "import time; time.sleep(600)")


class Speaker:
    """Remembers what the server would hear."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.held: dict[int, RunId] = {}
        self.runs: set[RunId] = set()
        self.others: Mapping[int, str] = {}

    def report(self, fact: Fact) -> None:
        self.facts.append(fact)

    def hold(
        self,
        version: int,  # noqa: ARG002
        slots: Mapping[int, RunId],
        runs: Set[RunId],
        others: Mapping[int, str],
    ) -> None:
        self.held, self.runs, self.others = dict(slots), {*runs}, others

    def progress(self, progress: RunProgress) -> None:
        raise AssertionError(progress)


class NoOutposts:
    """Outposts without workers: they say what they are told to."""

    is_alive = True

    def __init__(self) -> None:
        self.held: dict[int, Holding] = {}
        self.hear: Callable[[dict[int, Holding]], None] = lambda _held: None

    def look_again(self) -> None:
        self.hear(self.held)

    def kill(self, _job: str) -> None: ...


class House:
    """A node whose jobs are commands."""

    def __init__(self, folder: Path) -> None:
        self.sink, self.outposts = Speaker(), NoOutposts()
        self.log_spool = LogSpool(folder / "logs")
        self.bridge = AgentBridge(
            self.log_spool, lambda *said: self.node.hear_holding(*said), print
        )
        self.outposts.hear = self.bridge.on_holding
        directories = JobDirectories(folder / "jobs", folder / "code", no_code)
        self.environments = JobEnvironments(
            directories, {}, "mark", {}, lambda: self.node.on_environment()
        )
        self.node = NodeAgent(
            NodeInfo("n0", Post("n0", "127.0.0.1", 1, "x"), (Device(0, "h200", "GPU-0"),)),
            self.environments,
            self.bridge,
            cast(Outposts, self.outposts),
            sink=self.sink,
            log_spool=self.log_spool,
            orphans=OrphanProcesses(folder),
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
async def house_in(folder: Path) -> AsyncIterator[House]:
    house = House(folder)
    try:
        yield house
    finally:
        house.node.end_all(TROUBLE)
        async with asyncio.timeout(PATIENCE_S):
            await house.node.idle()
        house.environments.close()
        house.log_spool.close()


def played(folder: Path, story: Callable[[House], Awaitable[None]]) -> None:
    async def play() -> None:
        async with house_in(folder) as house:
            await story(house)

    asyncio.run(play())


def test_who_else_uses_a_gpu_is_told(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        house.outposts.held = {0: Holding("9", 1, 1, "GPU-0")}
        house.outposts.look_again()
        await house.wait(lambda: house.node.gpus() == {"GPU-0"}, "a worker on the GPU")
        house.node.hear_others({0: "process 7 (x)"})
        await house.wait(lambda: house.sink.others == {0: "process 7 (x)"}, "word of others")

    played(tmp_path, story)


def test_a_run_whose_folder_the_system_refuses_is_lost_and_says_so(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        (tmp_path / "jobs").mkdir()
        (tmp_path / "jobs" / "1").touch()  # no folder can be made here
        house.order(1)
        await house.wait(lambda: house.sink.facts, "its end")
        (ended,) = house.sink.facts
        assert isinstance(ended, RunEnded)
        assert (ended.outcome, ended.refused) == ("lost", True)

    played(tmp_path, story)


def test_a_command_waits_until_nothing_lives_on_its_slot(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        house.outposts.held = {0: Holding("9", 1, 1)}
        house.outposts.look_again()
        await house.wait(lambda: house.sink.held == {0: RunId(9, 1)}, "a worker there")
        house.order(1)
        await house.settled()
        assert not house.node.runners
        house.outposts.held = {}
        house.outposts.look_again()
        await house.runs()

    played(tmp_path, story)


def test_no_worker_starts_where_a_command_lives(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        house.order(1)
        await house.runs()
        assert house.bridge.table.owners == {0: RunId(1, 1)}
        assert house.bridge.owner_of(0) is None
        house.node.take(Orders(2, {0: RunId(2, 1)}, (), {}), ())
        await house.wait(lambda: house.bridge.owner_of(0) == ("2", 1), "an empty slot")
        await house.wait(lambda: not house.sink.held, "the same, told")

    played(tmp_path, story)


def test_a_run_that_was_ended_with_the_lease_is_told_as_lost_and_not_begun_again(
    tmp_path: Path,
) -> None:
    async def story(house: House) -> None:
        told = house.order(1)
        await house.runs()
        house.node.end_all(TROUBLE)
        house.node.take(told, ())  # by a server that has not noticed yet
        await house.settled()
        assert not house.node.runners
        assert house.sink.facts[-1] == RunEnded(1, 1, "lost", trouble=TROUBLE)
        house.order(2, attempt=2)
        await house.wait(lambda: house.node.runners, "the next attempt")

    played(tmp_path, story)


def test_an_agent_that_is_leaving_begins_nothing(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        house.node.leave("it stops")
        house.order(1)
        await house.settled()
        assert not house.node.runners
        assert not house.sink.facts
        assert not house.node.runs, "so the server places it elsewhere"

    played(tmp_path, story)


def test_a_run_is_listed_from_its_orders_until_its_end_is_acknowledged(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        run = RunId(1, 1)
        house.order(1)
        assert house.node.runs == {run}, "its home is not ready yet"
        await house.runs()
        assert house.node.runs == {run}
        house.node.end(1, TROUBLE)
        await house.wait(lambda: not house.node.runners, "its end")
        house.node.look()
        assert house.sink.runs == {run}, "the server has not acknowledged that it ended"
        house.node.on_safe(house.sink.facts[-1])
        house.node.look()
        assert house.sink.runs == set()

    played(tmp_path, story)


def test_a_run_that_has_ended_without_a_word_is_not_listed(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        house.order(1)
        await house.runs()
        (runner,) = house.node.runners
        told = len(house.sink.facts)
        runner.release()  # behind the agent's back
        await house.wait(lambda: not house.node.runners, "its end")
        house.node.look()
        assert house.sink.facts[told:] == []
        assert house.sink.runs == set()

    played(tmp_path, story)

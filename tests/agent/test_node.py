"""What an agent does with orders, its processes real and its line to the server of paper."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Set
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, cast

from coddl.agent.account import Fact
from coddl.agent.home import Homes
from coddl.agent.household import Household
from coddl.agent.landlord import Rooms
from coddl.agent.leftovers import Leftovers
from coddl.agent.logs import LogBook
from coddl.agent.node import Node, Place
from coddl.api.wire import RunProgress
from coddl.core.pool.orders import Orders
from coddl.core.pool.records import Claim, Device, RunEnded, RunStepped, Trouble
from coddl.core.pool.spec import JobSpec, Launch
from coddl.runtime.supervisor.job_host_server import JobHostServer
from coddl.runtime.supervisor.slots import HostAddress, SlotProcess
from tests.agent.pool import lead, orders

PATIENCE_S = 60.0
TROUBLE = Trouble("it was ended", "b", "t")
WAITS = (sys.executable, "-c", "import time; time.sleep(600)")


class Speaker:
    """Remembers what the server would hear."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.held: dict[int, Claim] = {}
        self.runs: set[Claim] = set()
        self.others: Mapping[int, str] = {}

    def report(self, fact: Fact) -> None:
        self.facts.append(fact)

    def hold(
        self,
        version: int,  # noqa: ARG002
        slots: Mapping[int, Claim],
        runs: Set[Claim],
        others: Mapping[int, str],
    ) -> None:
        self.held, self.runs, self.others = dict(slots), {*runs}, others

    def progress(self, progress: RunProgress) -> None:
        raise AssertionError(progress)


class NoOutposts:
    """Outposts without workers: they say what they are told to."""

    is_alive = True

    def __init__(self) -> None:
        self.held: dict[int, SlotProcess] = {}
        self.hear: Callable[[dict[int, SlotProcess]], None] = lambda _held: None

    def look_again(self) -> None:
        self.hear(self.held)

    def kill(self, _job: str) -> None: ...


class House:
    """A node whose jobs are commands."""

    def __init__(self, folder: Path) -> None:
        self.speaker, self.outposts = Speaker(), NoOutposts()
        self.logbook = LogBook(folder / "logs")
        self.rooms = Rooms(self.logbook, lambda *said: self.node.hear_holding(*said), print)
        self.outposts.hear = self.rooms.on_holding
        homes = Homes(folder / "jobs", folder / "code", no_code)
        self.household = Household(homes, {}, "mark", {}, lambda: self.node.on_home())
        self.node = Node(
            Place("n0", HostAddress("n0", "127.0.0.1", 1, "x"), (Device(0, "h200", "GPU-0"),)),
            self.household,
            self.rooms,
            cast(JobHostServer, self.outposts),
            speaker=self.speaker,
            logbook=self.logbook,
            leftovers=Leftovers(folder),
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
        await self.wait(lambda: started in self.speaker.facts, "a start")

    async def settled(self) -> None:
        """Wait until the job's home stands, and what follows from that has followed."""
        await self.wait(lambda: 1 in self.household.ready, "its home")
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
        house.household.close()
        house.logbook.close()


def played(folder: Path, story: Callable[[House], Awaitable[None]]) -> None:
    async def play() -> None:
        async with house_in(folder) as house:
            await story(house)

    asyncio.run(play())


def test_who_else_uses_a_gpu_is_told(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        house.outposts.held = {0: SlotProcess("9", 1, 1, "GPU-0")}
        house.outposts.look_again()
        await house.wait(lambda: house.node.gpus() == {"GPU-0"}, "a worker on the GPU")
        house.node.hear_others({0: "process 7 (x)"})
        await house.wait(lambda: house.speaker.others == {0: "process 7 (x)"}, "word of others")

    played(tmp_path, story)


def test_a_run_whose_folder_the_system_refuses_is_lost_and_says_so(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        (tmp_path / "jobs").mkdir()
        (tmp_path / "jobs" / "1").touch()  # no folder can be made here
        house.order(1)
        await house.wait(lambda: house.speaker.facts, "its end")
        (ended,) = house.speaker.facts
        assert isinstance(ended, RunEnded)
        assert (ended.outcome, ended.refused) == ("lost", True)

    played(tmp_path, story)


def test_a_command_waits_until_nothing_lives_on_its_slot(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        house.outposts.held = {0: SlotProcess("9", 1, 1)}
        house.outposts.look_again()
        await house.wait(lambda: house.speaker.held == {0: Claim(9, 1)}, "a worker there")
        house.order(1)
        await house.settled()
        assert not house.node.leads
        house.outposts.held = {}
        house.outposts.look_again()
        await house.runs()

    played(tmp_path, story)


def test_no_worker_starts_where_a_command_lives(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        house.order(1)
        await house.runs()
        assert house.rooms.table.seats == {0: Claim(1, 1)}
        assert house.rooms.owner_of(0) is None
        house.node.take(Orders(2, {0: Claim(2, 1)}, (), {}), ())
        await house.wait(lambda: house.rooms.owner_of(0) == ("2", 1), "an empty slot")
        await house.wait(lambda: not house.speaker.held, "the same, told")

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
        assert not house.node.leads
        assert house.speaker.facts[-1] == RunEnded(1, 1, "lost", trouble=TROUBLE)
        house.order(2, attempt=2)
        await house.wait(lambda: house.node.leads, "the next attempt")

    played(tmp_path, story)


def test_an_agent_that_is_leaving_begins_nothing(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        house.node.leave("it stops")
        house.order(1)
        await house.settled()
        assert not house.node.leads
        assert not house.speaker.facts
        assert not house.node.runs, "so the server places it elsewhere"

    played(tmp_path, story)


def test_a_run_is_listed_from_its_orders_until_its_end_is_acknowledged(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        run = Claim(1, 1)
        house.order(1)
        assert house.node.runs == {run}, "its home is not ready yet"
        await house.runs()
        assert house.node.runs == {run}
        house.node.end(1, TROUBLE)
        await house.wait(lambda: not house.node.leads, "its end")
        house.node.look()
        assert house.speaker.runs == {run}, "the server has not acknowledged that it ended"
        house.node.on_safe(house.speaker.facts[-1])
        house.node.look()
        assert house.speaker.runs == set()

    played(tmp_path, story)


def test_a_run_that_has_ended_without_a_word_is_not_listed(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        house.order(1)
        await house.runs()
        (led,) = house.node.leads
        told = len(house.speaker.facts)
        led.drop()  # behind the agent's back
        await house.wait(lambda: not house.node.leads, "its end")
        house.node.look()
        assert house.speaker.facts[told:] == []
        assert house.speaker.runs == set()

    played(tmp_path, story)

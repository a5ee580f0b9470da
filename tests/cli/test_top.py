"""`coddl top` as its users have it: its program against a real server, and in a terminal."""

import asyncio
import contextlib
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from coddl.api.client import Client, ServerAddress
from coddl.cli.top.app import TopApp
from coddl.cli.top.job_list import JobList
from tests.cli.conftest import Coddl
from tests.cli.recorded import JOB, NODE, NOW_S, WAITING
from tests.cli.stub_pool import TOKEN as STUB_TOKEN
from tests.cli.stub_pool import StubPool
from tests.runtime.harness import ROOT
from tests.server.harness import TOKEN, LivePool

SIZE = (80, 24)
DEADLINE_S = 150.0
POOL = {
    "policy": "afs-p", "slots_used": 2, "slots_total": 2, "nodes": 1, "nodes_up": 1,
    "jobs": {"RUNNING": 1, "PENDING": 1}, "now_s": NOW_S, "time_scale": 1.0,
}  # fmt: skip
TIMELINE = {
    "since_s": NOW_S - 600, "until_s": NOW_S, "truncated": False,
    "gpus": [{"at_s": NOW_S - 600, "gpus": 2}],
    "spans": [{"job": 12, "name": "bert", "gpus": 2, "from_s": NOW_S - 60, "to_s": None}],
}  # fmt: skip
CHANGE = {"job": 12, "name": "bert", "gpus_before": 0, "gpus": 2, "reason": "it is new"}
DECISION = {
    "number": 8, "at_s": NOW_S - 60, "policy": "afs-p", "cause": "bert submitted",
    "changes": [CHANGE], "waiting": 1, "trouble": None,
}  # fmt: skip

Top = Pilot[None]


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LivePool]:
    """Give a real server with a node of two slots, a job that has both, and one that waits."""
    with LivePool(tmp_path / "server") as found:
        found.joined("n1", slots=2)
        found.submit(name="bert", gpus=2)
        found.submit(name="vit", gpus=2)
        yield found


@pytest.fixture
def reading(pool: StubPool) -> StubPool:
    """Be a server that lets its users read."""
    pool.will("GET", "/access", {"access": "read"})
    pool.will("GET", "/pool", POOL)
    pool.will("GET", "/nodes", {"items": [NODE]})
    pool.will("GET", "/jobs", {"items": [JOB, WAITING], "next": None})
    pool.will("GET", "/timeline", TIMELINE)
    pool.will("GET", "/decisions", {"items": [DECISION], "next": None})
    return pool


def client_of(live: LivePool) -> Client:
    return Client(ServerAddress(live.url, TOKEN), return_s=0.0)


def client_of_stub(stub: StubPool) -> Callable[[], Client]:
    return lambda: Client(ServerAddress(stub.url, STUB_TOKEN))


@contextlib.asynccontextmanager
async def shown(connect: Callable[[], Client], size: tuple[int, int] = SIZE) -> AsyncIterator[Top]:
    """Run the program without a terminal, until it shows jobs."""
    async with TopApp(connect).run_test(size=size, notifications=True) as top:
        await sees(top, "SAMPLES/S")
        yield top


def text_of(top: Top) -> str:
    """Give what is on the screen."""
    width, height = top.app.size
    strips = top.app.screen._compositor.render_strips()
    assert len(strips) == height
    lines = ["".join(segment.text for segment in strip) for strip in strips]
    assert all(len(line) <= width for line in lines)
    return "\n".join(lines)


async def sees(top: Top, *words: str, no: str = "") -> str:
    """Wait until words are on the screen, and another is not; give all of it."""
    until_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < until_s:
        await top.pause(0.02)
        text = text_of(top)
        if all(word in text for word in words) and not (no and no in text):
            return text
    raise AssertionError(f"not seen: {words}, or still seen: {no!r}\n{text}")


def test_a_pool_is_shown_at_a_glance(live: LivePool) -> None:
    async def use() -> None:
        async with shown(lambda: client_of(live)) as top:
            text = await sees(top, "bert: 0 → 2 CPU slots (bert submitted)")
            first, *rest = text.splitlines()
            assert first.split("  ")[1:4] == [
                "CPU slots 2/2",
                "nodes 1/1 up",
                "jobs 1 running, 1 waiting",
            ]
            assert any(line.startswith("n1 aa") for line in rest)
            assert any(line.startswith("a  1   bert  STARTING  2/2") for line in rest)
            assert any(line.startswith("   2   vit   PENDING   0/2") for line in rest)
            await sees(top, "Details")  # the keys, which follow the selection
            assert "q Quit" in rest[-1]
            live.submit(name="gpt", gpus=1)
            await sees(top, "   3   gpt   PENDING   0/1", "1 running, 2 waiting")

    asyncio.run(use())


def test_jobs_are_selected_sorted_and_filtered(live: LivePool) -> None:
    async def use() -> None:
        async with shown(lambda: client_of(live)) as top:
            await sees(top, "bert: 2 of 2 CPU slots")
            await top.press("down")
            await sees(top, "jobs 2/2", "vit: CoolDown: 2 CPU slots")
            await top.press("S")
            assert (await sees(top, "by ID, reversed", "jobs 1/2")).index(" vit ") > 0
            assert top.app.screen.query_one(JobList).selected == 2
            await top.press("slash", *"ber", "enter")
            await sees(top, "jobs 1/1", 'filter "ber"', no=" vit ")
            await top.press("escape")
            await sees(top, "jobs", " vit ", no="filter")
            await top.press("slash", *"none", "enter")
            await sees(top, "no job matches the filter", no="Cancel")

    asyncio.run(use())


def test_a_job_is_shown_with_its_reason_history_and_output(live: LivePool) -> None:
    async def use() -> None:
        async with shown(lambda: client_of(live), (100, 50)) as top:
            await top.press("enter")
            text = await sees(top, "bert (job 1)  STARTING", "history", "output, the last lines")
            assert "2 of 2 CPU slots (bert submitted)" in text
            assert 'job 1 "bert" submitted by' in text
            assert "nothing yet" in text
            await top.press("escape")
            await sees(top, "SAMPLES/S")

    asyncio.run(use())


def test_a_job_is_changed_after_a_yes_and_not_after_a_no(live: LivePool) -> None:
    async def use() -> None:
        async with shown(lambda: client_of(live)) as top:
            for no in ("n", "escape", "enter"):
                await top.press("c")
                await sees(top, "Cancel bert (job 1)?", "without saving its state")
                await top.press(no)
                await sees(top, "SAMPLES/S", no="Cancel bert")
            assert live.job(1)["state"] == "STARTING"
            await top.press("down", "p")
            await sees(top, "Suspend vit (job 2)?")
            await top.press("y")
            await sees(top, "vit (job 2): SUSPENDED", "Resume")
            await top.press("r", "y")
            await sees(top, "vit (job 2): PENDING", "p Suspend")
            await top.press("c", "y")
            await sees(top, "vit (job 2): CANCELLED", no="  vit  ")
            await top.press("a")
            await sees(top, "   2   vit   CANCELLED")

    asyncio.run(use())


def test_a_token_that_may_read_is_offered_no_changes(reading: StubPool) -> None:
    async def use() -> None:
        async with shown(client_of_stub(reading)) as top:
            text = await sees(top, "read only", "bert: 0 → 2 CPU slots (bert submitted)")
            assert not {"Suspend", "Cancel"} & set(text.split())
            await top.press("c")
            await top.pause()
            assert "Cancel bert" not in text_of(top)
            await top.press("question_mark")
            await sees(top, "suspend, resume, cancel the selected job")
            await top.press("q")
            await sees(top, "SAMPLES/S", no="select a job")
            await top.press("n")
            await sees(top, "2 x CPU")
            await top.press("q", "e")
            await sees(top, "the newest first")

    asyncio.run(use())
    assert not [asked for asked in reading.asked if asked.method != "GET"]


def test_a_thousand_jobs_are_scrolled_through(reading: StubPool) -> None:
    jobs = [JOB | {"id": number, "name": f"job-{number}"} for number in range(1, 1001)]
    reading.will("GET", "/jobs", {"items": jobs, "next": None})

    async def use() -> None:
        async with shown(client_of_stub(reading)) as top:
            await top.press("end")
            await sees(top, "jobs 1000/1000", "job-1000")
            await top.press("pageup", "up")
            await sees(top, "job-991")
            await top.press("home")
            await sees(top, "jobs 1/1000", "job-1 ")
            await top.press("slash", *"job-77", "enter")
            await sees(top, "jobs 1/11", "job-779")

    asyncio.run(use())


@pytest.mark.parametrize("size", [(40, 10), (80, 12), (200, 60)])
def test_terminals_of_any_size_show_the_jobs(reading: StubPool, size: tuple[int, int]) -> None:
    async def use() -> None:
        async with TopApp(client_of_stub(reading)).run_test(size=size, notifications=True) as top:
            await sees(top, "policy afs-p", "bert", "vit")

    asyncio.run(use())


def test_a_server_that_is_restarted_elsewhere_is_found_again(tmp_path: Path) -> None:
    pools = [LivePool(tmp_path / "first")]

    async def use() -> None:
        async with shown(lambda: client_of(pools[-1])) as top:
            await sees(top, "bert")
            pools[0].__exit__()
            await sees(top, "no answer since", "trying again", "bert")
            pools.append(LivePool(tmp_path / "second", pools[0].store))
            with pools[1]:
                await sees(top, "the server answers again, after", "bert", no="no answer since")
                pools[1].submit(name="later")
                await sees(top, "later")

    pools[0].__enter__()
    pools[0].submit(name="bert")
    asyncio.run(use())


@pytest.mark.usefixtures("reading")
def test_without_a_terminal_it_is_printed_once(coddl: Coddl) -> None:
    for words in (("top",), ("top", "--once")):
        done = coddl(*words)
        assert done.code == 0
        head, nodes, jobs, decisions = done.out.split("\n\n")
        assert head == "policy afs-p  CPU slots 2/2  nodes 1/1 up  jobs 1 running, 1 waiting"
        assert nodes.splitlines()[1].split()[:3] == ["n1", "UP", "2/2"]
        assert jobs.splitlines()[0].split()[-3:] == ["ETA", "SAMPLES/S", "REASON"]
        assert jobs.splitlines()[1].endswith("1m35s  1,234      afs-p: it gains most")
        assert decisions.splitlines()[1].endswith("bert: 0 → 2 CPU slots (bert submitted)")
    told = json.loads(coddl("top", "-o", "json").out)
    assert told == {
        "pool": POOL, "nodes": [NODE], "jobs": [JOB, WAITING], "decisions": [DECISION]
    }  # fmt: skip


def test_a_pool_that_is_not_there_is_an_error(coddl: Coddl) -> None:
    done = coddl("top")
    assert (done.code, done.err.splitlines()[0]) == (1, "error: no pool is running")


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, *words: str, env: dict[str, str]) -> None:
        self._leader, follower = pty.openpty()
        self.process = subprocess.Popen(
            words, stdin=follower, stdout=follower, stderr=follower, start_new_session=True,
            env=os.environ | {"TERM": "xterm-256color", "LINES": "24", "COLUMNS": "80"} | env,
        )  # fmt: skip
        os.close(follower)
        self.output = ""

    def read_until(self, word: str) -> None:
        """Read what it writes; it ends with the command."""
        while word not in self.output:
            try:
                self.output += os.read(self._leader, 65536).decode(errors="replace")
            except OSError:
                raise AssertionError(f"{word!r} was not written: {self.output}") from None

    def type(self, keys: str) -> None:
        os.write(self._leader, keys.encode())

    def close(self) -> int:
        """Wait for its end."""
        with contextlib.suppress(OSError):  # all was read
            while read := os.read(self._leader, 65536):
                self.output += read.decode(errors="replace")
        os.close(self._leader)
        return self.process.wait(DEADLINE_S)


def test_it_runs_in_a_terminal_and_quits(live: LivePool) -> None:
    command = (sys.executable, "-m", "coddl.cli.main", "top", "--server", live.url)
    terminal = Terminal(*command, env={"CODDL_TOKEN": TOKEN, "PYTHONPATH": str(ROOT)})
    terminal.read_until("vit")
    terminal.type("q")
    assert terminal.close() == 0
    assert "\x1b[?1049l" in terminal.output  # the screen is as it was before


WITHOUT_TEXTUAL = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "textual":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from coddl.cli.main import main
sys.argv = ["coddl", "top", "--server", sys.argv[1]]
main()
"""


def test_without_its_extra_it_says_what_to_install(reading: StubPool) -> None:
    env: dict[str, Any] = {"CODDL_TOKEN": STUB_TOKEN, "PYTHONPATH": str(ROOT)}
    terminal = Terminal(sys.executable, "-c", WITHOUT_TEXTUAL, reading.url, env=env)
    assert terminal.close() == 2
    assert "because textual is not installed" in terminal.output
    assert "try     pip install 'coddl[top]'" in terminal.output

"""Targets that come faster than they can be reached: the last one counts, and nothing piles up."""

import contextlib
import os
import random
import time
from pathlib import Path

import pytest

from tests.runtime.elastic import PATIENCE_S, Elastic, alone, line_of

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

ARGS = ("--strict", "--epochs", "12", "--pace-s", "0.03")
LOOKS = 10  # in a row that must be the same


@pytest.fixture(scope="module")
def undisturbed() -> str:
    return line_of(alone("net.py", *ARGS[:-2]), "hash")


def held(pid: int) -> tuple[int, int]:
    """Count a process's descriptors and threads.

    Images of the state are left out: there are two, and who has ever written one keeps it open.
    """
    files = 0
    for each in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            files += not os.readlink(f"/proc/{pid}/fd/{each}").endswith(".img")
    return files, len(os.listdir(f"/proc/{pid}/task"))


def held_at_rest(pids: list[int]) -> list[tuple[int, int]]:
    """Count what processes hold, once that no longer changes: groups end in the background."""
    deadline_s = time.monotonic() + PATIENCE_S
    now, looks = [held(pid) for pid in pids], 1
    while looks < LOOKS:
        assert time.monotonic() < deadline_s, f"it never comes to rest: {now}"
        time.sleep(0.1)
        before, now = now, [held(pid) for pid in pids]
        looks = looks + 1 if now == before else 1
    return now


def is_no_more(now: list[tuple[int, int]], than: list[tuple[int, int]]) -> bool:
    return all(a <= c and b <= d for (a, b), (c, d) in zip(now, than, strict=True))


def children(pid: int) -> set[int]:
    """Give all processes below one."""
    found: set[int] = set()
    for task in os.listdir(f"/proc/{pid}/task"):
        direct = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
        found |= {int(each) for each in direct}
    return found | {below for each in list(found) for below in children(each)}


def test_a_storm_of_targets_ends_at_the_last_and_leaves_nothing_behind(
    tmp_path: Path, undisturbed: str
) -> None:
    dice = random.Random(7)
    with Elastic(tmp_path, "net.py", *ARGS, workers=2) as job:
        job.wait_step(5)
        # A first round trip, so that what is made once is there before we count.
        job.ask("resize", workers=3)
        job.ask("resize", workers=2)
        status = job.settle(2)
        pids = [each["pid"] for each in status["workers"]]
        before = held_at_rest(pids)
        family = len(children(os.getpid()))
        generations = status["generation"]
        since = len(job.events)
        for _ in range(100):
            job.ask("resize", workers=dice.choice([2, 3, 4]), wait=False)
            time.sleep(0.008)
        job.ask("resize", workers=4)
        job.ask("resize", workers=2)
        job.settle(2)
        storm = job.events[since:]
        live = {e["worker"] for e in storm if e["is"] == "starting"}
        assert len(live) >= 5, "the storm started too few joiners to show anything"
        assert job.status()["generation"] > generations
        assert [each["pid"] for each in job.status()["workers"]] == pids
        deadline_s = time.monotonic() + 15  # the training goes on for longer than that
        while not is_no_more(now := [held(pid) for pid in pids], before):
            assert time.monotonic() < deadline_s, f"{before} became {now}\n{job.story()}"
            time.sleep(0.1)
        assert len(children(os.getpid())) == family
        assert line_of(job.finish(), "hash") == undisturbed


# Who is held, where, and how long the cancelled generation may live on.
STAGES = {
    "forked": "2:before-arrived",
    "model built, another is not": "3:before-arrived",
    "group built, not said so yet": "2:before-ready",
}


def wait_held(job: Elastic, folder: Path) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not (folder / "held").exists():
        assert time.monotonic() < deadline_s, job.story()
        time.sleep(0.01)


@pytest.mark.parametrize("hold", STAGES.values(), ids=STAGES.keys())
def test_a_cancelled_resize_costs_nothing_at_any_stage(
    tmp_path: Path, hold: str, undisturbed: str
) -> None:
    with Elastic(tmp_path, "net.py", *ARGS, workers=2, env={"HOLD": hold}) as job:
        job.wait_step(5)
        pids = job.pids()
        job.ask("resize", workers=4, wait=False)
        wait_held(job, tmp_path)
        step = job.status()["step"]
        job.wait_step(step + 10)  # a held joiner holds nobody else
        job.ask("resize", workers=2, wait=False)
        (tmp_path / "go").touch()
        job.settle(2)
        assert job.pids() == pids
        assert not any(e["is"] in ("resized", "regrouped") for e in job.events)
        assert line_of(job.finish(), "hash") == undisturbed


@pytest.mark.parametrize("hold", [*STAGES.values()][:2], ids=[*STAGES.keys()][:2])
def test_a_shrink_does_not_wait_for_a_growth_whose_workers_are_being_started(
    tmp_path: Path, hold: str, undisturbed: str
) -> None:
    with Elastic(tmp_path, "net.py", *ARGS, workers=2, env={"HOLD": hold}) as job:
        job.wait_step(5)
        job.ask("resize", workers=4, wait=False)
        wait_held(job, tmp_path)
        change = job.ask("resize", workers=1)["change"]  # the held joiner is never let go
        assert (change["from"], change["to"], change["members"]) == (2, 1, [0])
        job.settle(1)
        assert line_of(job.finish(), "hash") == undisturbed
        assert job.sizes() == [2, 1]

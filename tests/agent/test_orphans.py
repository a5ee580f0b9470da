"""What an earlier agent has left: found by records and by marks, and ended."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coddl.agent.orphans import MARK, OrphanProcesses, mark_of, process

SLEEP = "import time; time.sleep(600)"
# Leads a session, leaves somebody behind in it, and says who.
FORK = """
import os, sys, time
pid = os.fork()
if pid == 0:
    time.sleep(600)
print(pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that a test has started; none of them outlives it."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for each in processes:
        each.kill()
        each.wait()
        if each.stdout is not None:
            each.stdout.close()


def start(code: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        start_new_session=True,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_what_a_recorded_process_has_started_is_found_when_it_is_gone(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    leader = start(FORK)
    started.append(leader)
    assert leader.stdout is not None
    child = int(leader.stdout.readline())
    OrphanProcesses(tmp_path).note([leader.pid])
    leader.kill()
    leader.wait()
    assert process(child) is not None
    assert OrphanProcesses(tmp_path).end() == 1
    assert (found := process(child)) is None or found.is_zombie


def test_what_carries_our_mark_is_found_wherever_it_went(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    started += [start(SLEEP, {MARK: mark_of(tmp_path)}), start(SLEEP, {MARK: "another's"})]
    marked, other = started
    # A process has its environment only once it has become the program.
    while b"-c" not in Path(f"/proc/{marked.pid}/cmdline").read_bytes():
        pass
    assert OrphanProcesses(tmp_path).end() == 1
    assert marked.wait() == -signal.SIGKILL
    assert other.poll() is None


def test_a_number_that_is_anothers_by_now_is_left_alone(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    started.append(start(SLEEP))
    orphans = OrphanProcesses(tmp_path)
    orphans.note([started[0].pid])
    path = tmp_path / "processes"
    machine, line = path.read_text().splitlines()
    pid, ticks = line.split()
    path.write_text(f"{machine}\n{pid} {int(ticks) - 1}\n")
    assert OrphanProcesses(tmp_path).end() == 0
    path.write_text(f"another boot\n{pid} {ticks}\n")
    assert OrphanProcesses(tmp_path).end() == 0
    assert started[0].poll() is None


@pytest.mark.parametrize("text", ["", "\n", "no numbers\nat all\n", "\0"])
def test_records_that_are_torn_are_no_obstacle(tmp_path: Path, text: str) -> None:
    (tmp_path / "processes").write_text(text)
    assert OrphanProcesses(tmp_path).end() == 0


def test_who_is_gone_is_not_written_down(tmp_path: Path) -> None:
    orphans = OrphanProcesses(tmp_path)
    orphans.note([os.getpid(), 1 << 30])
    assert len((tmp_path / "processes").read_text().splitlines()) == 2
    orphans.note([])
    assert len((tmp_path / "processes").read_text().splitlines()) == 1

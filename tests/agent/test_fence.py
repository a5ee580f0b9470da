"""The lease of an agent that is stopped, or hangs, is kept by its fence."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coddl.agent.fence import of_jobs
from coddl.agent.orphans import MARK, OrphanProcesses, mark_of
from coddl.core.pool.records import RunEnded, RunId, RunStepped
from coddl.core.pool.spec import JobSpec, Launch
from tests.agent.pool import (
    Agent,
    PaperServer,
    below,
    lead,
    lives,
    orders,
    served,
    wait_until,
)
from tests.agent.test_agent_faults import NESTED, command
from tests.agent.test_command_runner import DEAF

LEASE_S = 8.0


@pytest.fixture
def server() -> Iterator[PaperServer]:
    with served(lease_s=LEASE_S) as server:
        yield server


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"T"


def stop(agent: Agent) -> None:
    os.kill(agent.process.pid, signal.SIGSTOP)
    wait_until(lambda: is_stopped(agent.process.pid), "its stop")


def test_a_stopped_agent_loses_its_jobs_with_its_lease_and_knows_it_later(
    tmp_path: Path, server: PaperServer
) -> None:
    script = tmp_path / "nested.py"
    script.write_text(NESTED)
    specs = {1: JobSpec(name="job", launch=Launch(argv=(str(script),))), 2: command(DEAF)}
    with Agent(tmp_path, server.url) as agent:
        boot = server.hello().boot
        server.order(orders(1, [lead(1, [0]), lead(2, [1])], specs))
        server.fact(RunStepped, 1)
        server.line("stdout: ready", 2)
        child = int(server.line("stdout: child", 1).split()[-1])
        jobs = agent.jobs()
        assert child in jobs
        stop(agent)
        wait_until(lambda: not any(lives(pid) for pid in jobs), "the end of its jobs")
        assert is_stopped(agent.process.pid)

        os.kill(agent.process.pid, signal.SIGCONT)
        assert server.fact(RunEnded, 1).outcome == "lost"
        assert server.fact(RunEnded, 2).outcome == "lost"
        wait_until(lambda: len(server.hellos) == 2, "another hello")
        assert server.hello().boot == boot
        server.order(orders(5))
        server.held(5, {})
        server.order(orders(6, [lead(2, [1], attempt=2)], specs))
        server.held(6, {1: RunId(2, 2)})  # it is as good as before


def test_a_fence_that_dies_is_started_again_and_knows_the_lease(
    tmp_path: Path, server: PaperServer
) -> None:
    with Agent(tmp_path, server.url, warm=False) as agent:
        server.hello()
        first = agent.fence()
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: not lives(first), "its end")
        assert agent.fence() != first
        server.order(orders(1, [lead(1, [0])], {1: command(DEAF)}))
        server.line("stdout: ready")
        jobs = agent.jobs()
        stop(agent)
        wait_until(lambda: not any(lives(pid) for pid in jobs), "the end of its jobs")
        os.kill(agent.process.pid, signal.SIGCONT)
        assert server.fact(RunEnded).outcome == "lost"


SLEEPS = "import time; print('ready', flush=True); time.sleep(600)"
# Starts somebody who sleeps, and sleeps itself.
STARTS = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEPS!r}])"


def started(code: str, **env: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_what_has_started_nothing_and_has_no_mark_runs_no_job(tmp_path: Path) -> None:
    idle, busy = started(SLEEPS), started(STARTS)
    marked = started(SLEEPS, **{MARK: mark_of(tmp_path)})
    try:
        found = [each.pid for each in of_jobs(os.getpid(), OrphanProcesses(tmp_path))]
        assert {busy.pid, marked.pid} < {*found}
        assert idle.pid not in found
        (child,) = below(busy.pid)
        assert found.index(busy.pid) < found.index(child), "parents first"
    finally:
        for each in (idle, busy, marked):
            os.killpg(each.pid, signal.SIGKILL)
            each.communicate()

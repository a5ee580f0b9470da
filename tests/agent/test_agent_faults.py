"""Agents whose server goes away, who are killed, refused, or told to stop."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coddl.agent.orphans import MARK, mark_of
from coddl.api.wire import Refused
from coddl.core.pool.orders import Orders
from coddl.core.pool.records import RunChanged, RunEnded, RunId, RunStepped
from coddl.core.pool.spec import JobSpec, Launch, Tier
from tests.agent.pool import Agent, PaperServer, lead, lives, orders, served, wait_until
from tests.agent.test_command_runner import DEAF, POLITE, SCATTER
from tests.runtime.elastic import SCRIPTS


@pytest.fixture
def server() -> Iterator[PaperServer]:
    with served() as server:
        yield server


def command(code: str, tier: Tier = "restartable", **fields: Any) -> JobSpec:
    launch = Launch(argv=(sys.executable, "-c", code), **fields)
    return JobSpec(name="job", launch=launch, tier=tier)


def started(server: PaperServer, spec: JobSpec, job: int = 1, slot: int = 0) -> None:
    """Have a command run, and wait until it says so."""
    server.order(orders(1, [lead(job, [slot])], {job: spec}))
    server.line("stdout: ready", job)


def test_a_server_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    with served() as server:
        server.close()
        with Agent(tmp_path, server.url, warm=False) as agent:
            wait_until(lambda: "server_unreachable" in agent.printed.read_text(), "a try in vain")
            server.open()
            server.hello()


def test_a_broken_line_is_dialled_again_by_the_same_boot(
    tmp_path: Path, server: PaperServer
) -> None:
    with Agent(tmp_path, server.url, warm=False):
        boot = server.hello().boot
        started(server, command(POLITE))
        server.hang_up()
        wait_until(lambda: len(server.hellos) == 2, "another hello")
        assert server.hello().boot == boot
        server.order(orders(2, [lead(1, [0])], {1: command(POLITE)}))
        server.held(2, {0: RunId(1, 1)})  # it has run on
        server.order(orders(3, [lead(1, [0], stop="retire")], {1: command(POLITE)}))
        server.fact(RunEnded, outcome="retired")
        server.held(3, {})


def test_what_a_server_did_not_hear_is_told_again(tmp_path: Path, server: PaperServer) -> None:
    with Agent(tmp_path, server.url, warm=False):
        go = tmp_path / "go"
        waits = f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)"
        started(server, command(f"import pathlib, time; print('ready', flush=True)\n{waits}"))
        server.is_deaf = True  # it neither acknowledges nor renews
        go.touch()
        wait_until(lambda: any(isinstance(f, RunEnded) for f in server.facts()), "the end")
        said = len(server.said)
        server.hang_up()
        server.is_deaf = False
        server.hello()
        wait_until(
            lambda: any(
                getattr(message, "ended", None) is not None for message in server.said[said:]
            ),
            "the end, once more",
        )


def test_the_state_of_a_job_is_kept_until_the_server_knows_of_its_end(
    tmp_path: Path, server: PaperServer
) -> None:
    kept = tmp_path / "jobs" / "1" / "checkpoints" / "mine"
    code = f"import pathlib; p = pathlib.Path({str(kept)!r}); p.touch()"
    with Agent(tmp_path, server.url, warm=False):
        server.hello()
        server.is_deaf = True
        server.order(orders(1, [lead(1, [0])], {1: command(code)}))
        assert server.fact(RunEnded).outcome == "succeeded"
        said = len(server.said)
        wait_until(lambda: len(server.said) > said + 2, "two more beats")  # it had its time
        assert kept.exists()
        server.is_deaf = False
        server.hang_up()
        wait_until(lambda: not kept.exists(), "its removal")


def test_a_silent_server_is_dialled_again(tmp_path: Path) -> None:
    with served(lease_s=6.0) as server, Agent(tmp_path, server.url, warm=False):
        server.hello()
        server.is_deaf = True
        said = len(server.said)
        wait_until(lambda: any(m in server.said[said:] for m in server.hellos), "a new hello")
        server.is_deaf = False


def test_jobs_leave_before_the_lease_ends_and_all_ends_with_it(tmp_path: Path) -> None:
    with served(lease_s=10.0) as server, Agent(tmp_path, server.url, warm=False) as agent:
        boot = server.hello().boot
        specs = {1: command(POLITE), 2: command(DEAF)}
        server.order(orders(1, [lead(1, [0]), lead(2, [1])], specs))
        server.line("stdout: ready", 1)
        server.line("stdout: ready", 2)
        family = agent.jobs()
        assert len(family) == 4, "two guards with a command each"
        server.close()
        wait_until(lambda: not any(lives(pid) for pid in family), "the end of every process")
        printed = agent.printed.read_text()
        assert "lease_expiring" in printed
        assert "lease_expired" in printed
        server.open()
        wait_until(lambda: len(server.hellos) == 2, "another hello")
        assert server.hello().boot == boot
        assert server.fact(RunEnded, 1).outcome == "retired"
        assert server.fact(RunEnded, 2).outcome == "lost"
        server.order(orders(5))
        server.held(5, {})


def test_a_lease_that_holds_lets_jobs_run_on_without_a_server(tmp_path: Path) -> None:
    with served(lease_s=60.0) as server, Agent(tmp_path, server.url, warm=False):
        server.hello()
        started(server, command("print('ready', flush=True); import time; time.sleep(1)"))
        server.close()
        server.open()
        assert server.fact(RunEnded).outcome == "succeeded"


# A training whose worker has started somebody who outlives it.
NESTED = """
import subprocess, sys, torch, coddl
if coddl.is_main():
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    child = subprocess.Popen(sleep, start_new_session=True)
    print("child", child.pid, flush=True)
model = torch.nn.Linear(2, 1)
data = [(torch.zeros(2), torch.zeros(1))] * 64
model, optimizer, batches = coddl.prepare(
    model, torch.optim.SGD(model.parameters(), 0.1), data, global_batch=8)
for epoch in coddl.epochs(100000):
    for x, y in batches:
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_killed_agent_leaves_nothing_and_the_next_one_makes_sure_of_it(
    tmp_path: Path, server: PaperServer
) -> None:
    script = tmp_path / "nested.py"
    script.write_text(NESTED)
    specs = {
        1: JobSpec(name="job", launch=Launch(argv=(str(script),))),
        2: command(SCATTER.format(stay_s=600)),
    }
    with Agent(tmp_path, server.url) as agent:
        boot = server.hello().boot
        server.order(orders(1, [lead(1, [0]), lead(2, [1])], specs))
        server.fact(RunStepped, 1)
        child = int(server.line("stdout: child", 1).split()[-1])
        stray = int(server.line("stdout: ", 2).split()[-1])
        family = agent.family()
        assert {child, stray} <= set(family)
        agent.process.kill()
        agent.end()
        wait_until(lambda: not [pid for pid in family if lives(pid)], "their end")
        mark = {MARK: mark_of(tmp_path / "state" / "agents" / "n0")}
        sleep = ["/bin/sleep", "600"]  # what its fence did not come to end, being killed too
        with (
            subprocess.Popen(sleep, env=mark, start_new_session=True) as left,
            Agent(tmp_path, server.url, warm=False) as second,
        ):
            wait_until(lambda: len(server.hellos) == 2, "its hello")
            assert left.wait() == -signal.SIGKILL
            assert server.hello().boot != boot
            assert '"stopped_processes_of_earlier_agent"' in second.printed.read_text()


def test_sigterm_lets_jobs_leave_and_then_the_agent(tmp_path: Path, server: PaperServer) -> None:
    with Agent(tmp_path, server.url) as agent:
        server.hello()
        argv = (str(SCRIPTS / "net.py"), "--epochs", "1000")
        spec = JobSpec(name="job", launch=Launch(argv=argv), gpus_max=2)
        server.order(orders(1, [lead(1, [0, 1])], {1: spec}))
        server.wait_step(3)
        agent.process.terminate()
        ended = server.fact(RunEnded)
        assert ended.outcome == "retired"
        assert agent.end() == 0
        saved = list((tmp_path / "jobs" / "1" / "checkpoints").glob("*.ckpt"))
        assert f"step-{ended.step:09}.ckpt" in [path.name for path in saved]
    mark = mark_of(tmp_path / "state" / "agents" / "n0")
    assert not list(Path("/dev/shm").glob(f"coddl-{os.getuid()}-images/agent-{mark}"))


def test_a_second_sigterm_waits_for_nobody(tmp_path: Path, server: PaperServer) -> None:
    with Agent(tmp_path, server.url, warm=False) as agent:
        server.hello()
        started(server, command(DEAF, grace_s=600.0))
        family = agent.family()
        agent.process.terminate()
        server.line("coddl: stopping")
        agent.process.terminate()
        assert agent.end() == 0
        assert not [pid for pid in family if lives(pid)]


REFUSALS = {
    "its token is not the server's": (
        {"token": "guess"},
        "the server refused this agent\n  because its token is not the server's\n",
    ),
    "it has no token": ({"token": ""}, "the token can't be read\n"),
    "its name can't be one": ({"name": "a b"}, '"a b" can\'t name a node\n'),
    "its server has no address": ({"server": "somewhere"}, "can't be reached\n"),
    "its own address is another's": ({"host": "192.0.2.1"}, "192.0.2.1 can't be listened on\n"),
    "it would have no slots": ({"slots": 0}, "--slots 0 cannot be used\n"),
}


@pytest.mark.parametrize(("options", "words"), REFUSALS.values(), ids=REFUSALS.keys())
def test_an_agent_that_can_not_start_says_why(
    options: dict[str, Any], words: str, tmp_path: Path, server: PaperServer
) -> None:
    told = {"server": server.url, "warm": False, **options}
    with Agent(tmp_path, told.pop("server"), **told) as agent:
        assert agent.end() == 2
        assert words in agent.printed.read_text()
        assert "Traceback" not in agent.printed.read_text()


def test_an_agent_that_is_refused_says_why(tmp_path: Path, server: PaperServer) -> None:
    server.refusal = Refused(
        what="n0 can't join", because="a node of that name is connected", try_="--name"
    )
    with Agent(tmp_path, server.url, warm=False) as agent:
        assert agent.end() == 2
        assert "n0 can't join\n  because a node of that name is connected" in (
            agent.printed.read_text()
        )


def test_a_folder_has_one_agent(tmp_path: Path, server: PaperServer) -> None:
    with Agent(tmp_path, server.url, warm=False) as first:
        server.hello()
        with Agent(tmp_path, server.url, warm=False) as second:
            assert second.end() == 2
            assert f"process {first.process.pid} holds" in second.printed.read_text()


def test_orders_that_come_twice_start_nothing_twice(tmp_path: Path, server: PaperServer) -> None:
    with Agent(tmp_path, server.url, warm=False):
        server.hello()
        spec = command(POLITE)
        for _ in range(3):
            server.order(orders(1, [lead(1, [0])], {1: spec}))
        server.line("stdout: ready")
        server.order(orders(2, [lead(1, [0], stop="retire")], {1: spec}))
        server.fact(RunEnded)
        server.held(2, {})
        server.order(orders(2, [lead(1, [0])], {1: spec}))  # a ghost
        server.order(orders(3, [lead(1, [0], attempt=2)], {1: spec}))
        server.fact(RunStepped, attempt=2)
        assert [f.attempt for f in server.facts() if isinstance(f, RunChanged)] == [1, 2]
        server.order(orders(4, [lead(1, [0], attempt=2, stop="cancel")], {1: spec}))
        server.fact(RunEnded, attempt=2)


def test_a_dropped_lead_takes_its_command_along_without_a_word(
    tmp_path: Path, server: PaperServer
) -> None:
    with Agent(tmp_path, server.url, warm=False):
        server.hello()
        started(server, command(DEAF))
        server.order(Orders(2, {}, (), {}))
        server.held(2, {})
        assert not [fact for fact in server.facts() if isinstance(fact, RunEnded)]

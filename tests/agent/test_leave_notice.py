"""An agent whose machine goes away, and one whose server is gone for good."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from coddl.agent.lease_clock import SystemNodeClock, now_s
from coddl.agent.lease_keeper import keep_lease
from coddl.agent.leave_notice import write_notice
from coddl.agent.main import ServerGone
from coddl.agent.node_agent import NodeAgent
from coddl.agent.node_lease import NodeLease
from coddl.agent.options import SERVER_GONE
from coddl.agent.server_session import ServerSession
from coddl.api import wire
from coddl.core.pool.orders import Orders
from coddl.core.pool.records import RunEnded, RunId
from tests.agent.pool import Agent, PaperServer, lead, orders, served, wait_until
from tests.agent.test_agent_faults import command, started
from tests.agent.test_command_runner import POLITE


@pytest.fixture
def server() -> Iterator[PaperServer]:
    with served() as server:
        yield server


def give_notice(agent: Agent, within_s: float) -> None:
    write_notice(agent.folder / "state" / "agents" / "n0", now_s() + within_s)
    os.kill(agent.process.pid, signal.SIGUSR1)


def notices(server: PaperServer) -> list[float]:
    """Give what was said of how much time is left."""
    said = [message for message in server.said if isinstance(message, wire.Leaving)]
    return [each.within_s for each in said if each.within_s is not None]


def test_an_agent_that_was_given_no_job_ends_at_once(tmp_path: Path, server: PaperServer) -> None:
    with Agent(tmp_path, server.url, warm=False) as agent:
        server.hello()
        server.order(orders(1))
        server.held(1, {})
        give_notice(agent, 600.0)
        assert agent.end() == 0
    assert 500.0 < notices(server)[0] <= 600.0
    assert wire.Left() in server.said


def test_an_agent_with_notice_works_on_until_it_has_nothing_to_do(
    tmp_path: Path, server: PaperServer
) -> None:
    specs = {1: command(POLITE)}
    with Agent(tmp_path, server.url, warm=False) as agent:
        server.hello()
        started(server, specs[1])
        give_notice(agent, 600.0)
        wait_until(lambda: notices(server), "the notice")
        os.kill(agent.process.pid, signal.SIGUSR1)  # a repeat
        server.hang_up()
        wait_until(lambda: len(notices(server)) == 2, "what is left of the time, on a new line")
        assert notices(server)[1] < notices(server)[0]
        server.hello()
        server.order(leaving(orders(2, [lead(1, [0])], specs)))
        server.held(2, {0: RunId(1, 1)})
        server.order(orders(3, [lead(1, [0], stop="retire")], specs))
        server.fact(RunEnded, outcome="retired")
        server.order(orders(4))
        server.held(4, {})
        assert agent.process.poll() is None, "the server may not know that it leaves"
        server.order(leaving(orders(5)))
        assert agent.end() == 0
    assert wire.Left() in server.said


def leaving(told: Orders) -> Orders:
    """Give orders of a server that knows of the notice."""
    return Orders(told.version, told.seats, told.leads, told.jobs, leaves=True)


def test_jobs_are_saved_in_time_though_the_server_does_nothing(tmp_path: Path) -> None:
    with served() as server, Agent(tmp_path, server.url, warm=False) as agent:
        server.hello()
        started(server, command(POLITE))
        server.close()
        begun_s, within_s = time.monotonic(), 20.0
        give_notice(agent, within_s)
        assert agent.end() == 0
        took_s = time.monotonic() - begun_s
        server.open()  # for what comes after
    assert within_s * 0.7 < took_s < within_s, "it has used the time, but for what saving takes"
    assert '"retired"' in agent.printed.read_text()


def test_jobs_are_saved_though_the_agent_is_told_to_stop_as_well(
    tmp_path: Path, server: PaperServer
) -> None:
    saved = tmp_path / "saved"
    slow = f"""
import pathlib, signal, sys, time
def save(*_):
    time.sleep(2)
    pathlib.Path({str(saved)!r}).touch()
    sys.exit()
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    time.sleep(1)
"""
    with Agent(tmp_path, server.url, warm=False) as agent:
        server.hello()
        started(server, command(slow))
        give_notice(agent, 2.0)
        wait_until(lambda: "agent_stopping" in agent.printed.read_text(), "its own decision")
        agent.process.terminate()
        assert agent.end() == 0
    assert saved.exists()


def test_a_signal_without_a_deadline_says_nothing(tmp_path: Path, server: PaperServer) -> None:
    with Agent(tmp_path, server.url, warm=False) as agent:
        server.hello()
        started(server, command(POLITE))
        os.kill(agent.process.pid, signal.SIGUSR1)
        server.order(orders(2, [lead(1, [0])], {1: command(POLITE)}))
        server.held(2, {0: RunId(1, 1)})
        assert not notices(server)


def test_an_agent_that_ends_with_its_lease_does_so_and_says_why(tmp_path: Path) -> None:
    with (
        served(lease_s=6.0) as server,
        Agent(tmp_path, server.url, warm=False, ends_with_lease=True) as ends,
        Agent(tmp_path, server.url, warm=False, name="n1") as stays,
    ):
        server.hello("n0")
        server.hello("n1")
        server.close()
        assert ends.end() == SERVER_GONE
        said = ends.printed.read_text()
        assert "the agent has ended" in said
        assert f"because the server {server.url} has not answered for 5 s" in said
        wait_until(lambda: "lease_expired" in stays.printed.read_text(), "its lease to expire")
        server.open()
        wait_until(lambda: len(server.hellos) == 3, "another hello")
        server.hello("n1")
        assert stays.process.poll() is None


def test_an_agent_that_is_never_welcomed_ends_as_well() -> None:
    class Unanswered:
        clock, lease = SystemNodeClock(), NodeLease()

        async def lease_changed(self) -> None:
            await asyncio.Event().wait()

    session, node = cast("ServerSession", Unanswered()), cast("NodeAgent", None)
    with pytest.raises(ServerGone, match="http://head:1 has not answered for 0 s"):
        asyncio.run(keep_lease(node, session, partial(ServerGone, "http://head:1"), welcome_s=0.05))


def test_a_server_that_answers_again_keeps_an_agent(tmp_path: Path) -> None:
    with (
        served(lease_s=20.0) as server,
        Agent(tmp_path, server.url, warm=False, ends_with_lease=True) as agent,
    ):
        server.hello()
        server.close()
        server.open()
        server.hello()
        beats = len(server.said)
        wait_until(lambda: len(server.said) > beats + 3, "more beats")
        assert agent.process.poll() is None
